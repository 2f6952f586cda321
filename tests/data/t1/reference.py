def add(a, b, n):
    return {"c": a + b}
