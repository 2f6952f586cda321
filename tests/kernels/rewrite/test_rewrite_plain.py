"""Sixteen plain kernels as they come: drafted with little to fill in, rewritten by rules, right at sampled points;
and where searches of their templates begin, by what limits the kernel."""

from pathlib import Path

import numpy as np
import pytest
from emulation import contents
from plain_kernels import KERNELS, SHAPES, drafted, write_tasks
from rewrite_cases import H200, kernel, plain_task, require_right, template_of

from tunesmith.kernels.rewrite.template import Limit, starts
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, LaunchGeometry, Template

WANTED = {
    **{"gelu": "VEC", "add_relu": "VEC", "dequantise": "VEC", "softmax": "KEEP", "layernorm": "KEEP"},
    **{"transpose": "PERMUTE", "matmul": "OUTPUT_TILE", "stencil1d": "WALK", "stencil2d": "WALK", "gather": "LOADS"},
    **{"row_sum": "SHUFFLES", "matvec": "LANES", "histogram": "OWN_BINS", "scale_rows": "ROW_VEC"},
}
"""The rewrite that each of these is there for."""
SLOW = pytest.mark.slow
GUARDS = ("transpose", "gelu", "softmax")
"""Those that are run on the CPU in the fast tests: one of each rewrite of the data's way."""


def points(task: Task, template: Template, count: int) -> list[Config]:
    """Some feasible points, and one for each rewrite of the data's way that changes nothing else."""
    space = feasible(template, [task.workloads[0]], H200)
    found = [space.config(point) for point in space.sample(np.random.default_rng(7), count)]
    for parameter in template.parameters:
        if parameter.name in ("VEC", "PERMUTE", "SHUFFLES", "KEEP", "ROW_VEC", "LOADS", "STORES"):
            config = {**template.default_config, parameter.name: parameter.values[1]}
            assert space.reject(config) is None
            found.append(config)
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_a_draft_asks_for_little_and_the_rules_make_a_template(name: str) -> None:
    task, left = drafted(name)
    asked = [one for one in left if not one.startswith(("the sizes you use", "an array for each", "the launch"))]
    # Only where indices are data, or may leave the array, is more asked than sizes and the reference.
    assert not asked or name in SHAPES, asked
    template = template_of(task)
    assert WANTED.get(name, "") in ("", *(one.name for one in template.parameters))


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(one, seed, marks=SLOW if seed or one not in GUARDS else ()) for one in KERNELS for seed in (0, 1)],
)
def test_no_rewrite_changes_results(name: str, seed: int) -> None:
    """At points, sizes and contents that are drawn: a fuzz test of all rewrites together."""
    task, _ = drafted(name)
    rng = np.random.default_rng([seed, *name.encode()])
    given = task.workloads[0]
    if seed and name != "dequantise":
        sizes = {size: int(rng.integers(1, value + 40)) for size, value in given.sizes.items()}
        given = given.model_copy(update={"sizes": sizes})
    template, arrays = template_of(task), contents(task, given, seed)
    for argument in task.arguments:
        if argument.name == "index":
            arrays["index"] = rng.integers(0, given.sizes["n"], arrays["index"].shape).astype(np.int32)
    space = feasible(template, [given], H200)
    chosen = [one for one in points(task, template, 1 + 3 * seed) if space.reject(one) is None]
    require_right(task, chosen, given, arrays)


def starts_of(task: Task, limit: Limit) -> tuple[Config, ...]:
    template = template_of(task)
    space = feasible(template, [task.workloads[0]], H200)
    found = starts(template, limit, lambda config: space.reject(config) is None)
    assert all(space.reject(config) is None for config in found)
    assert template.default_config not in found
    return found


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("gelu", {"VEC": 4, "STORES": 1}),
        ("transpose", {"PERMUTE": 32}),
        ("matmul", {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 4}),
        ("matvec", {"LANES": 32}),
        ("histogram", {"OWN_BINS": True, "BLOCK": 256}),
        ("row_sum", {"SHUFFLES": True, "ROW_VEC": 4}),
    ],
)
def test_what_is_reused_is_staged_and_what_streams_is_wide(name: str, first: Config) -> None:
    task, _ = drafted(name)
    found = starts_of(task, "memory")
    assert first.items() <= found[0].items()


def test_where_a_search_begins() -> None:
    loop = "for (int k = 0; k < n; ++k) s += a[r * n + k] * b[c * n + k];"
    at = "int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;"
    arrays = {"a": ("in", "int8", "n * n"), "b": ("in", "int8", "n * n"), "y": ("out", "int32", "n * n")}
    launch = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
    found = starts_of(
        kernel(f"{at} if (r < n && c < n) {{ int s = 0; {loop} y[r * n + c] = s; }}", arrays, launch), "compute"
    )
    assert {"OUTPUT_STEPS": 4, "OUTPUT_TILE": 128, "OUTPUT_ROWS": 8}.items() <= found[0].items()
    assert any(one["OUTPUT_STEPS"] == 1 and one["OUTPUT_TILE"] == 64 for one in found)
    found = starts_of(plain_task("merge_attn_states"), "memory")
    wanted = {"TEAM_ROWS": 4, "BLOCK": 16, "ROW_VEC": 8}
    assert wanted.items() <= found[0].items()
    # Once more with all that a point may save in arithmetic.
    assert {**wanted, "FAST_MATH": True, "INDEX_BITS": 32}.items() <= found[1].items()
    task, _ = drafted("gelu")
    by_limit = {limit: starts_of(task, limit) for limit in ("memory", "compute")}
    assert by_limit["compute"][0]["FAST_MATH"] is True and by_limit["memory"][0]["FAST_MATH"] is False
    assert len(by_limit["compute"]) == len(by_limit["memory"])
    task = plain_task("softmax")
    template = task.sources("cuda").baseline.template
    assert starts(template, "memory", lambda _: True) == ()


def test_tasks_at_large_sizes_are_written_for_measurements(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    for name in KERNELS:
        task = load_task(str(tmp_path / name))
        assert task.original_is_reference and [one.held_out for one in task.workloads] == [False, False, True]
