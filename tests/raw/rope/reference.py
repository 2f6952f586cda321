"""rope in float64."""

import numpy as np


def rope(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray, n: int, h: int, half: int) -> dict[str, np.ndarray]:
    """Each pair (x[i], x[i + half]) is turned by its token's angle i."""
    first, second = x[:, :, :half], x[:, :, half:]
    cos, sin = cosines[:, None, :], sines[:, None, :]
    return {"out": np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)}
