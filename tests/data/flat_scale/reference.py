def flat_scale(x, a, rows, columns):
    return {"out": a * x}
