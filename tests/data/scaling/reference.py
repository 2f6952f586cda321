def scale(x_ptr, factor, n):
    return {"out_ptr": factor * x_ptr}
