"""Where searches of templates by rules begin, by what limits the kernel."""

from __future__ import annotations

import pytest
from plain_kernels import drafted
from rewrite_cases import H200, kernel, plain_task, template_of

from tunesmith.kernels.rewrite.template import Limit, starts
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry


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


def test_a_plain_sum_of_products_begins_with_the_instruction_for_several_steps() -> None:
    loop = "for (int k = 0; k < n; ++k) s += a[r * n + k] * b[c * n + k];"
    at = "int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;"
    arrays = {"a": ("in", "int8", "n * n"), "b": ("in", "int8", "n * n"), "y": ("out", "int32", "n * n")}
    launch = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
    found = starts_of(
        kernel(f"{at} if (r < n && c < n) {{ int s = 0; {loop} y[r * n + c] = s; }}", arrays, launch), "compute"
    )
    assert {"OUTPUT_STEPS": 4, "OUTPUT_TILE": 128, "OUTPUT_ROWS": 8}.items() <= found[0].items()
    assert any(one["OUTPUT_STEPS"] == 1 and one["OUTPUT_TILE"] == 64 for one in found)


def test_short_rows_share_blocks() -> None:
    found = starts_of(plain_task("merge_attn_states"), "memory")
    wanted = {"TEAM_ROWS": 4, "BLOCK": 16, "ROW_VEC": 8}
    assert wanted.items() <= found[0].items()
    # Once more with all that a point may save in arithmetic.
    assert {**wanted, "FAST_MATH": True, "INDEX_BITS": 32}.items() <= found[1].items()


def test_what_computes_tries_its_arithmetic_before_its_accesses() -> None:
    task, _ = drafted("gelu")
    by_limit = {limit: starts_of(task, limit) for limit in ("memory", "compute")}
    assert by_limit["compute"][0]["FAST_MATH"] is True and by_limit["memory"][0]["FAST_MATH"] is False
    assert len(by_limit["compute"]) == len(by_limit["memory"])


def test_a_template_of_a_person_has_no_starts() -> None:
    task = plain_task("softmax")
    template = task.sources("cuda").baseline.template
    assert starts(template, "memory", lambda _: True) == ()
