"""Sums over tiles in shared memory, in the ways that textbooks write them."""

from pathlib import Path

import pytest
from rewrite_cases import H200, LINE, Arrays, require_equal, rewritten, task_of, template_of

from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry

MATRICES: Arrays = {name: ("in", "float32", "n * n") for name in "ab"} | {"y": ("out", "float32", "n * n")}
INTEGERS: Arrays = {**{name: ("in", "int32", "n * n") for name in "ab"}, "y": MATRICES["y"]}
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
EXACT = LaunchGeometry(grid=("n // 16", "n // 16"), block=("16", "16"))
UNKNOWN = LaunchGeometry(grid=("n // 16", "min(n, 640) // 16"), block=("16", "16"))
LINES = LaunchGeometry(grid=("n // 16", "n // 16"), block=("256",))
POINTS: list[Config] = [
    {},
    {"OUTPUT_TILE": 32, "OUTPUT_ROWS": 2, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 16},
    {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 8, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 8},
]


def tiled(name: str, *changes: tuple[str, str], launch: LaunchGeometry = SQUARE, arrays: Arrays = MATRICES) -> Task:
    """The task of a kernel in tiled/, of whose text parts are replaced."""
    code = (Path(__file__).with_name("tiled") / f"{name}.cu").read_text()
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return task_of("k", code, arrays, launch, {"n": "int32"})


INTEGER_DIVISION = ("const float* a, const float* b", "const int* a, const int* b"), ("t[i][x]", "t[i][x] / 3")


@pytest.mark.parametrize(
    ("task", "n"),
    [
        (tiled("branches"), 75),
        (tiled("choices"), 75),
        (tiled("transposed"), 75),
        (tiled("mixed", ("c < n) y", "c < n && sum > 0) y")), 75),
        (tiled("mixed", ("for (int i", "if (r < n && c < n) for (int i")), 75),
        (tiled("branches", *INTEGER_DIVISION, arrays=INTEGERS), 75),
        (tiled("stepped", launch=EXACT), 64),
        (tiled("short", launch=EXACT), 64),
        (tiled("tail"), 75),
        (tiled("advancing", launch=LINES), 64),
    ],
)
def test_the_author_s_tiles_give_way_to_tiles_of_any_size(task: Task, n: int) -> None:
    assert "__shared__ float s" not in template_of(task).source
    require_equal(task, POINTS, n)


def test_a_sum_for_each_thread_takes_lanes() -> None:
    require_equal(tiled("pairs", launch=LINE), [{}, {"LANES": 8}, {"LANES": 32}], 203)


def test_tiles_divide_rows_whose_number_the_kernel_does_not_know() -> None:
    task = tiled("stepped", launch=UNKNOWN)
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
        ("for (int i", "s[y_][x] *= 2; __syncthreads(); for (int i"),
        ("__syncthreads();\n        for", "for"),
        ("if (r < n && c < n) y[r * n + c]", "if (r < n && c < n) y[(r * n + c) * (int)s[0][0]]"),
        ("if (r < n && c < n)", "if (r < n)"),
    ],
)
def test_look_alikes_keep_their_tiles(old: str, new: str) -> None:
    template = rewritten(tiled("mixed", (old, new))).template
    assert template is None or "OUTPUT_TILE" not in template.default_config
