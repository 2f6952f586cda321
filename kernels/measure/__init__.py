"""How long does a candidate take: a visit to the device, its statistics, the roofs of the device and its health."""
