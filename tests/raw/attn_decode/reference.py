"""attn_decode in float64."""

import numpy as np


def attn_decode(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, b: int, h: int, m: int, s: int, e: int
) -> dict[str, np.ndarray]:
    """Each head has keys and values of its own, and every query sees all of them."""
    scores = scale * (q @ np.swapaxes(keys, 2, 3))
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    return {"out": weights @ values / weights.sum(axis=3, keepdims=True)}
