"""Whatever a task file says, the sizes that checks make up are ones that its kernel can be called with, and cheap."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from compiling import write_task

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check import plan as planning
from tunesmith.kernels.check.plan import extents, plan, reaching_steps, small_workload
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.taskfile import LIBRARY, read_task

GPU = resolve_target("h200")
CPU = replace(GPU, kind="cpu", backend="opencl")

FILES: dict[str, tuple[str, str, tuple[str, ...], str, set[str]]] = {
    # arrays "name role dtype shape"; sizes of its workloads; requires; flops; sizes that are no extents
    "power of two": ("x in T n; out out T n", "n=4096; n=65536", ("n & (n - 1) == 0",), "", set()),
    "bounded": ("x in T n d; out out T n d", "n=512, d=4096", ("d <= 4096", "d >= 64"), "", set()),
    "all multiples": (
        "a in T m k; b in T k n; c out T m n", "m=1024, n=1024, k=1024; m=4096, n=4096, k=4096",
        ("m % 64 == 0 and n % 64 == 0", "k % 32 == 0"), "2 * m * n * k", set(),
    ),
    "radius": ("x in T h w; out out T h w", "h=1080, w=1920, r=3; h=4096, w=4096, r=8", (), "", {"r"}),
    "window with flops": ("x in T n; out out T n", "n=100000, window=128", ("window < n",), "n * window", {"window"}),
    "weights of a radius": (
        "x in T h w; f in float32 2*r+1 2*r+1; out out T h w", "h=512, w=512, r=2",
        ("2 * r + 1 <= w",), "2 * h * w * (2 * r + 1) ** 2", {"r"},
    ),
    "halo": ("x in T h+2*r w+2*r; out out T h w", "h=64, w=64, r=3; h=1024, w=1024, r=4", (), "", {"r"}),
    "valid": ("x in T h w; out out T h-2*r w-2*r", "h=512, w=512, r=2; h=64, w=64, r=5", (), "", {"r"}),
    "strided": ("x in T n; out out T (n-k)//s+1", "n=65536, k=5, s=2", ("n >= k",), "", {"k", "s"}),
    "steps": ("x inout T n", "n=65536, steps=100", (), "n * steps", {"steps"}),
    "sweeps": ("x in T h w; out out T h w", "h=256, w=256, sweeps=1000", ("sweeps % 2 == 0",), "", {"sweeps"}),
    "bodies": ("p in T n 3; f out T n 3", "n=4096; n=30000", (), "20 * n * n", set()),
    "bitmap": ("x in uint32 ceil_div(n,32); out out uint32 ceil_div(n,32)", "n=1048576", (), "", set()),
    "partial sums": ("x in T n; out out T ceil_div(n,1024)", "n=16777216", (), "n", set()),
    "capped": ("x in T min(n,65536); out out T min(n,65536)", "n=4096", (), "", set()),
    "products": ("x in T b*t h*d; out out T b*h t*d", "b=2, t=512, h=8, d=64", ("d % 8 == 0",), "", set()),
    "powers": ("x in T 2**p; out out T 2**p", "p=16; p=20", (), "p * 2 ** p", set()),
    "large and tied": ("x in T n d; out out T n d", "n=8192, d=8192", ("n == d", "n % 4096 == 0"), "n * d", set()),
    "large work": ("x in T n; out out T n", "n=1048576, steps=100000", ("n == 1048576",), "n * steps", {"steps"}),
    "no sizes": ("x in T 4096; out out T 4096", "", (), "4096", set()),
    "no inputs": ("out out T n", "n=65536", (), "", set()),
    "a contradiction elsewhere": ("x in T n; out out T n", "n=4096", ("n // (n - 64) >= 1 or n < 2",), "", set()),
    "attention": (
        "q in T h t d; k in T g s d; v in T g s d; out out T h t d", "h=32, g=8, t=128, s=1024, d=128",
        ("h % g == 0", "t <= s", "d in (64, 128)"), "4 * h * t * s * d", set(),
    ),
}  # fmt: skip
SOURCES = (
    "if (n > 1500) desc = (1ull << 62) | 0x7fffffff; if (i < 0x7fffffff && mask != 0xffffffffu) x();",
    "#define TILE 96\nfor (int i = 0; i < n - TILE; i += TILE) if (n > 100000000 || n < 2147483647) f(i);",
    "case 777: if (d % 192 == 0 || (n << 40) > 5) return; if (n >= 9223372036854775807ull) g();",
)
TYPES = (("float32",), ("float16", "float32"), ("int32", "uint8"))
TASKS = Path(__file__).resolve().parent.parent
PATHS = [*LIBRARY.glob("*/task.toml"), *TASKS.glob("raw/*/task.toml"), *TASKS.glob("candidates/tasks/*/task.toml")]


def made(name: str, variant: int, folder: Path) -> Task:
    """The task of a row, in one set of types, with a scalar of its own, read from its file."""
    arrays, workloads, requires, flops, _ = FILES[name]
    types = [(role, dtype) for _, role, dtype, *_ in map(str.split, arrays.split("; "))]
    stored = {one for role, dtype in types if role != "in" for one in (TYPES[variant] if dtype == "T" else (dtype,))}
    tables = f"[types]\nT = {json.dumps(TYPES[variant])}\n" if "T" in dict(map(reversed, types)) else ""
    exact = [f"{dtype} = {{ rtol = 0, atol = 0 }}" for dtype in sorted({"int32", "uint8", "uint32"} & stored)]
    return write_task(
        folder,
        f"{arrays}; scale scalar float32 0.5",
        workloads,
        backends=("cuda", "opencl"),
        keys=f"requires = {json.dumps(requires)}" + (f'\nflops = "{flops}"' if flops else ""),
        tables="\n".join([f"{tables}[tolerance]", *exact]),
    )


def array_bytes(task: Task, workload: Workload) -> int:
    arrays = [one for one in task.arguments if one.role != "scalar"]
    return sum(math.prod(task.shape_of(one, workload)) * DTYPES[task.dtype_of(one, workload)].size for one in arrays)


def require_bounds(task: Task, limits: DeviceLimits, source: str) -> int:
    """Plans all steps on made-up sizes, and returns their number. Raises `AssertionError` for a step whose sizes the
    task does not allow, or that costs more than it may."""
    own = [one for one in task.workloads if limits.kind in one.devices]
    steps = [one for one in plan(task, limits, 3, source=source) if one.derived]
    steps += reaching_steps(task, limits, own[-1], [own[-1].types], 6)
    growing = extents(task, own)
    smallest = min(own, key=lambda one: array_bytes(task, one))
    most_elements = planning.MAX_ELEMENTS_PER_BYTE * planning.MAX_BYTES[limits.kind]
    cheap = planning.MAX_BYTES[limits.kind]
    most_bytes = max(planning.MAX_BYTES[limits.kind], array_bytes(task, smallest))
    most_flops = max(planning.MAX_FLOPS[limits.kind], task.flops_of(smallest))
    near_bytes = planning.MAX_NEIGHBOUR_BYTES[limits.kind]
    for step in steps:
        workload = step.workload
        assert task.allows(workload), step.name
        near = workload.name.endswith("(near)")
        long = planning.LONG_FACTOR[limits.kind] if workload.name.endswith("(long)") else 1
        assert array_bytes(task, workload) <= (near_bytes if near else max(long * cheap, most_bytes)), step.name
        assert near or task.flops_of(workload) <= most_flops, step.name
        for name, size in workload.sizes.items():
            usual = {one.sizes[name] for one in own}
            beside = {value for one in usual for value in (one, one // 2, one - 1, one + 1, 2 * one) if value >= 1}
            related = any(name in parse(text).names for text in task.requires)
            assert name in growing or related or size in beside, f"{step.name}: {name} is no extent"
            assert 1 <= size <= max(long * most_elements, max(usual) + 3), step.name
    return len(steps)


@pytest.mark.parametrize("limits", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("path", sorted(PATHS), ids=lambda path: path.parent.name)
def test_steps_for_each_template_of_a_task_keep_to_the_bounds(path: Path, limits: DeviceLimits) -> None:
    task = read_task(path)
    if limits.backend in task.backends and any(limits.kind in one.devices for one in task.workloads):
        sources = task.sources(limits.backend)
        source = "\n".join(one.source for one in (sources.baseline.template, *sources.templates))
        assert require_bounds(task, limits, source) > 100


# Each file on one kind of device, by turns; with the slow tests on both.
CASES = [
    pytest.param(name, at % 3, limits, id=f"{name} {limits.kind}", marks=[] if at % 2 == place else pytest.mark.slow)
    for at, name in enumerate(FILES)
    for place, limits in enumerate((GPU, CPU))
]


@pytest.mark.parametrize(("name", "variant", "limits"), CASES)
def test_steps_for_any_task_file_keep_to_the_bounds(
    name: str, variant: int, limits: DeviceLimits, tmp_path: Path
) -> None:
    task = made(name, variant, tmp_path)
    assert set(task.workloads[0].sizes) - extents(task, task.workloads) == FILES[name][-1]
    assert require_bounds(task, limits, SOURCES[variant])
    small = small_workload(task, task.workloads)
    assert task.allows(small) and array_bytes(task, small) <= array_bytes(task, task.workloads[0])
