"""Loops over a run of neighbours of each thread: parts of runs in shared memory give what the kernel gave, where they
fit."""

from pathlib import Path
from typing import Any

import pytest
from emulation import contents
from rewrite_cases import H200, RAW, kernel, require_equal, require_refused, require_right, task_of, template_of

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.template import starts
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.taskfile import read_task
from tunesmith.kernels.spec.template import Config, LaunchGeometry

POINTS: tuple[Config, ...] = ({"RUN": 16}, {"RUN": 32, "LOADS": 1}, {"RUN": 16, "UNROLL": 4}, {"RUN": 64})
ROWS = LaunchGeometry(grid=("2", "3"), block=("64",))
MATRIX: Any = {"x": ("in", "float32", "6 * n"), "y": ("inout", "float32", "6 * n")}
PARTS = "const int run = (n + blockDim.x - 1) / blockDim.x, first = threadIdx.x * run;"
ROW = "(blockIdx.y * 2 + blockIdx.x) * n"
EACH = f"{PARTS} for (int c = first; c < min(first + run, n); ++c)"


def written(name: str, arrays: Any = MATRIX) -> Task:
    """The task of a kernel in own_runs/."""
    code = (Path(__file__).with_name("own_runs") / f"{name}.cu").read_text()
    return task_of("k", code, arrays, ROWS, {"n": "int32"})


KERNELS = {
    "maximum": written("maximum"),
    "filter": written("filter"),
    "search": written("search", {"x": ("in", "int8", "384 * n"), "y": ("inout", "int32", "384")}),
}


def cumsum() -> Task:
    return read_task(RAW / "cumsum" / "task.toml")


@pytest.mark.parametrize("n", [203, 512, 31])
@pytest.mark.parametrize("name", KERNELS)
def test_parts_of_runs_give_what_the_kernel_gave(name: str, n: int) -> None:
    require_equal(KERNELS[name], list(POINTS), n)


@pytest.mark.parametrize(("rows", "columns"), [(1, 4096), (3, 1337), (2, 32)])
def test_a_scan_gives_what_it_gave(rows: int, columns: int) -> None:
    task = cumsum()
    for dtype in ("float32", "float16"):
        workload = Workload(name="w", sizes={"n": rows, "d": columns}, types={"T": dtype})
        require_right(task, POINTS, workload, contents(task, workload, 3))


@pytest.mark.parametrize("name", ["cumsum", *KERNELS])
def test_every_part_compiles_and_fits(name: str, nvrtc: Any) -> None:
    task = cumsum() if name == "cumsum" else KERNELS[name]
    template, workload = template_of(task), task.workloads[0]
    space = feasible(template, [workload], H200)
    # The first differs from the others in nothing but a number.
    configs = [{**template.default_config, **point} for point in POINTS[1:]]
    fitting = [one for one in configs if space.reject(one) is None]
    assert fitting
    for config in fitting:
        artifact = nvrtc.compile(specialise(template, config, workload.types))
        assert isinstance(artifact, Artifact), artifact
        assert compiler_rejection(H200, geometry(template, config, workload), artifact.resources) is None, config


def test_a_search_begins_with_parts_of_runs() -> None:
    template = template_of(KERNELS["filter"])
    assert starts(template, "memory", lambda _: True)[0]["RUN"] > 0
    first, second = template_of(KERNELS["maximum"]).source.split("most[threadIdx.x] = m")
    assert "tunesmith::move<true" in first and "tunesmith::move" not in second


@pytest.mark.parametrize(
    ("body", "launch"),
    [
        # Neighbours in each round, another size of a block, and threads that do not come to the loop.
        (f"for (int c = threadIdx.x; c < n; ++c) atomicAdd(&y[{ROW} + c], x[c]);", ROWS),
        (f"{EACH} y[{ROW} + c] = x[{ROW} + c];", LaunchGeometry(grid=("2", "3"), block=("48",))),
        (f"{EACH} y[{ROW} + c] = x[{ROW} + c];", LaunchGeometry(grid=("2", "3"), block=("n",))),
        (f"if (threadIdx.x > 3) {{ {EACH} y[{ROW} + c] = x[{ROW} + c]; }}", ROWS),
        # A round that may be the last, one that others wait for, or a length that changes.
        (f"{EACH} {{ if (x[{ROW} + c] > 2) break; y[{ROW} + c] = 1; }}", ROWS),
        (f"{EACH} {{ __syncwarp(); y[{ROW} + c] += x[{ROW} + c]; }}", ROWS),
        (f"{PARTS} int end = min(first + run, n); for (int c = first; c < end; ++c) end -= x[{ROW} + c] > 2;", ROWS),
        # Results of other rounds, and elements that a round may leave as they are.
        (f"{EACH} y[{ROW} + c] = y[{ROW} + max(c, 1) - 1];", ROWS),
        (f"{EACH} if (c % 3) y[{ROW} + c] = 1;", ROWS),
        # Runs that are short.
        (f"for (int c = threadIdx.x * 4; c < threadIdx.x * 4 + 4; ++c) y[{ROW} + c] += x[{ROW} + c];", ROWS),
    ],
)
def test_what_is_no_run_of_a_thread_stays(body: str, launch: LaunchGeometry) -> None:
    require_refused(kernel(f"if (n < 0) __syncthreads(); {body}", MATRIX, launch), {"RUN"})
