"""mix_integers in 64-bit integers."""

import numpy as np


def mix_integers(a, b, n):
    """Exclusive or with the number's own half, and the other number's low bits."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    return {"out": ((a ^ (a >> 1)) ^ (b & 15)).astype(np.float64)}
