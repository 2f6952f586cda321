"""roll in float64."""

import numpy as np


def roll(x, shift, n):
    """A vector moved around by a number of places."""
    return {"out": np.roll(x, -int(shift))}
