"""Inputs times pseudo-random whole numbers."""

import numpy as np


def noise(input, n, seed):
    """The hash is that of the kernel, in 64-bit integers cut to 32 bits."""
    x = (np.arange(n, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    return {"out": input * (x & np.uint64(1023)).astype(np.float64)}
