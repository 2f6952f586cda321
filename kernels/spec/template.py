"""A template: device source whose execution choices are parameters, with constraints and launch geometry.

Owns the parts of a template, configurations as texts and keys, and the record of traits by which backends differ.
Which points are feasible is the business of `tunesmith.kernels.space`.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from tunesmith.kernels.spec.expression import parse


def unknown_key(wrong: str, known: Sequence[str]) -> str:
    """The sentence for an unknown key, with the key that was meant or the known keys. No full stop at the end."""
    close = difflib.get_close_matches(wrong, known, 1)
    return f"unknown key '{wrong}'; " + (f"did you mean '{close[0]}'?" if close else f"the keys are {', '.join(known)}")


class Strict(BaseModel):
    """A frozen record that files hold; an unknown key is a mistake, and its sentence names the key that was meant."""

    # Infinities are legal (a special value of a fill may be one) and JSON has none, so they travel as text.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: object) -> object:
        if isinstance(given, dict) and (unknown := [key for key in given if key not in cls.model_fields]):
            raise ValueError(unknown_key(str(unknown[0]), list(cls.model_fields)))
        return given


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"give a number, true, false or text in quotes, not {value!r:.80}")


Scalar = Annotated[StrictBool | StrictInt | StrictFloat | StrictStr, BeforeValidator(_plain)]
Config = dict[str, bool | int | float | str]
"""One point: a value for every parameter, by name."""

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
MAX_VALUES = 4096


class Parameter(Strict):
    """A parameter of a template: it becomes a preprocessor macro of the same name, unless it is `launch_only`.

    `values` are in their natural order; when they are numbers a neighbour is the next value up or down. `default` is
    where a search starts and what an untuned template uses; left out, it is the first value. launch_only: only the
    launch geometry uses it, so that values which differ in nothing else share one compilation. doc: its effect on the
    generated code.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    values: Annotated[tuple[Scalar, ...], Field(min_length=1, max_length=MAX_VALUES)]
    default: Scalar | None = None
    launch_only: StrictBool = False
    doc: str = ""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        # Equal values of different types make one macro, and files may lose the difference.
        if repeated := [value for value, count in Counter(self.values).items() if count > 1]:
            raise ValueError(f"the values of parameter {self.name} repeat {repeated[0]!r} (1, 1.0 and true are one)")
        for value in self.values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"the value {value!r} of parameter {self.name} is not finite; a macro cannot hold it")
            if isinstance(value, str) and ("\n" in value or "\r" in value or value.endswith("\\")):
                raise ValueError(f"the value {value!r} of parameter {self.name} does not fit on one line")
        if self.default is not None and not any(
            self.default == value and isinstance(self.default, bool) == isinstance(value, bool) for value in self.values
        ):
            raise ValueError(f"the default {self.default!r} of parameter {self.name} is not among its values")
        return self

    @property
    def start(self) -> bool | int | float | str:
        """The default, or the first value where none is given."""
        # Of `values`, as 1.0 for 1 would be another macro.
        return self.values[0] if self.default is None else self.values[self.values.index(self.default)]

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are close: all are numbers, not flags."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def assignments(config: Mapping[str, Any]) -> str:
    """A configuration, or other values by name, for people: NAME=VALUE in the order they have."""
    return ", ".join(f"{name}={value}" for name, value in config.items())


def described(template: str, config: Mapping[str, Any]) -> str:
    """A configuration of a template for people, also where it has no parameters, as a kernel that a model wrote."""
    return assignments(config) or f"{f'{template}, ' if template else ''}a kernel without parameters"


def config_key(config: Config) -> str:
    """A stable text for a configuration: equal configurations have equal keys, whatever their order."""
    return ",".join(f"{name}={config[name]!r}" for name in sorted(config))


BackendName = Literal["cuda", "triton", "opencl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """How one backend differs from the others, for the rooms that do not compile or launch: the record that a further
    backend adds to `BACKENDS`, beside its compiler and its device in `tunesmith.kernels.backends`.

    language, suffix: of its sources, for people and of files. kernel_prefix, pointer_prefix: what stands before the
    name of a kernel in its definition, and before the type of an array argument. makes_cubins: as CUDA's compilers do:
    machine code is for every device of an architecture, is compiled without one, and tells its globals and static
    shared memory; sources may include headers. on_host: kernels may run in the process that launches them (no assembly,
    output and clocks in a source), and frameworks get arrays as NumPy arrays. nvidia_tools: compute-sanitizer, ncu and
    NVML know its devices. pinned_by_ray: Ray hands its devices out as GPUs, one to each lane, which sees its own as
    device 0; else there is one lane. frameworks: whose arrays an opponent in Python may take. packages: what its
    processes import, beside the workers themselves. harness: the backend of the kernels by which its devices are
    calibrated and results are compared. python: sources are Python, and are compiled for classes of arguments.
    """

    language: str
    suffix: str
    kernel_prefix: str
    pointer_prefix: str
    makes_cubins: bool
    on_host: bool
    nvidia_tools: bool
    pinned_by_ray: bool
    frameworks: tuple[str, ...]
    packages: tuple[str, ...]
    harness: BackendName
    python: bool = False


_CUDA = BackendTraits(
    language="CUDA",
    suffix=".cu",
    kernel_prefix='extern "C" __global__ void',
    pointer_prefix="",
    makes_cubins=True,
    nvidia_tools=True,
    pinned_by_ray=True,
    on_host=False,
    frameworks=("cupy", "torch"),
    packages=("cupy", "cuda.bindings.driver", "cuda.bindings.nvrtc", "pynvml"),
    harness="cuda",
)
BACKENDS: Mapping[str, BackendTraits] = {
    "cuda": _CUDA,
    "triton": replace(_CUDA, language="Triton", suffix=".py", kernel_prefix="@triton.jit def", python=True),
    "opencl": BackendTraits(
        language="OpenCL",
        suffix=".cl",
        kernel_prefix="__kernel void",
        pointer_prefix="__global ",
        makes_cubins=False,
        nvidia_tools=False,
        pinned_by_ray=False,
        on_host=True,
        frameworks=("numpy", "torch"),
        packages=("pyopencl",),
        harness="opencl",
    ),
}
"""By name, in the order in which a run prefers them."""
TRITON_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Options of Triton's compiler that may be parameters, or be fixed, beside the kernel's own arguments."""


def without_options(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a kernel's own arguments in a configuration for Triton, and the compiler's options in it."""
    own = {name: value for name, value in config.items() if name not in TRITON_OPTIONS}
    return own, {name: config[name] for name in TRITON_OPTIONS if name in config}


MAX_SOURCE_BYTES = 1 << 20
MAX_PARAMETERS = 64


def _as_text(value: object) -> object:
    """A bare number or flag, which is natural in TOML and in a model's answer, as the expression that it is."""
    return str(value) if isinstance(value, int | float) else value


ExpressionText = Annotated[str, BeforeValidator(_as_text), Field(min_length=1, max_length=2000)]
TEMPLATE_NAME = r"^[^\x00-\x1f\"\\/]{1,80}$"
"""The name stands in a #line directive and in file names."""


class Constraint(Strict):
    """A condition every configuration must meet, over parameters, the workload's sizes and its types. because: one
    sentence for the reader of a rejection."""

    expression: ExpressionText
    because: str = ""


DEVICE_NAMES = frozenset({"compute_capability", "max_threads_per_sm"})
"""Names that constraints may use of a device: a GPU's compute capability, 90 for 9.0 (0 without CUDA), and threads."""


class LaunchGeometry(Strict):
    """Up to three expressions for the grid (in blocks) and up to three for the block (in threads); OpenCL's
    work-groups are blocks. `shared_bytes` is dynamic shared memory per block."""

    grid: Annotated[tuple[ExpressionText, ...], Field(min_length=1, max_length=3)]
    block: Annotated[tuple[ExpressionText, ...], Field(min_length=1, max_length=3)]
    shared_bytes: ExpressionText = "0"

    @field_validator("grid", "block", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        return (value,) if isinstance(value, str | int | float) else value


class Template(Strict):
    """Source plus parameters plus constraints plus launch geometry.

    Parameters reach the source as macros of the same name; the workload's types reach it as type macros (see
    `tunesmith.kernels.build.source`). A kernel without parameters is a template with one point: baselines are that.

    source: the whole device source; entry: the kernel's name, in CUDA extern "C". static_shared_bytes: of shared memory
    that the source declares statically. max_registers: registers per thread the compiler may use; 0 means no cap.
    device_globals: variables in global memory that the kernel needs, by symbol; any other one is refused as state.
    """

    name: Annotated[str, Field(pattern=TEMPLATE_NAME)]
    backend: BackendName
    source: Annotated[str, Field(min_length=1)]
    entry: Annotated[str, Field(pattern=NAME_PATTERN)]
    parameters: Annotated[tuple[Parameter, ...], Field(max_length=MAX_PARAMETERS)] = ()
    constraints: tuple[Constraint, ...] = ()
    launch: LaunchGeometry
    static_shared_bytes: ExpressionText = "0"
    max_registers: ExpressionText | None = None
    fast_math: ExpressionText = "False"
    device_globals: tuple[str, ...] = ()
    description: str = ""

    @field_validator("source")
    @classmethod
    def _bounded(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"the source is larger than {MAX_SOURCE_BYTES} bytes")
        if "\0" in source:
            raise ValueError("the source holds a NUL character, where compilers stop reading")
        return source

    @field_validator("constraints", mode="before")
    @classmethod
    def _bare_constraints(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return tuple({"expression": item} if isinstance(item, str) else item for item in value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [parameter.name for parameter in self.parameters]
        if len(names) > len(set(names)):
            raise ValueError(f"the parameter {max(names, key=names.count)} is listed twice")
        for parameter in self.parameters:
            if parameter.launch_only and re.search(rf"\b{parameter.name}\b", self.source):
                raise ValueError(
                    f"the parameter {parameter.name} is launch_only, so that the source has no macro of it, but the "
                    "source names it: remove one of the two"
                )
        return self

    @property
    def has_choices(self) -> bool:
        """Whether there is anything to search: a parameter with at least two values."""
        return any(len(parameter.values) > 1 for parameter in self.parameters)

    def __copy__(self) -> Self:
        # What `model_copy` then changes has an id of its own.
        copied = super().__copy__()
        copied.__dict__.pop("id", None)
        return copied

    @cached_property
    def id(self) -> str:
        """Content hash: templates with the same meaning-bearing fields have the same id. Every event of a run asks."""
        # A parameter's `launch_only` counts only where it is set: the ids of templates without one stay as they were.
        plain = {place: {"launch_only"} for place, one in enumerate(self.parameters) if not one.launch_only}
        payload = self.model_dump_json(exclude={"description": True, "name": True, "parameters": plain})
        return f"{self.name}-{hashlib.sha256(payload.encode()).hexdigest()[:10]}"

    @property
    def default_config(self) -> Config:
        return {parameter.name: parameter.start for parameter in self.parameters}

    def runs_on(self, device: Mapping[str, int]) -> bool:
        """Whether the constraints that name nothing but the device hold. device: a value for each of `DEVICE_NAMES`."""
        return not self.refusals(device)

    def refusals(self, device: Mapping[str, int]) -> list[str]:
        """The constraints that name nothing but the device, and do not hold on this one."""
        parsed = [parse(one.expression) for one in self.constraints]
        return [one.text for one in parsed if one.names and one.names <= DEVICE_NAMES and not one.evaluate(device)]

    def expressions(self) -> dict[str, str]:
        """Every expression by the key it stands at."""
        launch, found = self.launch, {f"constraint {n}": one.expression for n, one in enumerate(self.constraints, 1)}
        for name, texts in (("grid", launch.grid), ("block", launch.block)):
            found |= {f"key launch.{name}, {axis}": text for axis, text in zip("xyz", texts, strict=False)}
        found |= {"key launch.shared_bytes": launch.shared_bytes, "key static_shared_bytes": self.static_shared_bytes}
        found["key fast_math"] = self.fast_math
        return found | ({} if self.max_registers is None else {"key max_registers": self.max_registers})
