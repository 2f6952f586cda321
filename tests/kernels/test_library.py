"""The tasks that ship and the raw kernels of tests/raw: they load, describe themselves truly, compile, and compute what
their references say."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import bytes_of_arrays, named_rows, nvrtc_for

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import BoundLaunch
from tunesmith.kernels.backends.opencl import OpenclCompiler, OpenclDevice
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.machine_code import global_variables
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.check.compare import deviation, measure_set
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.opponents import Prepared, prepare_opponent
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.space import compiler_rejection, device_names, feasible
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import FunctionOpponent, Task, Workload, geometry
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import Config, Template

TASKS = (
    *("fused_add_rmsnorm", "gemm", "gemv_int4", "layernorm", "merge_attn_states", "quantize_per_token", "rope"),
    *("silu_and_mul", "skinny_gemm", "softmax", "stencil3x3", "topk_softmax", "transpose"),
)
RAW = Path(__file__).resolve().parent.parent / "raw"
RAW_TASKS = sorted(path.parent.name for path in RAW.glob("*/task.toml"))
LIBRARY = {name: load_task(name) for name in TASKS}
WITH_OPENCL = tuple(name for name, task in LIBRARY.items() if "opencl" in task.backends)
DTYPES = ("float16", "bfloat16", "float32")
MORE_TUNED = {"quantize_per_token": {"int8", "float8_e4m3"}, "stencil3x3": {"float32"}, "topk_softmax": {"float32"}}
"""What is tuned on besides float16."""
SEVERAL_TEMPLATES = {"gemm": 3, "skinny_gemm": 2}
"""In CUDA."""
GIB = 1 << 30

# One element, sizes no vector or tile divides, sizes that most vectors divide and that leave a partly filled block.
SMALL: dict[str, tuple[dict[str, int], ...]] = {
    "merge_attn_states": named_rows("n h d", (1, 1, 1), (5, 3, 75), (7, 4, 128)),
    "rope": named_rows("n h k pairs", (1, 1, 1, 1), (5, 3, 2, 37), (7, 5, 1, 64)),
    "gemv_int4": named_rows("n m", (1, 1), (5, 333), (9, 512)),
    "stencil3x3": named_rows("n h w", (1, 1, 1), (2, 5, 333), (2, 9, 512)),
    "topk_softmax": named_rows("n e k", (1, 1, 1), (5, 37, 3), (9, 128, 8)),
    "transpose": named_rows("n d", (1, 1), (37, 333), (72, 512)),
    "skinny_gemm": named_rows("m n k", (1, 1, 1), (37, 41, 29), (5, 136, 72)),
    "gemm": named_rows("m n k", (1, 1, 1), (37, 41, 29), (40, 96, 72)),
}
SMALL_ROWS = named_rows("n d", (1, 1), (5, 333), (9, 512))
"""Of the others."""


def small_workloads(name: str, dtype: str) -> list[Workload]:
    """Small workloads of task `name`."""
    more = {"Q": "int8" if dtype == "float32" else "float8_e4m3"} if name == "quantize_per_token" else {}
    types = {"T": dtype, **more}
    return [
        Workload(name="-".join(map(str, sizes.values())), sizes=sizes, types=types)
        for sizes in SMALL.get(name, SMALL_ROWS)
    ]


def smallest_space(name: str, template: str, target: str) -> int:
    """Feasible points that a template has at least. Before 9.0 skinny_gemm cannot divide its depth by clusters, and its
    second template is for a single kind of tile."""
    if name == "skinny_gemm":
        return 150 if target < "sm_90" else 1000 if template == "streamed_columns" else 500
    return 5000 if name == "gemm" and template != "warpgroups" else 2000


def some_configs(template: Template, workload: Workload, limits: DeviceLimits, count: int, seed: int) -> list[Config]:
    """The default and `count` random feasible configurations."""
    space = feasible(template, [workload], limits)
    points = space.sample(np.random.default_rng(seed), count)
    return [template.default_config, *(space.config(point) for point in points)]


def static_shared(template: Template, config: Config, workload: Workload) -> int:
    return parse(template.static_shared_bytes).integer({**workload.names, **config})


def test_these_are_all_and_each_has_an_opponent() -> None:
    assert tuple(library_tasks()) == TASKS
    # Importing PyTorch takes seconds, so that a plain tuning does without.
    assert {name for name, _ in OPPONENTS} == set(TASKS) and all(one.on_request for _, one in OPPONENTS)


@pytest.mark.parametrize("name", TASKS)
class TestDescription:
    def test_it_has_templates_workloads_and_a_large_space(self, name: str) -> None:
        task = LIBRARY[name]
        assert task.name == name and task.entry == ("gemm" if name == "skinny_gemm" else name)
        assert set(task.backends) <= {"cuda", "opencl"} and "cuda" in task.backends
        for sources in task.backends.values():
            assert sources.baseline.label == "plain"
            cuda = sources.baseline.template.backend == "cuda"
            assert len(sources.templates) == (SEVERAL_TEMPLATES.get(name, 1) if cuda else 1)
            for template in sources.templates:
                assert template.description
                assert all(parameter.doc and len(parameter.values) > 1 for parameter in template.parameters)
                assert all(constraint.because.endswith(".") for constraint in template.constraints)
        for kind, tuned, held_out in (("gpu", 6, 6), ("cpu", 2, 2))[: len(task.backends)]:
            assert len(task.workloads_for(kind, held_out=False)) >= tuned
            assert len(task.workloads_for(kind, held_out=True)) >= held_out
        tuned_types = {dtype for w in task.workloads if not w.held_out for dtype in w.types.values()}
        assert tuned_types == {"float16"} | MORE_TUNED.get(name, set())
        assert {w.types["T"] for w in task.workloads_for("gpu", held_out=True)} == set(DTYPES)
        most = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}
        assert all(task.tolerance[one].rtol <= rtol for one, rtol in most.items() if one in task.tolerance)
        for workload in task.workloads:
            assert task.bytes_of(workload) < 8 * GIB
            assert task.flops_of(workload) > 0 or name == "transpose"
        for target in ("sm_75", "sm_80", "sm_90"):
            limits = resolve_target(target)
            usable = [one for one in task.sources("cuda").templates if one.runs_on(device_names(limits))]
            assert usable
            for template in usable:
                space = feasible(template, task.workloads_for("gpu", held_out=False), limits)
                assert len(space) >= smallest_space(name, template.name, target)
                assert space.reject(template.default_config) is None
        # Held-out shapes take what tuned ones take.
        template = task.sources("cuda").templates[-1]
        tuned = feasible(template, task.workloads_for("gpu", held_out=False), limits)
        types = {w.types["T"] for w in task.workloads_for("gpu", held_out=False)} | {"float16", "bfloat16"}
        held_out = [w for w in task.workloads_for("gpu", held_out=True) if w.types["T"] in types]
        assert len(feasible(template, held_out, limits)) == len(tuned)


@pytest.mark.parametrize("name", [*TASKS, *(str(RAW / name) for name in RAW_TASKS)])
def test_bytes_count_every_array_once_for_each_direction(name: str) -> None:
    task = load_task(name)
    for workload in task.workloads:
        assert task.bytes_of(workload) == bytes_of_arrays(task, workload)


def check_cuda(name: str, target: str, dtype: str, count: int, seed: int) -> None:
    """Baseline, kernels that are opponents and some configurations compile, take the shared memory they declare, and
    can be launched."""
    limits = resolve_target(target)
    compiler = nvrtc_for(limits.arch)
    sources = LIBRARY[name].sources("cuda")
    workload = small_workloads(name, dtype)[-1]
    candidates: list[tuple[Template, Config]] = [(sources.baseline.template, {})]
    candidates += [(one.template, {}) for one in sources.opponents]
    for template in sources.templates:
        if template.runs_on(device_names(limits)):
            candidates += [(template, config) for config in some_configs(template, workload, limits, count, seed)]
    for position, (template, config) in enumerate(candidates):
        artifact = compiler.compile(specialise(template, config, workload.types))
        assert not isinstance(artifact, CompileFailed), (config, artifact.first_error)
        assert artifact.resources.shared == static_shared(template, config, workload), config
        assert compiler_rejection(limits, geometry(template, config, workload), artifact.resources) is None, config
        # A variable that is not used costs a reading of all the assembly to find that out.
        assert global_variables(artifact.code) == (), config
        if position < 2:
            assert artifact.resources.spills == 0, (template.name, artifact.resources)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("gemm", "sm_75"),  # It chooses its templates by the architecture; the others are the same source everywhere.
        *((name, "sm_90") for name in TASKS),
        *(pytest.param(name, target, marks=pytest.mark.slow) for name in TASKS for target in ("sm_75", "sm_80")),
    ],
)
def test_defaults_compile_for_cuda(name: str, target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    # With float16 one of the others, by turns; the slow tests have all.
    for dtype in ("float16", DTYPES[1 + TASKS.index(name) % 2]) if target == "sm_90" else ("float16",):
        check_cuda(name, target, dtype, 0, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TASKS)
def test_many_configurations_compile(name: str, dtype: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    check_cuda(name, "sm_90", dtype, 40, seed=3)


class Unoptimised(OpenclCompiler):
    """Compiles in less than half the time; what a kernel computes does not depend on it."""

    options = (*OpenclCompiler.options, "-cl-opt-disable")


class OpenclRunner:
    """Compiles and runs on an OpenCL device, with the project's own check of the results."""

    def __init__(self, index: int) -> None:
        self.compilers = {True: OpenclCompiler(index), False: Unoptimised(index)}
        limits = dataclasses.replace(
            resolve_target("sm_90"), name="any", backend="opencl", max_grid_dims=None, shared_per_block_optin=None
        )
        self.device = OpenclDevice(limits, index)
        # Timing needs many sets of buffers, checking does not.
        self.device.cold_bytes = 0
        self.data: dict[tuple[str, str], WorkloadData] = {}

    def check(
        self, task: Task, template: Template, config: Config, workloads: Sequence[Workload], *, optimised: bool
    ) -> None:
        """workloads: of the same types, so that the kernel is the same on all of them."""
        compiled = self.compilers[optimised].compile(specialise(template, config, workloads[0].types))
        assert isinstance(compiled, Artifact), (config, compiled)
        kernel = self.device.load(compiled)
        for workload in workloads:
            assert compiled.resources.shared == static_shared(template, config, workload), config
            key = (task.name, workload.name + workload.types["T"])
            if key not in self.data:
                self.data[key] = WorkloadData(self.device, task, workload, seed=0, max_bytes=GIB)
            data = self.data[key]
            data.restore()
            self.device.launch(BoundLaunch(kernel, geometry(template, config, workload), data.arguments(0)))
            self.device.synchronize()
            verdict = measure_set(data, 0)
            assert isinstance(verdict, dict), (workload.name, workload.types, config, verdict)


@pytest.fixture(scope="module")
def opencl(device: DeviceInfo) -> OpenclRunner:
    return OpenclRunner(device.index)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("dtype", "count"),
    # The default of each type, one of them as users have it, and another point of one; with the slow tests many of
    # each.
    [
        ("float16", 1),
        ("bfloat16", 0),
        ("float32", 0),
        *(pytest.param(one, 25, marks=pytest.mark.slow) for one in DTYPES),
    ],
)
@pytest.mark.parametrize("name", WITH_OPENCL)
def test_opencl_computes_what_the_reference_says(name: str, dtype: str, count: int, opencl: OpenclRunner) -> None:
    task, workloads = LIBRARY[name], small_workloads(name, dtype)
    sources, seed = task.sources("opencl"), 10 * (count > 1) + DTYPES.index(dtype)
    opencl.check(task, sources.baseline.template, {}, workloads, optimised=count > 1)
    optimised = count > 1 or dtype == "float32"
    for template in sources.templates:
        for config in some_configs(template, workloads[-1], opencl.device.limits, count, seed):
            opencl.check(task, template, config, workloads, optimised=optimised)


# Of functions of PyTorch.
SIZES = {"m": 5, "n": 3, "k": 2, "h": 4, "d": 40, "pairs": 8}
OPPONENTS = [(name, one) for name, task in LIBRARY.items() for one in task.opponents]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="the opponents are functions of PyTorch")


def require_right(name: str, opponent: FunctionOpponent, dtype: str, opened: Any) -> None:
    """It computes what the task does."""
    task = LIBRARY[name]
    workload = Workload(name="small", sizes={name: SIZES[name] for name in task.size_names}, types={"T": dtype})
    data = WorkloadData(opened, task, workload, seed=0, max_bytes=1 << 28)
    found = prepare_opponent(opponent, data, opened.sample_seconds)
    assert isinstance(found, Prepared), found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "opponent"), [pytest.param(*one, id=f"{one[0]}-{one[1].name}") for one in OPPONENTS])
def test_opponents_compute_what_the_task_does(name: str, opponent: Any, dtype: str, torch: Any, opened: Any) -> None:
    """What is compiled runs as it is written here."""
    with torch.compiler.set_stance("force_eager"):
        require_right(name, opponent, dtype, opened)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "opponent"), [pytest.param(*one, id=one[0]) for one in OPPONENTS if one[1].label == "compiled"]
)
def test_compiled_ones_do_so_compiled(name: str, opponent: FunctionOpponent, torch: Any, opened: Any) -> None:
    require_right(name, opponent, "float16", opened)


@pytest.mark.parametrize("name", RAW_TASKS)
def test_a_raw_kernel_compiles(name: str, nvrtc: Any) -> None:
    task, limits = load_task(str(RAW / name)), resolve_target("sm_90")
    baseline, templates = task.sources("cuda").baseline, task.sources("cuda").templates
    assert baseline.label == "plain" and templates == ()
    for types in {tuple(workload.types.items()): workload.types for workload in task.workloads}.values():
        artifact = nvrtc.compile(specialise(baseline.template, {}, types))
        assert isinstance(artifact, Artifact), artifact
        assert artifact.resources.spills == 0 and artifact.globals == ()
        for workload in task.workloads:
            assert compiler_rejection(limits, geometry(baseline.template, {}, workload), artifact.resources) is None


def test_gemm_takes_the_tensor_cores_that_a_device_has() -> None:
    templates = LIBRARY["gemm"].sources("cuda").templates
    portable = ["tensor_cores", "tiles"]
    wanted = {"sm_75": ["tiles"], "sm_80": portable, "sm_120": portable, "sm_90": ["warpgroups", *portable]}
    for target, names in wanted.items():
        assert [one.name for one in templates if one.runs_on(device_names(resolve_target(target)))] == names


def test_the_tolerance_refuses_an_accumulation_in_float16_and_accepts_one_in_float() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 1024)).astype(np.float16)
    b = (rng.standard_normal((1024, 8)) / 32).astype(np.float16)
    half = np.zeros((8, 8), np.float16)
    for i in range(1024):
        half += a[:, i : i + 1] * b[i : i + 1]
    single = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    expected, tolerance = a.astype(np.float64) @ b, LIBRARY["gemm"].tolerance_of("float16")
    refused, accepted = (deviation(np, got.astype(np.float64), expected, tolerance).max() for got in (half, single))
    assert accepted < 1 < refused
