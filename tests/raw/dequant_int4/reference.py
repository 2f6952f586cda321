"""dequant_int4 in float64."""

import numpy as np


def dequant_int4(packed: np.ndarray, scales: np.ndarray, n: int, m: int) -> dict[str, np.ndarray]:
    """The lower half of a byte comes first; 8 stands for zero."""
    low, high = packed % 16, packed // 16
    weights = np.stack([low, high], axis=2).reshape(n, 2 * m) - 8
    return {"out": weights * np.repeat(scales, 128, axis=1)[:, : 2 * m]}
