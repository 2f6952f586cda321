import numpy as np


def spmv(starts, column, value, x, n):
    starts = starts.astype(int)
    assert starts[0] == 0 and starts[-1] == value.size and (np.diff(starts) >= 0).all()
    products = value * x[column.astype(int)]
    return {"y": np.array([products[a:b].sum() for a, b in np.stack([starts[:-1], starts[1:]], 1)])}
