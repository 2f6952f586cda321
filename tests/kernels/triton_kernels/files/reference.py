def run(x, y, n, step, alpha):
    return {"out": x + alpha * y}
