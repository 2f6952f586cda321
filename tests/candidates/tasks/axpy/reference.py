"""axpy in float64."""


def axpy(x, y, alpha, n):
    """A scaled vector added to another."""
    return {"y": alpha * x + y}
