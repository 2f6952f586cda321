"""Permutations of dimensions in the ways that people write them: tiles give what the kernel gives, where they fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emulation import contents
from rewrite_cases import H200, require_refused, require_right, task_of, template_of

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BackendName, Config, LaunchGeometry

POINTS: tuple[Config, ...] = (
    {"PERMUTE": 32, "PERMUTE_ROWS": 8},
    {"PERMUTE": 32, "PERMUTE_ROWS": 16},
    {"PERMUTE": 64, "PERMUTE_ROWS": 16},
)
EXTENTS = ((1, 31, 33, 2), (33, 2, 3, 65), (40, 1, 37, 1), (2, 3, 1, 33))
SIZES = tuple("abcd")
ALL = "a * b * c * d"
LINE = LaunchGeometry(grid=(f"ceil_div({ALL}, 64)",), block=("64",))
AT = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
X, Y = {"x": ("in", "float32", ALL)}, {"y": ("inout", "float32", ALL)}
XY = X | Y


def workload(extents: tuple[int, ...]) -> Workload:
    return Workload(name="w", sizes=dict(zip(SIZES, extents, strict=True)), types={})


def task_over(code: str, launch: LaunchGeometry, arrays: Mapping[str, Any], backend: BackendName = "cuda") -> Task:
    """The task of a kernel over arrays of four dimensions, which are its sizes and its parameters a to d."""
    task = task_of("k", code, dict(arrays), launch, dict.fromkeys(SIZES, "int32"), backend)
    return task.model_copy(update={"workloads": tuple(map(workload, EXTENTS))})


def of_dimensions(body: str, launch: LaunchGeometry = LINE, arrays: Mapping[str, Any] = XY) -> Task:
    const = {"in": "const ", "out": "", "inout": ""}
    pointers = ", ".join(f"{const[role]}float* {name}" for name, (role, _, _) in arrays.items())
    code = f'extern "C" __global__ void k({pointers}, int a, int b, int c, int d) {{ {body} }}'
    return task_over(code, launch, arrays)


def written(name: str, launch: LaunchGeometry = LINE, arrays: Mapping[str, Any] = XY) -> Task:
    """The task of a kernel in permuted/."""
    return task_over((Path(__file__).with_name("permuted") / f"{name}.cu").read_text(), launch, arrays)


WITHOUT_GUARD = f"{AT} const int w = i % d, h = i / d % c; y[(i / (c * d) * d + w) * c + h] = x[i] * x[i] + w;"
BY_BITS = f"{AT} if (i < 32 * a * b) y[(i & 15) * (2 * a * b) + (i >> 4)] = x[i];"
PADDED = f"{AT} if (i < a * b) y[i % b * (a + 3) + i / b + 1] = x[i / b * (b + d) + i % b];"
SMALL = {name: ("in", "float32", extent) for name, extent in (("scale", "b"), ("bias", "d"))}
CUBE = LaunchGeometry(grid=("ceil_div(d, 16)", "ceil_div(c * a, 4)", "b"), block=("16", "4"))
FEW, TWO, WHOLE, THIRTY_TWO = (
    LaunchGeometry(grid=(grid,), block=(block,))
    for grid, block in ((f"min({ALL}, 3)", "32"), ("2", "64"), ("a * b * c", "d"), ("a * b", "32"))
)
LONG = {one: (role, "float32", f"32 * {ALL}") for one, (role, *_) in XY.items()}
WIDER = {"x": ("in", "float32", "a * (b + d)"), "y": ("inout", "float32", "b * (a + 3) + 1")}
KERNELS = {
    "llmc": written("llmc"),
    "remainders": written("remainders", arrays=XY | SMALL),
    "blocks": written("blocks", CUBE),
    "grid": written("grid", FEW, XY | {"z": ("in", "float32", ALL)}),
    "macro": written("macro", TWO),
    "no guard": of_dimensions(WITHOUT_GUARD, WHOLE),
    "bits": of_dimensions(BY_BITS, THIRTY_TWO, LONG),
    "part": of_dimensions(f"{AT} if (i < a * b - 1) y[i % b * a + i / b] = x[i];"),
    "padded": of_dimensions(PADDED, arrays=WIDER),
}
SLOW = ("no guard", "bits", "part", "padded")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in KERNELS])
def test_tiles_give_what_the_kernel_gave(name: str) -> None:
    require_tiles(KERNELS[name], POINTS)


def require_tiles(task: Task, points: tuple[Config, ...]) -> None:
    """The template gives at each of the points what the kernel gave, for all extents."""
    template = template_of(task)
    for extents in EXTENTS:
        given = workload(extents)
        space = feasible(template, [given], H200)
        assert all(space.reject(template.default_config | point) is None for point in points)
        require_right(task, points, given, contents(task, given, seed=5), near=0)


@pytest.mark.parametrize("name", KERNELS)
def test_the_least_and_the_largest_tile_compile(name: str, nvrtc: Any) -> None:
    template = template_of(KERNELS[name])
    for point in (POINTS[0], POINTS[-1]):
        made = nvrtc.compile(specialise(template, template.default_config | point, {}))
        assert isinstance(made, Artifact), (point, made)


ON_PLACES = """const int w = get_global_id(0), h = get_global_id(1), n = get_global_id(2) / d, k = get_global_id(2) % d;
    if (w >= c || h >= b || get_global_id(2) >= a * d) return;
    y[((n * b + h) * c + w) * d + k] = x[((n * d + k) * b + h) * c + w] * 2;"""
ON_ELEMENTS = """size_t i = get_global_id(0); if (i >= a * b * c * d) { return; }
    int n = i / (d * b * c), k = i / (b * c) % d, h = i / c % b, w = i % c;
    y[n * d * b * c + h * d * c + w * d + k] = x[i] + k;"""
PLANES = LaunchGeometry(grid=("ceil_div(c, 8)", "ceil_div(b, 8)", "a * d"), block=("8", "8", "1"))
OPENCL = {"places": (ON_PLACES, PLANES), "elements": (ON_ELEMENTS, LINE)}


@pytest.mark.parametrize("name", OPENCL)
def test_tiles_give_the_same_on_a_device(name: str) -> None:
    body, launch = OPENCL[name]
    source = f"__kernel void k(__global const float* x, __global float* y, int a, int b, int c, int d) {{ {body} }}"
    require_tiles(task_over(source, launch, XY, "opencl"), ({}, *POINTS, {"SPECIALISED": 1}))


TURNED = "y[i % d * (a * b * c) + i / d]"
STEPS, STEP = "for (int i = blockIdx.x * blockDim.x + threadIdx.x;", "i += gridDim.x * blockDim.x)"
GUARD = f"{AT} if (i < a * b * c * d)"
SAME = "the elements that it reads as neighbours it also writes as neighbours"
MIXED = "does not write each element in a place of its own digits"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        # In place, and what another thread may have changed.
        (f"{GUARD} {TURNED} = y[i];", SAME),
        (f"{GUARD} {{ {TURNED} = x[i]; ((float*)x)[i] = 0; }}", SAME),
        # Not every element has a place of its own.
        (f"{GUARD} y[i / d / 2 + a * (i % d)] = x[i];", MIXED),
        # A digit beyond its range goes elsewhere, or is not read.
        (f"{GUARD} y[(i % d + 1) % d * (a * b * c) + i / d] = x[i];", MIXED),
        (f"{GUARD} if (i % d + 1 < d) {TURNED} = x[i + 1];", SAME),
        # The data say where.
        (f"{GUARD} y[(int)z[i]] = x[i];", MIXED),
        # Neighbours stay neighbours, or are few.
        (f"{GUARD} y[i / d % c * (a * b * d) + i / (c * d) * d + i % d] = x[i];", SAME),
        (f"{GUARD} y[i % 4 * (a * b * c) + i / 4] = x[i];", "one of its dimensions has 4 elements"),
        # Places by steps of which nothing is known.
        (f"{GUARD} y[i % d * a + i / d * b] = x[i];", SAME),
        (f"{GUARD} y[i % c * (a * b) + i / d] = x[i];", "digits of an element's number overlap"),
        # Threads know of others, or their loops are not alike.
        (f"{STEPS} i < a * b * c * d - (int)x[0]; {STEP} {TURNED} = x[i];", "more than one loop over the grid"),
        (f"{STEPS} i < d; {STEP} z[i] = 1; {STEPS} i < a * b * c * d; {STEP} {TURNED} = x[i];", "more than one loop"),
        (f"y[0] = 1; {STEPS} i < a * b * c * d; {STEP} {TURNED} = x[i];", "more than one loop over the grid"),
        (f"{STEPS} i < a * b * c * d; {STEP} {{ if (x[0] < 0) break; {TURNED} = x[i]; }}", ""),
        (f"{GUARD} {TURNED} = x[i] + gridDim.x;", "it uses gridDim.x"),
        (f"{GUARD} {TURNED} = x[i] + threadIdx.x;", "threadIdx.x for more than"),
        (f"__shared__ float t; t = 1; {GUARD} {TURNED} = x[i];", "may depend on the size of a block"),
        (f"{GUARD} {{ {TURNED} = x[i]; d = 2; }}", "changes its parameter d"),
    ],
)
def test_what_is_no_permutation_stays(body: str, why: str) -> None:
    require_refused(of_dimensions(body, arrays=XY | {"z": ("inout", "float32", ALL)}), {"PERMUTE"}, why)
