"""Kernels that nobody wrote: small ones drawn from a grammar, whose rewrites must all compute what they did.

Elementwise kernels with stencils and random indices, rows that a block shares, rows of one thread, and two-dimensional
ones: each is rewritten by the rules, and some points of the space are run as C++ beside the kernel as it came.
"""

import numpy as np
import pytest
from emulation import contents, run_kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewrite_cases import H200, LINE, ROWS, TURNS, task_of

from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.template import LaunchGeometry

SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 8)"), block=("16", "8"))
ARRAYS = {
    "x": ("in", "float32", "n * n"),
    "z": ("in", "float32", "n * n"),
    "k": ("in", "int32", "n * n"),
    "y": ("inout", "float32", "n * n"),
}


def combined(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions over `leaves`."""

    forms = st.sampled_from(["({} + {})", "{} * {}", "fmaxf({}, {})", "(n % 2 ? {} : {})"])
    return st.recursive(leaves, lambda inner: st.builds(str.format, forms, inner, inner), max_leaves=4)


@st.composite
def elementwise(draw: st.DrawFn) -> tuple[str, LaunchGeometry]:
    places = ["x[i]", "z[i]", "x[n - 1 - i]", "x[(i * 3 + 1) % n]", "z[k[i] % n]", "0.5f", "(float)i / n"]
    places += ["(i > 0 ? x[i - 1] : z[i])", "(i < n - 1 ? x[i + 1] : 0.0f)", "(i % 3 == 0 ? x[i] : z[i])", "v"]
    value = combined(st.sampled_from(places))
    heads = ["y[i] =", "y[i] +=", "v =", "if (i % 2 == 0) y[i] =", "for (int t = 0; t < n % 5; ++t) v +="]
    heads += ["if (x[i] > 1.0f) return; y[i] ="]
    line = st.builds("{} {};".format, st.sampled_from(heads), value)
    lines = " ".join(draw(st.lists(line, min_size=1, max_size=4)))
    wide = draw(st.sampled_from(["int i =", "size_t i = (size_t)", "const long long i = (long long)"]))
    at = f"{wide} blockIdx.x * blockDim.x + threadIdx.x;"
    if "return" in lines or draw(st.booleans()):
        return f"{at} if (i >= n) return; float v = 1; {lines} y[i] = v + y[i];", LINE
    return f"{at} if (i < n) {{ float v = 1; {lines} y[i] = v + y[i]; }}", LINE


@st.composite
def shared_rows(draw: st.DrawFn) -> tuple[str, LaunchGeometry]:
    read = ["r[i]", "z[i]", "x[blockIdx.x * n + i]", "r[n - 1 - i]", "z[blockIdx.x * n + i]", "s", "2.0f"]
    place = st.sampled_from(read)
    value = combined(place)
    summed = draw(combined(place.filter(lambda one: one != "s")))
    read = "y[blockIdx.x * n + i]" if draw(st.booleans()) else "r[i]"
    first = f"{TURNS} {{ y[blockIdx.x * n + i] = {draw(value)}; }}" if draw(st.booleans()) else ""
    return (
        f"""const float* r = x + blockIdx.x * n; __shared__ float part[64]; const int t = threadIdx.x; float s = 0;
        {first}
        {TURNS} s += {summed} + {read};
        part[t] = s;
        __syncthreads();
        for (int o = blockDim.x / 2; o > 0; o >>= 1) {{ if (t < o) part[t] += part[t + o]; __syncthreads(); }}
        s = part[0] / n;
        {TURNS} y[blockIdx.x * n + i] = {draw(value)} + {read};""",
        ROWS,
    )


@st.composite
def lone_rows(draw: st.DrawFn) -> tuple[str, LaunchGeometry]:
    mine = "y[row * n + i]"
    places = ["x[row * n + i]", "x[from + i]", "z[i]", "z[row]", "x[row * n + n - 1 - i]", mine, "(float)i", "w"]
    value = combined(st.sampled_from(places))
    row = draw(st.sampled_from(["const int row = blockIdx.x;", "const long long row = blockIdx.x;", "#"]))
    first = draw(st.sampled_from(["1.5f", "z[row]", "z[k[row] % n]", "x[row * n]"]))
    starts = ["const long long from = row * n", "size_t from = (size_t)row * n", "int from = row * n"]
    start = draw(st.sampled_from(starts))
    early = draw(st.sampled_from(["", "if (n % 2 && w > 0) return;", "if (w > 9) { y[row * n] = w; }"]))
    lines = " ".join(f"{TURNS} {mine} = {one};" for one in draw(st.lists(value, min_size=1, max_size=2)))
    text = f"{'' if row == '#' else row} float w = {first}; {early} {start}; {lines}"
    return text.replace("row", "blockIdx.x") if row == "#" else text, LaunchGeometry(grid=("n",), block=("64",))


@st.composite
def rows_of_a_thread(draw: st.DrawFn) -> tuple[str, LaunchGeometry]:
    read = ["x[i * n + j]", "z[j]", "z[j * n + i]", "x[i * n + n - 1 - j]", "0.25f", "(float)j / n"]
    value = combined(st.sampled_from(read))
    loop = "for (int j = 0; j < n; ++j)"
    step = draw(st.sampled_from(["s += {0};", "s -= {0};", "s = fmaxf(s, {0});", "{{ float e = {0}; s += e * e; }}"]))
    last = draw(st.sampled_from(["y[i] = s;", "y[i] += s * 2;", f"{loop} y[i * n + j] = x[i * n + j] - s / n;"]))
    once, twice = f"{loop} {step.format(draw(value))}", "for (int t = 0; t < 2; ++t) {{ {} }}"
    body = f"{{ float s = 1; {twice.format(once) if draw(st.booleans()) else once} {last} }}"
    if draw(st.booleans()):
        return f"{TURNS} {body}", LaunchGeometry(grid=("1",), block=("64",))
    return f"int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {body}", LINE


@st.composite
def squares(draw: st.DrawFn) -> tuple[str, LaunchGeometry]:
    around = ["(c > 0 ? x[r * n + c - 1] : 0.0f)", "(r < n - 1 ? x[(r + 1) * n + c] : x[r * n + c])"]
    value = combined(st.sampled_from(["x[r * n + c]", "x[c * n + r]", "z[r]", "1.5f", *around]))
    places = ["x[r * n + j]", "x[j * n + r]", "z[j * n + c]", "z[c * n + j]"]
    kind = draw(st.sampled_from(["one", "sum", "turn"]))
    body = f"y[r * n + c] = {draw(value)};"
    if kind == "turn":
        body = "y[c * n + r] = x[r * n + c];"
    if kind == "sum":
        a, b = draw(st.sampled_from(places[:2])), draw(st.sampled_from(places[2:]))
        to = draw(st.sampled_from(["r * n + c", "c * n + r"]))
        body = f"float s = 0; for (int j = 0; j < n; ++j) s += {a} * {b}; y[{to}] = s;"
    at = "int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;"
    return (f"{at} if (r >= n || c >= n) return; {body}", SQUARE)


def require_same(drawn: tuple[str, LaunchGeometry], n: int, seed: int) -> None:
    """The kernel as it came and two points of its space give the same. Points with more rewrites come first."""
    body, launch = drawn
    signature = "const float* x, const float* z, const int* k, float* y, int n"
    task = task_of("k_", f'extern "C" __global__ void k_({signature}) {{ {body} }}', ARRAYS, launch, {"n": "int32"})
    workload = task.workloads[0].model_copy(update={"sizes": {"n": n}})
    found = rewrite(task)
    assert found.template is not None, found.skipped
    template, rng = found.template, np.random.default_rng(seed)
    space = feasible(template, [workload], H200)
    points = [space.config(point) for point in space.sample(rng, 60)]
    default = template.default_config
    telling = {"VEC", "ROW_VEC", "KEEP", "PERMUTE", "OUTPUT_TILE", "LANES", "SHUFFLES", "TEAM_ROWS", "TEAM_BLOCKS"}
    telling |= {"WALK", "INDEX_BITS", "BLOCKED", "BLOCKED_X", "BLOCKED_Y"}
    points.sort(key=lambda one: -sum(one[name] != default[name] for name in telling if name in one))
    arrays = contents(task, workload, seed)
    pairs = [(task.sources("cuda").baseline.template, {}), *((template, config) for config in points[:2])]
    expected, *results = (one["y"] for one in run_kernels(pairs, task, workload, arrays))
    for config, got in zip(points, results, strict=False):
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True), (config, n, body)


KINDS = {one.__name__: one() for one in (elementwise, shared_rows, lone_rows, rows_of_a_thread, squares)}
FEW, MANY = (2, st.sampled_from([64, 37])), (15, st.integers(3, 90))
"""Examples and sizes."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tried", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_kernel_is_the_same_at_every_point(kind: str, tried: tuple[int, st.SearchStrategy[int]]) -> None:
    examples, sizes = tried
    options = settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    options(given(KINDS[kind], sizes, st.integers(0, 1000))(require_same))()
