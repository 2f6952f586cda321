"""Sums over tiles in shared memory, in the ways that textbooks write them."""

import pytest
from rewrite_cases import H200, LINE, Arrays, kernel, require_equal, rewritten, template_of

from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry

MATRICES: Arrays = {name: ("in", "float32", "n * n") for name in "ab"} | {"y": ("out", "float32", "n * n")}
WHOLE: Arrays = {**{name: ("in", "int32", "n * n") for name in "ab"}, "y": MATRICES["y"]}
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
EXACT = LaunchGeometry(grid=("n // 16", "n // 16"), block=("16", "16"))
UNKNOWN = LaunchGeometry(grid=("n // 16", "min(n, 640) // 16"), block=("16", "16"))
LINES = LaunchGeometry(grid=("n // 16", "n // 16"), block=("256",))
TILES = "__shared__ float s[16][16], t[16][17]; float sum = 0;"
AT = "int x = threadIdx.x, y_ = threadIdx.y, r = blockIdx.y * 16 + y_, c = blockIdx.x * 16 + x;"
ADD = "__syncthreads(); for (int i = 0; i < 16; ++i) sum += s[y_][i] * t[i][x]; __syncthreads();"
STORE = "if (r < n && c < n) y[r * n + c] = sum;"
BRANCHES = f"""{AT} {TILES}
    for (int m = 0; m < (n - 1) / 16 + 1; ++m) {{
        if (r < n && m * 16 + x < n) s[y_][x] = a[r * n + m * 16 + x]; else s[y_][x] = 0;
        if (c < n && m * 16 + y_ < n) t[y_][x] = b[(m * 16 + y_) * n + c]; else t[y_][x] = 0.0f;
        {ADD}
    }}
    {STORE}"""
CHOICES = f"""{AT} {TILES}
    for (int k = 0; k < n; k += 16) {{
        __syncthreads();
        s[y_][x] = r < n && k + x < n ? a[r * n + k + x] : 0;
        t[x][y_] = k + y_ < n && c < n ? __ldg(&b[(k + y_) * n + c]) : 0;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum = fmaf(s[y_][i], t[x][i], sum);
    }}
    {STORE}"""
TRANSPOSED = f"""{AT} __shared__ float s[256], t[256]; float sum = 0;
    const int tiles = (n + 15) / 16;
    for (int m = 0; m < tiles; ++m) {{
        const int k = m * 16 + x, other = blockIdx.x * 16 + y_;
        s[y_ * 16 + x] = r < n && k < n ? a[r * n + k] : 0;
        t[x * 16 + y_] = k < n && other < n ? b[other * n + k] : 0;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += s[y_ * 16 + i] * t[i * 16 + x];
        __syncthreads();
    }}
    {STORE}"""
STEPPED = f"""int bx = blockIdx.x, by = blockIdx.y, x = threadIdx.x, y_ = threadIdx.y;
    int begin = n * 16 * by, end = begin + n - 1; float sum = 0;
    for (int k = begin, l = 16 * bx; k <= end; k += 16, l += 16 * n) {{
        __shared__ float s[16][16]; __shared__ float t[16][16];
        s[y_][x] = a[k + n * y_ + x]; t[y_][x] = b[l + n * y_ + x];
        {ADD}
    }}
    y[n * 16 * by + 16 * bx + n * y_ + x] = sum;"""
SHORT = f"""{AT} {TILES}
    for (int m = 0; m < n / 16; ++m) {{
        s[y_][x] = a[r * n + m * 16 + x]; t[y_][x] = b[(m * 16 + y_) * n + c];
        {ADD}
    }}
    y[r * n + c] = sum;"""
TAIL = SHORT.replace("= a[", "= r >= n ? 0 : a[").replace("= b[", "= c >= n ? 0 : b[").replace("y[r * n + c] =", "")
ADVANCING = """const int row = blockIdx.x, col = blockIdx.y, r = threadIdx.x / 16, c = threadIdx.x % 16;
    __shared__ float s[16 * 16], t[16 * 16]; float sum = 0;
    a += row * 16 * n; b += col * 16; y += row * 16 * n + col * 16;
    for (int k = 0; k < n; k += 16) {
        s[r * 16 + c] = a[r * n + c]; t[r * 16 + c] = b[r * n + c];
        __syncthreads();
        a += 16; b += 16 * n;
        for (int i = 0; i < 16; ++i) sum += s[r * 16 + i] * t[i * 16 + c];
        __syncthreads();
    }
    y[r * n + c] = 2 * sum;"""
PAIRS = """int i = blockIdx.x * blockDim.x + threadIdx.x; __shared__ float s[64]; float sum = 0;
    for (int m = 0; m < (n + 63) / 64; ++m) {
        s[threadIdx.x] = m * 64 + threadIdx.x < n ? a[m * 64 + threadIdx.x] : 0;
        __syncthreads();
        for (int k = 0; k < 64; ++k) sum += s[k] / (1 + b[i] * b[i]);
        __syncthreads();
    }
    if (i < n) y[i] = sum;"""
POINTS: list[Config] = [
    {},
    {"OUTPUT_TILE": 32, "OUTPUT_ROWS": 2, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 16},
    {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 8, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 8},
]


def product(body: str, launch: LaunchGeometry = SQUARE) -> Task:
    return kernel(body, MATRICES, launch)


@pytest.mark.parametrize(
    ("task", "n"),
    [
        (product(BRANCHES), 75),
        (product(CHOICES), 75),
        (product(TRANSPOSED), 75),
        (product(BRANCHES.replace("c < n) y", "c < n && sum > 0) y")), 75),
        (kernel(BRANCHES.replace("t[i][x]", "t[i][x] / 3"), WHOLE, SQUARE), 75),
        (product(STEPPED, EXACT), 64),
        (product(SHORT, EXACT), 64),
        (product(TAIL + STORE), 75),
        (product(ADVANCING, LINES), 64),
        (product(BRANCHES.replace("for (int i", "if (r < n && c < n) for (int i")), 75),
    ],
)
def test_the_author_s_tiles_give_way_to_tiles_of_any_size(task: Task, n: int) -> None:
    assert "__shared__ float s" not in template_of(task).source
    require_equal(task, POINTS, n)


def test_a_sum_for_each_thread_takes_lanes() -> None:
    require_equal(product(PAIRS, LINE), [{}, {"LANES": 8}, {"LANES": 32}], 203)


def test_tiles_divide_rows_whose_number_the_kernel_does_not_know() -> None:
    task = product(STEPPED, UNKNOWN)
    require_equal(task, POINTS, 64)
    template = template_of(task)
    big = template.default_config | {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 4, "OUTPUT_COLUMNS": 4}
    sizes = [task.workloads[0].model_copy(update={"sizes": {"n": n}}) for n in (64, 96)]
    assert [feasible(template, [one], H200).reject(big) is None for one in sizes] == [True, False]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i < 16", "i < 15"),
        ("i < 16", "i <= 14"),
        ("sum += s", "sum += m * s"),
        ("sum += s", "sum += x * s"),
        ("sum += s", "sum += 1 + s"),
        ("s[y_][x] =", "sum *= 2; s[y_][x] ="),
        ("t[i][x]", "t[i][x ^ 1]"),
        ("t[i][x]", "t[i + 1][x]"),
        ("? a[", "? (float)r + a["),
        ("r < n && m", "r < n - 1 && m"),
        ("+ x] : 0", "+ x] : 1"),
        ("m * 16 + x]", "m * 15 + x]"),
        ("s[y_][x] =", "s[y_][x & 7] ="),
        ("s[y_][x] =", "s[x][x] ="),
        ("__syncthreads(); for", "__syncthreads(); s[y_][x] *= 2; __syncthreads(); for"),
        ("__syncthreads(); for", "for"),
        ("if (r < n && c < n) y[r * n + c]", "if (r < n && c < n) y[(r * n + c) * (int)s[0][0]]"),
        ("if (r < n && c < n)", "if (r < n)"),
    ],
)
def test_look_alikes_keep_their_tiles(old: str, new: str) -> None:
    body = BRANCHES.replace("if (r < n && m * 16 + x < n) s[y_][x] = a[", "s[y_][x] = r < n && m * 16 + x < n ? a[")
    body = body.replace("+ x]; else s[y_][x] = 0;", "+ x] : 0;")
    assert old in body
    template = rewritten(product(body.replace(old, new))).template
    assert template is None or "OUTPUT_TILE" not in template.default_config
