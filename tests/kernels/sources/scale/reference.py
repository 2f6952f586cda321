def scale(x, a, n):
    return {"y": a * x}
