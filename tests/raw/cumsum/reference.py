"""cumsum in float64."""

import numpy as np


def cumsum(x: np.ndarray, n: int, d: int) -> dict[str, np.ndarray]:
    """Each element with all before it in its row."""
    return {"out": np.cumsum(x, axis=1)}
