"""Templates by rules: every point compiles and computes what the baseline does, the default is the baseline; where
searches begin, by what limits the kernel. Templates and drafts are the same in every process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import contents
from plain_kernels import KERNELS, SHAPES, draft_of, drafted, write_tasks
from rewrite_cases import (
    H200,
    LIBRARY_NAMES,
    LINE,
    OWN,
    RAW,
    RAW_NAMES,
    SAXPY,
    SERIES,
    kernel,
    plain_task,
    require_right,
    rewritten,
    template_of,
)

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.template import Limit, left_alone, rewrite, starts, with_rules
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.taskfile import LIBRARY, load_task, read_task
from tunesmith.kernels.spec.template import Config, LaunchGeometry, Template
from tunesmith.kernels.spec.validation import validate_template

SMALL = {"n": 5, "d": 333, "h": 3, "half": 8, "w": 45, "e": 40, "k": 3, "m": 20}
EMULATED = (*OWN, "int8_quant", "layernorm", "rope", "stencil3x3", *(one for one in LIBRARY_NAMES if one != "gemm"))
PLAIN = tuple(f"plain {one}" for one in KERNELS)
WANTED = {
    **{"gelu": "VEC", "add_relu": "VEC", "dequantise": "VEC", "softmax": "KEEP", "layernorm": "KEEP"},
    **{"transpose": "PERMUTE", "matmul": "OUTPUT_TILE", "stencil1d": "WALK", "stencil2d": "WALK", "gather": "LOADS"},
    **{"row_sum": "SHUFFLES", "matvec": "LANES", "histogram": "OWN_BINS", "scale_rows": "ROW_VEC"},
}
"""The rewrite that each of these is there for."""
FAST = ("early", "softmax", "plain transpose", "plain gelu", "plain softmax")
"""Those that are run on the CPU in the fast tests: one of each rewrite of the data's way."""


def points(template: Template, workload: Workload, count: int) -> list[Config]:
    """The default and `count` feasible points."""
    space = feasible(template, [workload], H200)
    sampled = space.sample(np.random.default_rng(5), count)
    return [template.default_config, *(space.config(point) for point in sampled)]


def task_named(name: str) -> Task:
    return drafted(name.removeprefix("plain "))[0] if name in PLAIN else plain_task(name)


@pytest.mark.parametrize("name", [*OWN, *RAW_NAMES, *LIBRARY_NAMES, *PLAIN])
class TestEveryKernel:
    def test_its_template_is_sound_and_begins_with_the_baseline(self, name: str) -> None:
        task = task_named(name)
        template, plain = template_of(task), task.sources("cuda").baseline.template
        validate_template(template, task, "here")
        for workload in task.workloads:
            assert geometry(template, template.default_config, workload) == geometry(plain, {}, workload)
            assert feasible(template, [workload], H200).reject(template.default_config) is None

    @pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.slow)])
    def test_its_points_compile_and_its_default_to_the_same_code(self, name: str, count: int, nvrtc: Any) -> None:
        task = task_named(name)
        template, workload, plain = template_of(task), task.workloads[0], task.sources("cuda").baseline.template
        registers = []
        for config in points(template, workload, count):
            source = specialise(template, config, workload.types)
            assert refuse(source) is None
            artifact = nvrtc.compile(source)
            assert isinstance(artifact, Artifact), (config, artifact)
            assert compiler_rejection(H200, geometry(template, config, workload), artifact.resources) is None, config
            registers.append(artifact.resources.registers)
        came = nvrtc.compile(specialise(plain, plain.default_config, workload.types))
        assert isinstance(came, Artifact)
        assert registers[0] == came.resources.registers, "the default is the first point"


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
    [
        pytest.param(name, seed, marks=pytest.mark.slow if seed or name not in FAST else ())
        for name in (*EMULATED, *PLAIN)
        for seed in ((0, 1) if name in PLAIN else (0,))
    ],
)
def test_no_rewrite_changes_results(name: str, seed: int) -> None:
    """At points, sizes and contents that are drawn, and at one for each rewrite of the data's way that changes nothing
    else: a fuzz test of all rewrites together. Nothing divides the sizes of those that are not plain."""
    task, rng = task_named(name), np.random.default_rng([seed, *name.removeprefix("plain ").encode()])
    template, given = template_of(task), task.workloads[1 if name in OWN else 0]
    if name in EMULATED and name not in OWN:
        sizes = {size: SMALL[size] for size in task.size_names}
        given = Workload(name="small", sizes=sizes, types=dict.fromkeys(task.types, "float32"))
    elif seed and name != "plain dequantise":
        sizes = {size: int(rng.integers(1, value + 40)) for size, value in given.sizes.items()}
        given = given.model_copy(update={"sizes": sizes})
    arrays, space = contents(task, given, seed), feasible(template, [given], H200)
    for argument in task.arguments:
        if argument.name == "index":
            arrays["index"] = rng.integers(0, given.sizes["n"], arrays["index"].shape).astype(np.int32)
    alone = ("VEC", "PERMUTE", "SHUFFLES", "KEEP", "ROW_VEC", "LOADS", "STORES")
    of_one = [{**template.default_config, one.name: one.values[1]} for one in template.parameters if one.name in alone]
    assert seed or name in EMULATED or all(space.reject(one) is None for one in of_one)
    chosen = points(template, given, 3 if name in EMULATED else 1 + 3 * seed)
    require_right(task, chosen + [one for one in of_one if space.reject(one) is None], given, arrays)


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
    assert first.items() <= starts_of(drafted(name)[0], "memory")[0].items()


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


class TestWithRules:
    def test_templates_backends_and_names_that_are_there_stay(self) -> None:
        task, _ = with_rules(SAXPY, "cuda")
        assert [one.name for one in task.sources("cuda").templates] == ["by-rules"]
        assert with_rules(task, "cuda") == (task, ())
        assert with_rules(SAXPY, "opencl") == (SAXPY, ())
        names = [one.name for one in template_of(SAXPY).parameters]
        assert "TUNED_BLOCK" in names and "ITEMS" in names
        # Only what the kernel reaches is judged.
        other = '__global__ void other(float* p) { asm volatile(""); p[0] = tex2D<float>(0, 1, 2); }'
        assert template_of(kernel("/* asm tex2D */ y[threadIdx.x] = 1;", SERIES, LINE, other))
        task = plain_task("bare")
        template, workload = template_of(task), task.workloads[0]
        for config in points(template, workload, 40):
            where = geometry(template, config, workload)
            assert where.grid[0] * where.block[0] * int(config["ITEMS"]) * int(config["VEC"]) == 8 * workload.sizes["n"]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("tex2D<float>(0, 1, 2);", "tex2D"),
            ("saxpy<<<1, 2>>>(x, y, a, n);", "launches kernels"),
            ("cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());", "cooperative groups"),
            ("n = undeclared_here[", "clang does not understand"),
        ],
    )
    def test_odd_code_is_left_alone_with_the_reason(self, line: str, why: str) -> None:
        task = self.with_line(line)
        kept, reasons = with_rules(task, "cuda")
        assert kept is task and why in " ".join(reasons)

    def test_a_draft_that_cannot_be_read_is_left_alone_with_the_reason(self) -> None:
        (why,) = left_alone({"baseline.cu": "__global__ void other() {}"}, "saxpy")
        assert "there is no kernel 'saxpy'" in why

    @pytest.mark.parametrize(
        ("line", "why", "names"),
        [
            ('asm volatile("mov.u32 %0, 1;" : "=r"(n));', "inline assembly", ()),
            ("if (threadIdx.x > n) return; __syncthreads();", "barrier", ("LOADS",)),
            ("if (y[0] > 0) return; meet();", "barrier", ("LOADS",)),
            ("switch (threadIdx.x) { default: if (n) return; } meet();", "barrier", ("LOADS",)),
        ],
    )
    def test_threads_that_nobody_follows_keep_their_work(self, line: str, why: str, names: tuple[str, ...]) -> None:
        made = rewrite(self.with_line(line))
        assert made.template is not None and why in made.refused["block_size"]
        assert tuple(made.template.default_config) == (*names, "MIN_BLOCKS")

    def test_rules_may_be_withdrawn(self) -> None:
        assert not rewrite(SAXPY, only=()).rules
        assert list(rewrite(SAXPY, only=["launch_bounds"]).rules) == ["launch_bounds"]

    @staticmethod
    def with_line(line: str) -> Task:
        """A task whose kernel has one line more."""
        plain = SAXPY.sources("cuda").baseline
        code = (
            "#include <cooperative_groups.h>\n__device__ void meet() { __syncthreads(); }\n"
            + plain.template.source.replace("int i", f"{line}\n    int i")
        )
        template = plain.template.model_copy(update={"source": code})
        sources = SAXPY.backends["cuda"].model_copy(
            update={"baseline": plain.model_copy(update={"template": template})}
        )
        return SAXPY.model_copy(update={"backends": {"cuda": sources}})

    @pytest.mark.parametrize(("extents", "free"), [(("1", "1"), True), (("2", "1"), False)])
    def test_the_rank_of_a_thread_counts_along_x_alone(self, extents: tuple[str, str], free: bool) -> None:
        more = "#include <cooperative_groups.h>"
        body = "auto i = cooperative_groups::this_grid().thread_rank(); if (i < n) y[i] = 2 * x[i];"
        launch = LaunchGeometry(grid=("ceil_div(n, 64)", extents[0]), block=("64", extents[1]))
        assert ("BLOCK" in template_of(kernel(body, SERIES, launch, more)).default_config) is free


DATA = RAW.parent / "data"
NAMES = ("first", "second", "third", "fourth")
ARRAYS = {name: ("in", "float32", "n * n") for name in "ab"} | {name: ("inout", "float32", "n * n") for name in NAMES}
TURNS = "for (int k = threadIdx.x; k < n; k += blockDim.x)"
BACKWARDS = " ".join(f"{name}[r * n + k] += {name}[r * n + n - 1 - k];" for name in NAMES)
SUMS = """int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    float s = 0, t = 0, u = 0, v = 0;
    for (int k = 0; k < n; ++k) { s += a[r * n + k] * b[k * n + c]; t += s; u += t; v += u; }
    first[r * n + c] = s + t + u + v;"""
EACH = "int r = blockIdx.x * blockDim.x + threadIdx.x; if (r >= n) return; for (int k = 0; k < n; ++k)"
ELEMENTS = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) first[i] = a[i];"
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
HALF, CUBE = LaunchGeometry(grid=("n // 2",), block=("64",)), LaunchGeometry(grid=("n",), block=("8", "4", "2"))
SEVERAL = {
    "sums": kernel(SUMS, ARRAYS, SQUARE),
    "lanes": kernel(f"{EACH} {{ {BACKWARDS} }}", ARRAYS, LINE),
    "turns": kernel(f"int r = blockIdx.x; {TURNS} {{ {BACKWARDS} }} {TURNS} {{ {BACKWARDS} }}", ARRAYS, HALF),
    "axes": kernel(ELEMENTS, ARRAYS, CUBE),
}
"""Kernels with several sums, arrays or axes that a rule names in its code or in its reason."""


def sources(folders: list[str]) -> Iterator[tuple[str, Task]]:
    for file in sorted(file for folder in folders for file in Path(folder).glob("*/task.toml")):
        yield str(file), read_task(file)
    yield from ((name, drafted(name)[0]) for name in KERNELS)
    yield from (OWN | SEVERAL).items()


def everything(folders: list[str]) -> dict[str, object]:
    """What the rules make of each source, with those of tasks in `folders`, and the drafts of the plain kernels."""
    made: dict[str, object] = {}
    for name, task in sources(folders):
        for backend in task.backends:
            found = rewritten(task) if [backend] == [*task.backends] else rewrite(task, backend)
            template, skipped = found.template, found.skipped
            made[f"{name} {backend}"] = [skipped, template and [template.id, template.model_dump(mode="json")]]
    for name in KERNELS:
        made[f"draft of {name}"] = repr(draft_of(name))
    return made


@pytest.mark.parametrize(
    ("seeds", "folders"), [((0,), [DATA]), pytest.param((1, 2, 3), [DATA, RAW, LIBRARY], marks=pytest.mark.slow)]
)
def test_what_the_rules_make_depends_on_nothing_but_the_source(seeds: tuple[int, ...], folders: list[Path]) -> None:
    """In this process, whose seed is drawn, and in those with `seeds`."""
    environments = [{**os.environ, "PYTHONHASHSEED": str(seed)} for seed in seeds]
    given = list(map(str, folders))
    command = [sys.executable, __file__, *given]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, env=one) for one in environments]
    here = json.loads(json.dumps(everything(given)))
    assert len(here) > 20
    for other in begun:
        there = json.loads(other.communicate(timeout=280)[0])
        assert {name for name in here if there[name] != here[name]} == set()


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1:])))
