"""The machine and its limits: occupancy, devices, telemetry, roofline.

This room knows nothing of kernels, search or agents. Importing any of its modules loads no GPU library:
NVML, the CUDA driver and OpenCL are opened only inside the functions which ask for them.
"""
