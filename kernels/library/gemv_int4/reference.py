"""gemv_int4 in float64."""

import numpy as np


def gemv_int4(packed: np.ndarray, scales: np.ndarray, x: np.ndarray, n: int, m: int) -> dict[str, np.ndarray]:
    """The lower half of a byte comes first; 8 stands for zero."""
    weights = np.stack([packed % 16, packed // 16], axis=2).reshape(n, 2 * m) - 8
    return {"out": (weights * np.repeat(scales, 128, axis=1)[:, : 2 * m]) @ x}
