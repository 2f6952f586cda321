"""The feasible space: its points, from the limits of devices to rules, the reasons against others, what the compiler's
answer rules out, and neighbours; against the driver of the GPU here, its points launch, and points that it refuses
cannot."""

import dataclasses
import itertools
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mutations import expressions

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe_cuda
from tunesmith.hw.targets import CAPABILITIES, resolve_target
from tunesmith.kernels import space as listing
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.space import (
    Domain,
    Space,
    SpaceRule,
    compiler_rejection,
    device_names,
    feasible,
    require_points,
    rules,
)
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Geometry, Workload, geometry
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Parameter, Template

TEXTS = (
    *("A * B <= limit", "A + B + C <= 9", "C % A == 0 or B > 2", "A >= 2", "D != 'wide' or B <= 2", "not E or A < 4"),
    *("B in (1, 4) or E", "A * B * C < 3 * limit", "limit > 3", "max(A, C) <= B + 2"),
)
VALUES = {"A": (1, 2, 4, 8), "B": (4, 1, 2), "C": (1, 2, 3), "D": ("wide", "narrow"), "E": (True, False)}


def parameters(names: str = "ABCDE") -> list[Parameter]:
    return [Parameter(name=name, values=VALUES[name]) for name in names]


def stated(*texts: str, limit: int = 8) -> list[SpaceRule]:
    return [SpaceRule(parse(text), {"limit": limit}) for text in texts]


def product(listed: list[Parameter]) -> list[Config]:
    names = [parameter.name for parameter in listed]
    return [dict(zip(names, v, strict=True)) for v in itertools.product(*(p.values for p in listed))]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(TEXTS), unique=True, max_size=5), st.integers(1, 12), st.sampled_from([1 << 18, 4]))
def test_listed_points_are_the_filtered_product(texts: list[str], limit: int, chunk: int) -> None:
    listed, conditions = parameters(), stated(*texts, limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_CHUNK", chunk)
        space = Space.build(listed, conditions)
    wanted = [point for point in product(listed) if all(rule.holds(point) for rule in conditions)]
    assert [space.config(i) for i in range(len(space))] == wanted
    assert all(space.index(point) == i for i, point in enumerate(wanted))
    refused = [reason for point in product(listed) if (reason := space.reject(point)) is not None]
    counts = Counter(reason.rule for reason in refused)
    assert dict(counts) == {label: count for label, count in space.rejected.items() if count}
    assert sum(space.rejected.values()) + len(space) == space.cartesian


def test_reasons_name_the_rule_and_the_numbers() -> None:
    rule = SpaceRule(parse("A * B <= limit"), {"limit": 8}, because="the tile must fit.")
    space = Space.build(parameters(), [rule])
    point: Config = {"A": 8, "B": 2, "C": 1, "D": "wide", "E": True}
    assert space.reject(point) == Rejected(
        "constraint", "A * B <= limit", "`A * B <= limit` does not hold for A=8, B=2, limit=8 (the tile must fit)."
    )
    assert space.reject({**point, "B": 1}) is None
    for wrong, kind in (({**point, "A": 3}, "unknown_value"), ({**point, "Q": 3}, "unknown_parameter")):
        reason = space.reject(wrong)
        assert reason is not None and reason.reason == kind and space.index(wrong) is None
    reason = space.reject({"A": 1})
    assert reason is not None and reason.reason == "unknown_parameter"
    # A flag is not a number, but text formats lose the difference between 1 and 1.0.
    assert space.index({**point, "E": 1}) is None
    assert space.index({**point, "B": 1.0}) == space.index({**point, "B": 1})


def test_neighbours_know_the_order_of_numbers() -> None:
    listed = [Parameter(name="A", values=(8, 1, 4, 2)), Parameter(name="D", values=("x", "y", "z"))]
    space = Space.build(listed, stated("A != 4"))
    here = space.index({"A": 2, "D": "x"})
    near = [tuple(space.config(point).values()) for point in space.neighbours(here)]
    assert sorted(map(str, near)) == sorted(map(str, [(1, "x"), (8, "x"), (2, "y"), (2, "z")]))
    assert space.config(space.neighbours(space.index({"A": 8, "D": "x"}))[0]) == {"A": 2, "D": "x"}


MIXED = (
    Parameter(name="A", values=(1, 2, 3, 8, 0, -4)),
    Parameter(name="B", values=(False, True)),
    Parameter(name="C", values=("x", "y")),
    Parameter(name="D", values=(0.5, 2, 4)),
    Parameter(name="E", values=(1, "z", 2)),
    Parameter(name="F", values=(0.25, 1.5, -2.0)),
)
CONDITIONS = expressions(
    [*"ABDABCDEF", "n", "0", "1", "2", "3", "0.5", "'x'", "True", "2 ** 61"], "({0} ** {1})", "log2({0})"
)


@settings(max_examples=400)
@given(CONDITIONS)
@example("(A // 0) < 2")
@example("(D & 2) == 2")
@example("D * 2 ** 61 > 0")
@example("(A + 2 ** 61) ** A > 0")
@example("min(A, 0.5) & 1 == 1")
@example("(A if B else 'x') == 1")
@example("(A if B else 0.5) & 1 == 1")
def test_any_condition_means_on_arrays_what_it_means_on_a_point(text: str) -> None:
    """Also where parameters have values of several types, and where there is no value."""
    rule = SpaceRule(parse(text), {"n": 7})
    asked = [parameter for parameter in MIXED if parameter.name in rule.names]
    points = product(asked)
    domain = Domain(asked)
    codes = np.array([domain.encode(point) for point in points], dtype=np.uint16)
    values = {name: domain.values[column][codes[:, column]] for name, column in domain.column.items()}
    flags = rule.flags(values, len(points)).tolist()
    assert not [point for flag, point in zip(flags, points, strict=True) if flag != rule.holds(point)]


def test_points_of_a_table_are_a_space_and_mistakes_are_told() -> None:
    space = Space.from_codes(parameters("AB"), np.array([[1, 1], [0, 2]]), "The table")
    assert [space.config(i) for i in range(2)] == [{"A": 1, "B": 2}, {"A": 2, "B": 1}]
    assert space.reject({"A": 8, "B": 2}).rule == "The table" and space.reject({"A": 1, "B": 2}) is None
    assert space.rejected == {"The table": 10}
    with pytest.raises(TunesmithError, match="reads Q, which is not a parameter"):
        Space.build(parameters(), stated("Q > 1"))
    with pytest.raises(TunesmithError, match="declared twice"):
        Space.build([*parameters("A"), *parameters("A")], [])


def wide(values: int, names: Iterable[str]) -> list[Parameter]:
    return [Parameter(name=name, values=tuple(range(1, values + 1))) for name in names]


@pytest.mark.parametrize("bound", ["MAX_POINTS", "MAX_PARTIAL"])
def test_a_space_too_large_to_list_is_refused_with_a_sentence(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, bound, 1000)
    with pytest.raises(TunesmithError, match="exclude too few early on: restrict the parameters' values"):
        Space.build(wide(20, "ABCDEFGH"), stated("A * B <= 40", "C + D < 20", "E <= F"))
    with pytest.raises(TunesmithError, match="restrict their values"):
        Space.build(wide(200, [f"P{i}" for i in range(12)]), [])


def test_a_large_product_of_few_points_is_listed() -> None:
    listed = wide(250, [f"P{i}" for i in range(7)])
    space = Space.build(listed, stated(*(f"P{i} == P{i + 1}" for i in range(6))))
    assert len(space) == 250 and space.cartesian > 1 << 55
    assert [space.index(space.config(i)) for i in range(250)] == list(range(250))
    assert space.index({f"P{i}": 1 + (i == 3) for i in range(7)}) is None


def test_a_million_points_out_of_a_hundred_million_take_seconds() -> None:
    listed = [Parameter(name=n, values=tuple(1 << i for i in range(10))) for n in ("BX", "BY")]
    listed += wide(10, "TUVW") + [Parameter(name="X", values=(1, 2, 4, 8)), *wide(25, "Y")]
    started = time.process_time()
    texts = ("BX * BY <= 1024", "BX * BY >= 32", "T * U * V <= 80", "V % X == 0", "W * Y <= 40")
    space = Space.build(listed, stated(*texts))
    assert time.process_time() - started < 5
    assert space.cartesian == 10**8 and 10**6 < len(space) < 5 * 10**6
    assert sum(space.rejected.values()) + len(space) == 10**8


H200 = CAPABILITIES["9.0"]
SMALL = Workload(name="small", sizes={"n": 1000, "d": 64}, types={"T": "float16"})
LARGE = Workload(name="large", sizes={"n": 1 << 22, "d": 96}, types={"T": "float32"})
MOST: dict[str, Any] = {
    "max_threads_per_block": 4096,
    "max_block_dims": (4096, 4096, 4096),
    "shared_per_block": 1 << 20,
}
OPENCL = DeviceLimits(name="cpu", backend="opencl", kind="cpu", arch="x", **MOST, shared_per_block_optin=1 << 20)


def template(
    launch: dict[str, Any], *constraints: Any, values: dict[str, list[Any]] | None = None, **fields: Any
) -> Template:
    values = values or {"X": [16, 32, 512, 2048], "Y": [1, 2, 128]}
    named = [{"name": name, "values": options} for name, options in values.items()]
    own = {"name": "t", "backend": "cuda", "entry": "k", "source": "x", "launch": {"grid": [1], "block": [1], **launch}}
    return Template.model_validate(own | {"parameters": named, "constraints": list(constraints)} | fields)


SHARED = {"block": ["X"], "shared_bytes": "X * Y * 16 * sizeof(T)"}
NO_WHOLE = "grid.x is 0; it must be a whole number within 1 to 2147483647."
LIMITS: list[tuple[dict[str, Any], dict[str, Any], DeviceLimits, tuple[int, int], str]] = [
    # launch, other fields, device, X and Y, the kind of the rule that refuses them or its sentence; empty: feasible
    ({"block": ["X", "1", "Y"]}, {}, H200, (512, 2), ""),
    ({"block": ["X", "1", "Y"]}, {}, H200, (2048, 1), "block_dim"),
    ({"block": ["X", "Y"]}, {}, H200, (16, 128), "threads_per_block"),
    # 32 * 128 * 16 * 2 = 128 KiB, with 51,200 bytes declared statically.
    (SHARED, {"static_shared_bytes": "Y * 400"}, H200, (32, 128), "shared_per_block"),
    (SHARED, {}, H200, (32, 128), ""),  # opting in allows 227 KiB
    (SHARED, {}, H200, (512, 128), "shared memory is 2097152; it must be a whole number within 0 to 232448."),
    ({"shared_bytes": "X - 100"}, {}, H200, (32, 1), "dynamic shared memory is -68; it must be a whole number at"),
    ({"block": ["X"], "grid": ["d", "n // Y"]}, {}, H200, (16, 1), "grid_dim"),
    # OpenCL states no largest grid, but an empty one launches nothing, and drivers break on astronomic ones.
    ({"block": ["X"], "grid": ["1000 // X"]}, {}, OPENCL, (2048, 1), NO_WHOLE),
    ({"block": ["X / Y"]}, {}, H200, (16, 128), "block_dim"),
    ({}, {"max_registers": "X - 17"}, H200, (16, 1), "max_registers"),
    ({}, {"max_registers": "X"}, H200, (512, 1), "max_registers"),
]


@pytest.mark.parametrize(("launch", "fields", "limits", "point", "wanted"), LIMITS)
def test_limits_of_the_device(
    launch: dict[str, Any], fields: dict[str, Any], limits: DeviceLimits, point: tuple[int, int], wanted: str
) -> None:
    space = feasible(template(launch, **fields), [SMALL, LARGE] if "n // Y" in str(launch) else [SMALL], limits)
    reason = space.reject(dict(zip("XY", point, strict=True)))
    assert (wanted == "") == (reason is None) and (reason is None or wanted in f"{reason.reason} {reason.detail}")
    assert sum(space.rejected.values()) == space.cartesian - len(space)


@pytest.mark.parametrize("key", ["fast_math", "max_registers", "static_shared_bytes", "shared_bytes", "grid", "block"])
def test_what_has_no_value_is_infeasible(key: str) -> None:
    """Nothing that a search may ask for raises when its source and launch are made."""
    text = "8 // (X - 32)" + (" > 1" if key == "fast_math" else " + 1")
    fields: dict[str, Any] = {key: [text] if key in ("grid", "block") else text}
    of_launch = key in ("shared_bytes", "grid", "block")
    tuned = template(fields if of_launch else {}, values={"X": [33, 32, 36]}, **({} if of_launch else fields))
    space = feasible(tuned, [SMALL], H200)
    assert [space.config(point)["X"] for point in range(len(space))] == [33, 36]
    for point in range(len(space)):
        specialise(tuned, space.config(point), SMALL.types)
        geometry(tuned, space.config(point), SMALL)
    reason = space.reject({"X": 32})
    assert reason is not None and "has no value: " in reason.detail and "by zero" in reason.detail


def test_constraints_know_any_target_s_compute_capability_and_say_why_and_fast_math_the_types() -> None:
    targets = {"sm_75": (75, 1024), "sm_89": (89, 1536), "sm_90a": (90, 2048), "sm_100f": (100, 2048)}
    for target, (capability, threads) in targets.items():
        names = device_names(resolve_target(target))
        assert names == {"compute_capability": capability, "max_threads_per_sm": threads}
    assert device_names(OPENCL)["compute_capability"] == 0
    tuned = template({}, values={"X": [1, 2]}, fast_math="X == 2 and T == float32")
    assert [rule.label for rule in rules(tuned, [SMALL, LARGE], H200) if rule.kind == "fast_math"] == [
        "fast_math has a value for small",
        "fast_math has a value for large",
    ]
    assert len(feasible(tuned, [SMALL, LARGE], H200)) == 2
    assert not [rule for rule in rules(template({}), [SMALL], H200) if rule.kind == "fast_math"]
    tuned = template({}, {"expression": "X * Y <= d * 16", "because": "rows are short."})
    reason = feasible(tuned, [SMALL, LARGE], H200).reject({"X": 512, "Y": 128})
    assert reason is not None and (reason.reason, reason.rule) == ("constraint", "X * Y <= d * 16 for small")
    assert reason.detail == "`X * Y <= d * 16` does not hold for X=512, Y=128, d=64 (rows are short)."


blocks = st.sampled_from(["X", "X * Y", "X // 4", "X // Y", "Y", "8", "X - 15", "X / 16"])
conditions = st.sampled_from(["X * Y <= d", "n % X == 0", "X > Y or Y == 2", "Y in (1, 2)", "T == 'float16' or X < 99"])


@settings(max_examples=60)
@given(
    st.lists(blocks, min_size=1, max_size=3),
    st.lists(blocks, min_size=1, max_size=3),
    st.sampled_from(["0", "X * Y * 4", "X * sizeof(T) * 100", "Y * 1000 - 900"]),
    st.sampled_from(["0", "Y * 500", "X * 20"]),
    st.lists(conditions, max_size=2, unique=True),
    st.sampled_from([[SMALL], [LARGE], [SMALL, LARGE]]),
    st.sampled_from([H200, CAPABILITIES["7.5"], OPENCL]),
)
def test_against_brute_force(
    block: list[str],
    grid: list[str],
    dynamic: str,
    static: str,
    constraints: list[str],
    workloads: list[Workload],
    limits: DeviceLimits,
) -> None:
    launch = {"block": block, "grid": grid, "shared_bytes": dynamic}
    tuned = template(launch, *constraints, static_shared_bytes=static)
    statically = template({"shared_bytes": static})
    space = feasible(tuned, workloads, limits)

    def allowed(config: dict[str, Any], workload: Workload) -> bool:
        try:
            shape = geometry(tuned, config, workload)
        except ExpressionError:
            return False
        fixed = geometry(statically, config, workload).shared_bytes
        scope = {"X": config["X"], "Y": config["Y"], **workload.sizes, **workload.types}
        x, y, z = shape.block
        most, largest_grid = limits.shared_per_block_optin or 0, limits.max_grid_dims
        return (
            all(eval(text, {"__builtins__": {}}, scope) for text in constraints)
            and all(1 <= extent <= bound for extent, bound in zip(shape.block, limits.max_block_dims, strict=True))
            and x * y * z <= limits.max_threads_per_block
            and 0 <= fixed <= (limits.shared_per_block or 0)
            and 0 <= shape.shared_bytes <= most - fixed
            and min(shape.grid) >= 1
            and all(extent <= bound for extent, bound in zip(shape.grid, largest_grid or shape.grid, strict=True))
        )

    for values in itertools.product(*(parameter.values for parameter in tuned.parameters)):
        config: dict[str, Any] = dict(zip(("X", "Y"), values, strict=True))
        wanted = all(allowed(config, workload) for workload in workloads)
        reason = space.reject(config)
        assert (reason is None) == wanted, (config, reason)
        assert (space.index(config) is not None) == wanted


def test_every_binding_constraint_is_named() -> None:
    tuned = template({"block": ["X"]}, "X > 2048", "Y > 0")
    with pytest.raises(TunesmithError) as caught:
        require_points(feasible(tuned, [SMALL], H200), tuned)
    assert "without `X > 2048` there would be some" in str(caught.value) and "among 12" in str(caught.value)
    tuned = template({"block": ["X * 64"]})
    with pytest.raises(TunesmithError, match=r"without `threads per block within 1 to 512` there would be some"):
        require_points(feasible(tuned, [SMALL], dataclasses.replace(H200, max_threads_per_block=512)), tuned)
    tuned = template({"block": ["X"]}, "X > 2048", "Y > 128")
    with pytest.raises(TunesmithError, match="several constraints exclude all"):
        require_points(feasible(tuned, [SMALL], H200), tuned)
    require_points(feasible(template({"block": ["X"]}), [SMALL], H200), tuned)


def test_launches() -> None:
    for limits, threads, shared, resources, reason in (
        (H200, 1024, 0, Resources(64, 0), None),
        (H200, 1024, 0, Resources(65, 0), "registers_per_block"),
        (H200, 1056, 0, Resources(16, 0), "threads_per_block"),
        (H200, 32, 232448, Resources(16, 0), None),
        (H200, 32, 232449, Resources(16, 0), "shared_per_block"),
        # A device without registers refuses none.
        (OPENCL, 64, 1 << 20, Resources(None, 0), None),
        (OPENCL, 64, 1 << 20, Resources(None, 4), "shared_per_block"),
    ):
        rejected = compiler_rejection(limits, Geometry((1, 1, 1), (threads, 1, 1), shared), resources)
        assert (rejected.reason if rejected else None) == reason


POINTS = 500
TINY = Workload(name="tiny", sizes={"m": 64, "n": 64, "k": 64}, types={"T": "float16"})
LIMITED = ("block_dim", "threads_per_block", "shared_per_block")
ANY_GEOMETRY = Template.model_validate(
    {
        "name": "any geometry",
        "backend": "cuda",
        "entry": "trivial",
        "source": "x",
        "parameters": [
            {"name": "BX", "values": [1, 3, 32, 256, 513, 1024, 1025, 2048]},
            {"name": "BY", "values": [1, 2, 4, 31, 1024, 1025]},
            {"name": "BZ", "values": [1, 2, 16, 64, 65, 128]},
            {"name": "SHARED", "values": [0, 1, 49151, 49152, 49153, 101376, 166912, 232447, 232448, 232449, 300000]},
        ],
        "launch": {"grid": [1], "block": ["BX", "BY", "BZ"], "shared_bytes": "SHARED"},
    }
)
TRIVIAL = 'extern "C" __global__ void trivial() { extern __shared__ int s[]; if (blockIdx.y > 7) s[0] = 1; }'


@pytest.fixture(scope="module")
def gpu() -> DeviceInfo:
    return probe_cuda().devices[0]


def gemm() -> Template:
    """The one whose shared memory, block and registers all depend on its parameters."""
    return next(one for one in load_task("gemm").sources("cuda").templates if one.name == "tiles")


def compile_all(limits: DeviceLimits, sources: list[Specialised]) -> list[Any]:
    """Runs in a process of its own."""
    compiler = open_compiler(limits)
    return [compiler.compile(source) for source in sources]


@pytest.mark.gpu
@pytest.mark.slow
def test_what_is_feasible_compiles_and_launches(gpu: DeviceInfo) -> None:
    template = gemm()
    space = feasible(template, [*load_task("gemm").workloads_for("gpu", held_out=False), TINY], gpu.limits)
    points = space.sample(np.random.default_rng(0), POINTS)
    configs = [space.config(point) for point in points]
    assert len(configs) == POINTS
    sources = [specialise(template, config, TINY.types) for config in configs]
    workers = min(16, len(os.sched_getaffinity(0)))
    # Not forked: a child must not inherit the driver's state. Small parts, so that all processes end together.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(compile_all, gpu.limits, sources[at : at + 5]) for at in range(0, POINTS, 5)]
        answers = [answer for part in parts for answer in part.result()]
    refused = [(config, a) for config, a in zip(configs, answers, strict=True) if not isinstance(a, Artifact)]
    assert not refused, refused[:3]

    device = open_device(gpu.limits, gpu.index)
    count = 64 * 64
    a, b, c = (device.allocate(2 * count) for _ in range(3))
    for buffer in (a, b):
        device.write(buffer, np.zeros(2 * count, np.uint8))
    sizes = tuple(np.int32(TINY.sizes[name]) for name in ("m", "n", "k"))
    for config, artifact in zip(configs, answers, strict=True):
        shape = geometry(template, config, TINY)
        assert compiler_rejection(gpu.limits, shape, artifact.resources) is None, (config, artifact.resources)
        device.write(c, np.full(2 * count, 0xFF, np.uint8))
        # A DeviceError here is the failure this test is about; pytest shows it with the point.
        device.launch(BoundLaunch(device.load(artifact), shape, (a, b, c, *sizes)))
        device.synchronize()
        assert not device.read(c).any(), f"{config} does not compute 0 from zeros"


class Driver:
    """A kernel without arguments, launched as the driver likes it."""

    def __init__(self, gpu: DeviceInfo) -> None:
        from cuda.bindings import driver

        self.api = driver
        self.done(driver.cuInit, 0)
        context = self.done(driver.cuDevicePrimaryCtxRetain, self.done(driver.cuDeviceGet, gpu.index))
        self.done(driver.cuCtxSetCurrent, context)
        artifact = open_compiler(gpu.limits).compile(Specialised("cuda", "trivial", TRIVIAL))
        assert isinstance(artifact, Artifact), artifact
        self.module = self.done(driver.cuModuleLoadData, artifact.code)
        self.function = self.done(driver.cuModuleGetFunction, self.module, b"trivial")

    def done(self, function: Any, *arguments: Any) -> Any:
        """The value of a call of the driver that succeeds."""
        code, *values = function(*arguments)
        assert int(code) == 0
        return values[0] if values else None

    def refusal(self, block: tuple[int, int, int], shared: int) -> int:
        """The error of opting in to `shared` bytes or of the launch, 0 when it ran."""
        # Reset, so that no launch profits from what an earlier one was allowed.
        name = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.done(self.api.cuFuncSetAttribute, self.function, name, 48 << 10)
        if shared > 48 << 10 and (code := int(self.api.cuFuncSetAttribute(self.function, name, shared)[0])):
            return code
        (code,) = self.api.cuLaunchKernel(self.function, 1, 1, 1, *block, shared, 0, 0, 0)
        return int(code) or int(self.api.cuCtxSynchronize()[0])


def candidates(template: Template, limits: DeviceLimits, seed: int) -> Iterator[tuple[Config, str | None]]:
    """Different points of the whole product, feasible or not, with the kind of the rule that refuses each."""
    space = feasible(template, [TINY], limits)
    for key in np.random.default_rng(seed).permutation(space.cartesian):
        config = space.domain.config(np.unravel_index(int(key), space.domain.sizes))
        reason = space.reject(config)
        yield config, None if reason is None else reason.reason


@pytest.mark.gpu
@pytest.mark.slow
def test_what_is_refused_for_a_limit_of_the_device_cannot_be_launched_and_what_is_kept_can(
    gpu: DeviceInfo,
) -> None:
    """The second, as a driver that refuses everything would pass for agreement."""
    driver, asked = Driver(gpu), Counter[str]()
    for template, seed in ((gemm(), 1), (ANY_GEOMETRY, 2)):
        kinds = ((config, kind) for config, kind in candidates(template, gpu.limits, seed) if kind in LIMITED)
        for _, (config, kind) in zip(range(POINTS // 2), kinds, strict=False):
            shape = geometry(template, config, TINY)
            code = driver.refusal(shape.block, shape.shared_bytes)
            assert code != 0, f"{config} is refused for its {kind}, but the driver launches {shape}"
            asked[str(kind)] += 1
    assert sum(asked.values()) == POINTS and set(asked) == set(LIMITED)
    kept = [config for config, kind in candidates(ANY_GEOMETRY, gpu.limits, 3) if kind is None]
    assert len(kept) > 200
    for config in kept:
        shape = geometry(ANY_GEOMETRY, config, TINY)
        code = driver.refusal(shape.block, shape.shared_bytes)
        assert code == 0, f"{config} is called feasible, but the driver answers {code} to {shape}"
