"""The buffers of a workload on one device, and which of them a launch works on.

Poison, red zones, references and the rotation over sets; whether a kernel is right or fast is judged above.
"""
