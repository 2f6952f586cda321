"""What the drivers say of the devices here: CUDA, NVML and OpenCL, each in the words of its API turned into ours.

A driver is loaded only inside the functions that ask it; what is missing is a value with a sentence, not an error.
"""
