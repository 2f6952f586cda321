"""From limits to rules: which points are feasible, why others are not, and what the compiler's answer rules out."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.targets import CAPABILITIES, resolve_target
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.outcome import Resources
from tunesmith.kernels.space import SpaceError, compiler_rejection, device_names, feasible, require_points, rules
from tunesmith.kernels.spec.expression import ExpressionError
from tunesmith.kernels.spec.task import Geometry, Workload, geometry
from tunesmith.kernels.spec.template import Template

H200 = CAPABILITIES["9.0"]
SMALL = Workload(name="small", sizes={"n": 1000, "d": 64}, types={"T": "float16"})
LARGE = Workload(name="large", sizes={"n": 1 << 22, "d": 96}, types={"T": "float32"})
OPENCL = DeviceLimits(
    name="cpu",
    backend="opencl",
    kind="cpu",
    arch="x",
    max_threads_per_block=4096,
    max_block_dims=(4096, 4096, 4096),
    shared_per_block=1 << 20,
    shared_per_block_optin=1 << 20,
)


def template(
    launch: dict[str, Any], *constraints: Any, values: dict[str, list[Any]] | None = None, **fields: Any
) -> Template:
    values = values or {"X": [16, 32, 512, 2048], "Y": [1, 2, 128]}
    return Template.model_validate(
        {
            "name": "t",
            "backend": "cuda",
            "entry": "k",
            "source": "x",
            "launch": {"grid": [1], "block": [1], **launch},
            "parameters": [{"name": name, "values": options} for name, options in values.items()],
            "constraints": list(constraints),
            **fields,
        }
    )


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


def test_fast_math_may_depend_on_types() -> None:
    tuned = template({}, values={"X": [1, 2]}, fast_math="X == 2 and T == float32")
    assert [rule.label for rule in rules(tuned, [SMALL, LARGE], H200) if rule.kind == "fast_math"] == [
        "fast_math has a value for small",
        "fast_math has a value for large",
    ]
    assert len(feasible(tuned, [SMALL, LARGE], H200)) == 2
    assert not [rule for rule in rules(template({}), [SMALL], H200) if rule.kind == "fast_math"]


def test_constraints_say_why() -> None:
    tuned = template({"block": ["X"]}, {"expression": "X * Y <= d * 16", "because": "rows are short."})
    space = feasible(tuned, [SMALL, LARGE], H200)
    reason = space.reject({"X": 512, "Y": 128})
    assert reason is not None and (reason.reason, reason.rule) == ("constraint", "X * Y <= d * 16 for small")
    assert reason.detail == "`X * Y <= d * 16` does not hold for X=512, Y=128, d=64 (rows are short)."
    assert [rule.label for rule in rules(tuned, [SMALL, LARGE], H200)][:2] == [
        "X * Y <= d * 16 for small",
        "X * Y <= d * 16 for large",
    ]
    reason = space.reject({"X": 512, "Y": 3})
    assert reason is not None and reason.reason == "unknown_value"


@pytest.mark.parametrize(
    ("target", "capability"), [("sm_90", 90), ("sm_90a", 90), ("sm_100f", 100), ("sm_120", 120), ("h200", 90)]
)
def test_constraints_know_the_compute_capability_of_any_target(target: str, capability: int) -> None:
    assert device_names(resolve_target(target)) == {"compute_capability": capability}
    assert device_names(OPENCL) == {"compute_capability": 0}


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
    with pytest.raises(SpaceError) as caught:
        require_points(feasible(tuned, [SMALL], H200), tuned)
    assert "without `X > 2048` there would be some" in str(caught.value) and "among 12" in str(caught.value)
    tuned = template({"block": ["X * 64"]})
    with pytest.raises(SpaceError, match=r"without `threads per block within 1 to 512` there would be some"):
        require_points(feasible(tuned, [SMALL], dataclasses.replace(H200, max_threads_per_block=512)), tuned)
    tuned = template({"block": ["X"]}, "X > 2048", "Y > 128")
    with pytest.raises(SpaceError, match="several constraints exclude all"):
        require_points(feasible(tuned, [SMALL], H200), tuned)
    require_points(feasible(template({"block": ["X"]}), [SMALL], H200), tuned)


@pytest.mark.parametrize(
    ("limits", "threads", "shared", "resources", "reason"),
    [
        (H200, 1024, 0, Resources(64, 0), None),
        (H200, 1024, 0, Resources(65, 0), "registers_per_block"),
        (H200, 1056, 0, Resources(16, 0), "threads_per_block"),
        (H200, 32, 232448, Resources(16, 0), None),
        (H200, 32, 232449, Resources(16, 0), "shared_per_block"),
        # A device without registers refuses none.
        (OPENCL, 64, 1 << 20, Resources(None, 0), None),
        (OPENCL, 64, 1 << 20, Resources(None, 4), "shared_per_block"),
    ],
)
def test_launches(limits: DeviceLimits, threads: int, shared: int, resources: Resources, reason: str | None) -> None:
    rejected = compiler_rejection(limits, Geometry((1, 1, 1), (threads, 1, 1), shared), resources)
    assert (rejected.reason if rejected else None) == reason
