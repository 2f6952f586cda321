"""gemv in float64."""

import numpy as np


def gemv(matrix: np.ndarray, x: np.ndarray, n: int, k: int) -> dict[str, np.ndarray]:
    """A product of a matrix and a vector."""
    return {"out": matrix @ x}
