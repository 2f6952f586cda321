"""rope in float64."""

import numpy as np


def rope(
    positions: np.ndarray, query: np.ndarray, key: np.ndarray, table: np.ndarray, n: int, h: int, k: int, pairs: int
) -> dict[str, np.ndarray]:
    """Each pair (x[i], x[i + pairs]) of a head is turned by angle i of its token's position, in place."""
    angles = table[positions.astype(np.int64)][:, None, :]
    cosines, sines = angles[:, :, :pairs], angles[:, :, pairs:]

    def turned(x: np.ndarray) -> np.ndarray:
        first, second = x[:, :, :pairs], x[:, :, pairs:]
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=2)

    return {"query": turned(query), "key": turned(key)}
