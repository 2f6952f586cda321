"""row_argmax by NumPy."""

import numpy as np


def row_argmax(input, n, d):
    """The first of equal ones, as NumPy has it."""
    return {"place": np.argmax(input, axis=1).astype(np.float64)}
