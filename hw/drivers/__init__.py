"""The devices here by the drivers CUDA, NVML and OpenCL, each in the terms of its API turned into ours.

A driver is loaded only inside the functions that ask it; a missing one is a value with a sentence, not an error.
"""
