import triton
import triton.language as tl

FIXED = {"UNROLL": 1, "rows": None}


@triton.jit
def scale(x_ptr, out_ptr, factor, n, rows, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Of n elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in tl.static_range(UNROLL):
        tl.store(out_ptr + at, factor * tl.load(x_ptr + at, mask=at < n), mask=at < n)
