"""Elements of a thread that go through the kernel's loops in step."""

from __future__ import annotations

import pytest
from rewrite_cases import LINE, Arrays, kernel, require_equal, require_refused, rewritten

from tunesmith.kernels.spec.template import LaunchGeometry

ARRAYS: Arrays = {"x": ("in", "float32", "n * n"), "w": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
AT = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
SUM = f"{AT} if (i >= n) return; float s = w[i];"
ROUND = "for (int k = 0; k < n; ++k)"
SKIPPING = "{ if (w[k] < -1) continue; if (w[k] > 2) break; s += x[k * n + i]; }"
CONFIGS = [{"JAM": 2}, {"JAM": 4, "ITEMS": 2, "BLOCK": 64, "UNROLL": 2}]
EXACT = LaunchGeometry(grid=("n // 32",), block=("32",))


@pytest.mark.parametrize(
    "body",
    [
        f"{SUM} {ROUND} s += x[k * n + i] * w[k]; y[i] = s;",
        f"{SUM} int at = i; {ROUND} {{ s += x[at]; at += n; }} y[i] += s;",
        f"{SUM} int row = 0; {ROUND} {{ s += x[row + i]; row += n; }} y[i] = s + row;",
        f"{SUM} const float* p = x + i; {ROUND} {{ s += *p; p += n; }} y[i] = s;",
        f"{SUM} float t = 1; if (n < 3) return; {ROUND} {{ float v = x[k * n + i]; s += v; t *= v; }} y[i] = s + t;",
        f"{SUM} {ROUND} for (int j = 0; j < 2; ++j) {{ if (x[k + j] < w[i]) continue; s += x[k * n + i]; }} y[i] = s;",
        f"{SUM} {ROUND} {{ int j = 0; while (j < i % 3) s += x[k * n + j++]; }} y[i] = s;",
        f"{SUM} {ROUND} {{ if (x[k * n + i] > 2.6f) return; s += x[k * n + i]; }} y[i] = s;",
        f"{SUM} {ROUND} {SKIPPING} y[i] = s;",
        f"{AT} if (i < n) {{ float s = 0; {ROUND} s += x[k * n + i]; y[i] = s; }}",
    ],
)
def test_elements_in_step_compute_what_each_did_alone(body: str) -> None:
    require_equal(kernel(body, ARRAYS, LINE), [one for one in CONFIGS], n=71)


def test_a_kernel_without_a_guard_has_as_many_threads_as_it_came_with() -> None:
    body = f"{AT} float s = 0; {ROUND} s += x[k * n + i]; y[i] = s;"
    require_equal(kernel(body, ARRAYS, EXACT), [{"JAM": 2}], n=128)


STRIDE = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
GRID = LaunchGeometry(grid=("2",), block=("16",))


@pytest.mark.parametrize(
    "body",
    [
        f"float f = w[0]; {STRIDE} {{ float s = f; {ROUND} s += x[k * n + i] * w[k]; y[i] = s; }}",
        f"{STRIDE} {{ if (w[i] < 0) continue; float s = 0; {ROUND} {SKIPPING} y[i] += s; }}",
    ],
)
def test_rounds_over_the_grid_go_in_step(body: str) -> None:
    require_equal(kernel(body, ARRAYS, GRID), [{"JAM": 2}, {"JAM": 4, "ITEMS": 2}], n=71)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"{SUM} for (int k = 0; k < i; ++k) s += x[k]; y[i] = s;", "is the same for neighbours"),
        (f"{SUM} {ROUND} {{ if (x[k * n + i] < 0) break; s += x[k * n + i]; }} y[i] = s;", "is the same"),
        (f"{SUM} float p[2]; {ROUND} p[k % 2] = x[k * n + i]; y[i] = s + p[0];", "p is more"),
        (f"{SUM} {ROUND} s += y[k]; y[i] = s + x[i];", "y is written"),
        (f"{SUM} {ROUND} {{ float& r = s; r += x[k * n + i]; }} y[i] = s;", "more than a value"),
        (
            f"{STRIDE} {{ float s = 0; if (w[i] > 9) return; {ROUND} s += x[k * n + i]; y[i] = s; }}",
            "end inside a loop",
        ),
        (f"{SUM} auto t = s; {ROUND} t += x[k * n + i]; y[i] = t;", "no type"),
    ],
)
def test_loops_that_ask_for_the_element_stay(body: str, why: str) -> None:
    require_refused(kernel(body, ARRAYS, LINE), {"JAM"}, why)


def test_what_is_the_same_for_all_elements_is_read_once() -> None:
    body = f"{SUM} {ROUND} {{ const float f = w[k]; s += x[k * n + i] * f; }} y[i] = s;"
    template = rewritten(kernel(body, ARRAYS, LINE)).template
    assert template is not None
    loop = template.source.split("#if JAM > 1")[-1].split("for (int k")[1]
    assert loop.index("w[k]") < loop.index("#pragma unroll") < loop.index("x[k * n + i")
