"""The block with which host code launches a kernel: read where it is constant, asked for where it is not."""

from __future__ import annotations

import pytest

from tunesmith.kernels.rewrite.draft import draft
from tunesmith.kernels.rewrite.host_launch import HostBlock, block_of_host

ROWS = """__global__ void k(const float* x, float* y, int n) {
    __shared__ float partial[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (int w = 0; w < blockDim.x / 32; ++w) sum += partial[w];
        y[blockIdx.x] = sum;
    }
}
"""
FLAT = """__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
"""
PLANE = """__global__ void k(const float* x, float* y, int w, int h) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < w && j < h) y[j * w + i] = x[j * w + i];
}
"""


@pytest.mark.parametrize(
    ("host", "threads"),
    [
        ("void f() { k<<<n, 128>>>(x, y, n); }", (128,)),
        ("void f() { own::k<float><<<dim3(n, 2), 64, 0, stream>>>(x, y, n); }", (64,)),
        ("#define THREADS 96\nvoid f() { k<<<n, THREADS>>>(x, y, n); }", (96,)),
        ("void f() { const int threads = 8 * 32; k<<<n, threads>>>(x, y, n); }", (256,)),
        ("constexpr int WARPS = 4;\nvoid f() { k<<<n, WARPS * 32>>>(x, y, n); }", (128,)),
        ("void f() { dim3 grid(n), block(32, 8); k<<<grid, block>>>(x, y, n); }", (32, 8)),
        ("void f() { dim3 block{16, 16, 2}; k<<<n, block>>>(x, y, n); }", (16, 16, 2)),
        ("void f() { auto block = dim3(64); k<<<n, block>>>(x, y, n); }", (64,)),
        ("void f() { k<<<n, 128>>>(x, y, n); k<<<2 * n, 128>>>(x, y, n); }", (128,)),
        ("void f() { k<<<n, 128>>>(x, y, n); k<<<n, 256>>>(x, y, n); }", ()),
        ("void f(int threads) { k<<<n, threads>>>(x, y, n); }", ()),
        ("void f() { int t = 32; while (t < n) t *= 2; t = 64; k<<<n, t>>>(x, y, n); }", ()),
        ("void f() { k<<<n, min(1024, n)>>>(x, y, n); }", ()),
    ],
)
def test_a_block_is_read_where_it_is_constant(host: str, threads: tuple[int, ...]) -> None:
    found = block_of_host(ROWS + host, "k")
    assert found is not None and found.threads == threads


def test_only_launches_of_the_kernel_count() -> None:
    assert block_of_host(ROWS, "k") is None
    assert block_of_host(ROWS + "void f() { other<<<n, 64>>>(x); // k<<<n, 32>>>(x);\n}", "k") is None
    assert block_of_host("void f() { k<<<1, 2>>>(); }", "k") == HostBlock((2,), ("2",))


@pytest.mark.parametrize(
    ("code", "host", "launch"),
    [
        (ROWS, "k<<<n, 256>>>(x, y, n);", 'grid = ["rows"], block = [256]'),
        (FLAT, "k<<<n, 64>>>(x, y, n);", 'grid = ["ceil_div(n, 64)"], block = [64]'),
        (PLANE, "k<<<g, dim3(16, 8)>>>(x, y, w, h);", 'grid = ["ceil_div(w, 16)", "ceil_div(h, 8)"], block = [16, 8]'),
        (PLANE, "k<<<g, 64>>>(x, y, w, h);", 'grid = ["ceil_div(w, 64)", "ceil_div(h, 1)"], block = [64, 1]'),
    ],
)
def test_a_draft_has_the_block_of_the_source(code: str, host: str, launch: str) -> None:
    made = draft(f"{code}void f() {{ {host} }}\n", None, "my.cu")
    assert f"launch = {{ {launch} }}" in made.files["task.toml"].splitlines()


def test_a_block_that_depends_on_something_is_to_be_filled_in() -> None:
    made = draft(FLAT + "void f(int t) { k<<<n, t>>>(x, y, n); }\n", None, "my.cu")
    assert "# FILL: the block, which the source launches as t" in made.files["task.toml"]


@pytest.mark.parametrize(("extra", "block"), [("", 256), ("    all[threadIdx.x] = sum;\n", 128)])
def test_shared_memory_for_some_threads_says_nothing_of_the_block(extra: str, block: int) -> None:
    """Sums of warps have 32 elements whatever the block; an element for every thread is another matter."""
    code = ROWS.replace("    float sum = 0.0f;\n", "    __shared__ float all[128];\n    float sum = 0.0f;\n", 1)
    code = code.replace(
        "    if (threadIdx.x == 0) {",
        f"{extra}    if (threadIdx.x < 32) sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;\n"
        "    if (threadIdx.x == 0) {",
    )
    assert f"block = [{block}] }}" in draft(code, None, "my.cu").files["task.toml"]
