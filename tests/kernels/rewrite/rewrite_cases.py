"""Kernels in the styles that people write, as tasks without a template."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emulation import contents, run_kernels

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.rewrite.template import Rewritten, rewrite
from tunesmith.kernels.spec.task import Argument, BackendSources, Baseline, Task, Workload
from tunesmith.kernels.spec.taskfile import LIBRARY, read_task
from tunesmith.kernels.spec.template import BackendName, Config, LaunchGeometry, Template

Arrays = dict[str, tuple[str, str, str]]
"""Role, data type and length of arrays, by name."""
RAW = Path(__file__).resolve().parents[2] / "raw"


def task_of(
    name: str, code: str, arrays: Arrays, launch: LaunchGeometry, scalars: dict[str, str], backend: BackendName = "cuda"
) -> Task:
    """A task of one kernel. arrays: role, data type and length by name; scalars: data type by name, in their order."""
    arguments = [
        Argument(name=one, role=role, dtype=dtype, shape=(shape,)) for one, (role, dtype, shape) in arrays.items()
    ]
    arguments += [
        Argument(name=one, role="scalar", dtype=dtype, value=one if dtype == "int32" else "1.5")
        for one, dtype in scalars.items()
    ]
    template = Template(name="baseline", backend=backend, source=code, entry=name, launch=launch)
    return Task(
        name=name,
        entry=name,
        arguments=tuple(arguments),
        reference=f"def {name}(**given): return given\n",
        reference_name=name,
        bytes="n",
        workloads=(Workload(name="w", sizes={"n": 1000}, types={}), Workload(name="odd", sizes={"n": 3331}, types={})),
        backends={backend: BackendSources(baseline=Baseline(template=template))},
    )


H200 = resolve_target("h200")
LINE = LaunchGeometry(grid=("ceil_div(n, 64)",), block=("64",))
"""A thread for each of n elements."""
ROWS = LaunchGeometry(grid=("3",), block=("64",))
"""A block for each of three rows."""
TURNS = "for (int i = threadIdx.x; i < n; i += blockDim.x)"
"""A loop in which a block shares a row of n elements."""
WIDE = LaunchGeometry(grid=("ceil_div(n, 256)",), block=("256",))
SERIES: Arrays = {"x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
"""What is read, and what is read and written."""
COPIED: Arrays = {"x": ("in", "float32", "n"), "y": ("out", "float32", "n")}
FACTOR = {"a": "float32", "n": "int32"}
FEW = LaunchGeometry(grid=("min(ceil_div(n, 256), 4)",), block=("256",))
EIGHT = LaunchGeometry(grid=("n",), block=("8",))


def own(name: str, arrays: Arrays, launch: LaunchGeometry, scalars: dict[str, str]) -> Task:
    """The task of a kernel beside this file."""
    code = Path(__file__).with_name("own") / f"{name}.cu"
    return task_of(name, code.read_text(encoding="utf-8"), arrays, launch, scalars)


SAXPY = own("saxpy", SERIES, WIDE, FACTOR)
EARLY = own("early", COPIED, WIDE, FACTOR)
STRIDE = own("stride", COPIED, FEW, FACTOR)
BARE = own("bare", {"y": ("inout", "float32", "8 * n")}, EIGHT, {"n": "int32"})
OWN = {task.name: task for task in (SAXPY, EARLY, STRIDE, BARE)}
RAW_NAMES = ("histogram", "int8_quant", "layernorm", "rope", "stencil3x3", "topk_softmax")
# layernorm and rope, which the library has too, are the raw ones here.
LIBRARY_NAMES = ("fused_add_rmsnorm", "gemm", "merge_attn_states", "silu_and_mul", "softmax")


@functools.cache
def plain_task(name: str) -> Task:
    """The task `name` without any template."""
    if name in OWN:
        return OWN[name]
    task = read_task((RAW if name in RAW_NAMES else LIBRARY) / name / "task.toml")
    bare_sources = task.backends["cuda"].model_copy(update={"templates": ()})
    return task.model_copy(update={"backends": {"cuda": bare_sources}})


def kernel(body: str, arrays: Arrays, launch: LaunchGeometry, more: str = "") -> Task:
    """A task of a kernel `k` with `body`, over arrays and a size n."""
    const = {"in": "const ", "out": "", "inout": ""}
    kind = {"float32": "float", "int32": "int", "int8": "signed char", "float16": "__half", "bfloat16": "__nv_bfloat16"}
    pointers = ", ".join(f"{const[role]}{kind[dtype]}* {name}" for name, (role, dtype, _) in arrays.items())
    code = f'{more}\nextern "C" __global__ void k({pointers}, int n) {{ {body} }}'
    return task_of("k", code, arrays, launch, {"n": "int32"})


def stays(
    of: tuple[str, LaunchGeometry, Arrays], *bodies: str | tuple[str, str], at: str = "BODY", more: str = ""
) -> list[tuple[Task, set[str], str]]:
    """Kernels that rewrites give none of some parameters, each with the reason where it is told. of: the parameters,
    then the launch and the arrays of all; at: the text around each body."""
    (names, launch, arrays), pairs = of, [(one, "") if isinstance(one, str) else one for one in bodies]
    return [(kernel(at.replace("BODY", body), arrays, launch, more), set(names.split()), why) for body, why in pairs]


def same(
    of: tuple[LaunchGeometry, Arrays, int], configs: list[Config], *bodies: str, at: str = "BODY", more: str = ""
) -> list[tuple[Task, list[Config], int]]:
    """Kernels, and the configurations at which their templates compute what they do. of: the launch and the arrays of
    all, and a size; at: the text around each body."""
    launch, arrays, n = of
    return [(kernel(at.replace("BODY", body), arrays, launch, more), configs, n) for body in bodies]


def opencl_kernel(code: str, arrays: Arrays, launch: LaunchGeometry) -> Task:
    """A task of the OpenCL kernel `k` of `code`, over arrays and a size n."""
    return task_of("k", code, arrays, launch, {"n": "int32"}, "opencl")


_MADE: dict[int, tuple[Task, Rewritten]] = {}


def rewritten(task: Task) -> Rewritten:
    """What the rules make of the one backend of `task`; asked again, it is not made again."""
    if id(task) not in _MADE:
        (backend,) = task.backends
        _MADE[id(task)] = task, rewrite(task, backend)
    return _MADE[id(task)][1]


def template_of(task: Task) -> Template:
    found = rewritten(task)
    assert found.template is not None, found.skipped
    return found.template


def require_refused(task: Task, names: set[str], why: str = "") -> None:
    """The rules give `task` none of the parameters `names`, and say `why`."""
    found = rewritten(task)
    assert found.template is None or not names & found.template.default_config.keys()
    assert not why or any(why in one for one in found.skipped), found.skipped


def require_equal(task: Task, configs: list[Config], n: int = 203, stand_ins: Mapping[str, str] | None = None) -> None:
    """The template at each of `configs`, over its defaults, gives what the kernel gave."""
    workload = task.workloads[0].model_copy(update={"sizes": {"n": n}})
    require_right(task, configs, workload, contents(task, workload, 1), stand_ins)


def require_right(
    task: Task,
    configs: Sequence[Config],
    workload: Workload,
    arrays: Mapping[str, Any],
    stand_ins: Mapping[str, str] | None = None,
    near: float = 1e-5,
) -> None:
    """The same from `arrays`, at configurations that are given in whole or over the defaults. stand_ins: as
    `run_kernels` takes them; near: a tolerance, absolute and relative."""
    template, (sources,) = template_of(task), task.backends.values()
    assert all(config.keys() <= template.default_config.keys() for config in configs)
    pairs = [(sources.baseline.template, {}), *((template, template.default_config | config) for config in configs)]
    expected, *results = run_kernels(pairs, task, workload, arrays, stand_ins)
    assert any(not np.array_equal(expected[one.name], arrays[one.name], equal_nan=True) for one in task.outputs)
    for config, found in zip(configs, results, strict=True):
        for name, values in expected.items():
            assert np.allclose(found[name], values, rtol=near, atol=near, equal_nan=True), (config, workload, name)
