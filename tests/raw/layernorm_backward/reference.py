"""layernorm_backward in float64."""

import numpy as np


def layernorm_backward(
    gradient: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray,
    n: int,
    d: int,
) -> dict[str, np.ndarray]:
    """mean and rstd are what they are, whether or not they are those of x."""
    z, w = (x - mean[:, None]) * rstd[:, None], weight * gradient
    dx = rstd[:, None] * (w - w.mean(axis=1, keepdims=True) - z * (w * z).mean(axis=1, keepdims=True))
    return {"dx": dx, "dweight": dweight + (gradient * z).sum(axis=0), "dbias": dbias + gradient.sum(axis=0)}
