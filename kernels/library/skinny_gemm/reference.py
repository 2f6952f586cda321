"""skinny_gemm in float64."""

import numpy as np


def skinny_gemm(a: np.ndarray, b: np.ndarray, m: int, n: int, k: int) -> dict[str, np.ndarray]:
    """The product of two row-major matrices."""
    return {"c": a @ b}
