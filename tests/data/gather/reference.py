def gather(table, index, n, d):
    return {"out": table[index.astype(int)]}
