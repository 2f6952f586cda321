"""embedding_bag in float64."""

import numpy as np


def embedding_bag(table: np.ndarray, rows: np.ndarray, n: int, k: int, d: int) -> dict[str, np.ndarray]:
    """The sum over each bag; a row may be in it more than once."""
    total = 0.0
    for j in range(k):
        total = total + table[rows[:, j].astype(np.int64)]
    return {"out": total}
