"""csr_spmv in float64."""

import numpy as np


def csr_spmv(
    offsets: np.ndarray, columns: np.ndarray, elements: np.ndarray, x: np.ndarray, n: int, m: int, nnz: int
) -> dict[str, np.ndarray]:
    """A row may be empty, and a column may occur in it more than once."""
    places = np.cumsum(np.ones_like(columns)) - 1
    rows = np.searchsorted(offsets[1:], places, side="right")
    return {"out": np.bincount(rows, weights=elements * x[columns.astype(np.int64)], minlength=n)}
