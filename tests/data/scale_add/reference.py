"""scale_add in float64."""


def scale_add(x, y, a, n):
    return {"out": a * x + y}
