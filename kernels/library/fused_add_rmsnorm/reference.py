"""fused_add_rmsnorm in float64."""

import numpy as np


def fused_add_rmsnorm(
    input: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float, n: int, d: int
) -> dict[str, np.ndarray]:
    """Both arrays change in place: the residual becomes the sum, the input the sum's RMS norm times the weight."""
    total = residual + input
    scale = 1.0 / np.sqrt(np.mean(total * total, axis=1, keepdims=True) + eps)
    return {"input": total * scale * weight, "residual": total}
