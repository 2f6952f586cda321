"""conv3x3 in float64."""

import numpy as np


def conv3x3(
    x: np.ndarray, filters: np.ndarray, bias: np.ndarray, n: int, c: int, o: int, h: int, w: int
) -> dict[str, np.ndarray]:
    """The filter is not turned round, as in neural networks: its first weight is for the pixel above on the left."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = bias[:, None]
    for i in range(3):
        for j in range(3):
            total = total + filters[:, :, i, j] @ padded[:, :, i : i + h, j : j + w].reshape(n, c, h * w)
    return {"out": total.reshape(n, o, h, w)}
