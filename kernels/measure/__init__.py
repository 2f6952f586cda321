"""The time of candidates: visits to the device, their statistics, the roofs of the device and its health."""
