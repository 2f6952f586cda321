"""A task: one kernel to tune, its arguments, its reference, its workloads, and when a result is right.

Owns the meaning of a task once read; reading it from files is `tunesmith.kernels.spec.taskfile`. A task is
self-contained (sources and the reference's text travel inside), so that it can be sent to any node of a cluster. Also
owns the geometry of one launch: grid, block and dynamic shared memory of a template at a configuration on a workload.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, model_validator

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.dtypes import DTYPE_NAMES, DTYPES
from tunesmith.kernels.spec.expression import MAX_INTEGER, ExpressionError, parse
from tunesmith.kernels.spec.template import NAME_PATTERN, BackendName, Config, ExpressionText, Strict, Template

Identifier = Annotated[str, Field(pattern=NAME_PATTERN)]


class TaskError(TunesmithError):
    """A task says something that cannot be carried out."""


class Special(Strict):
    """A share of a buffer's elements, chosen at random, that hold `value` instead of what `fill` gives."""

    value: float
    fraction: Annotated[float, Field(gt=0, le=1)]


ORDERED = ("sorted", "permutation", "offsets")
"""The kinds of `Fill` whose elements depend on each other, along the last dimension of an array."""


class Fill(Strict):
    """How an input's elements are drawn: normal(mean, scale), uniform(mean - scale, mean + scale) or constant(mean);
    `sorted`, ascending, and uniform where it has ends, else normal; a `permutation` of 0 to n - 1; or `offsets`, n
    ascending numbers of which the first is 0 and the last `high`. Integer types are rounded.
    low, high: ends that occur, as expressions of sizes, to which further contents of floats in checks keep as well;
    numbers become mean and scale of a uniform fill."""

    kind: Literal["normal", "uniform", "constant", "sorted", "permutation", "offsets"] = "normal"
    mean: float = 0.0
    scale: float = 1.0
    low: ExpressionText | None = None
    high: ExpressionText | None = None
    special: tuple[Special, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _ends(cls, given: object) -> object:
        given = {"kind": given} if isinstance(given, str) else given
        if not isinstance(given, dict) or not isinstance(kind := given.get("kind", "uniform"), str):
            return given
        low, high = given.get("low"), given.get("high")
        moved = given.get("mean", 0.0) != 0 or given.get("scale", 1.0) != 1
        if kind in ("permutation", "offsets"):
            if moved or low is not None or (kind == "offsets") != (high is not None) or given.get("special"):
                other = ' but `high`, its last, such as high = "nnz"' if kind == "offsets" else ""
                raise ValueError(f"a fill of the kind {kind} has no further key{other}")
            return given
        if low is None and high is None:
            return given
        if moved or low is None or high is None or kind not in ("uniform", "sorted"):
            raise ValueError("give `low` and `high`, both, and no `mean`, `scale` or `kind` but uniform and sorted")
        if kind == "sorted" or not (isinstance(low, int | float) and isinstance(high, int | float)):
            return {**given, "kind": kind}
        if not low <= high:
            raise ValueError(f"`low` = {low} lies above `high` = {high}")
        kept = {name: value for name, value in given.items() if name not in ("low", "high")}
        return {**kept, "kind": "uniform", "mean": (low + high) / 2, "scale": (high - low) / 2}

    def at(self, workload: Workload) -> Fill:
        """The fill whose mean and scale are those of its ends on `workload`; raises `ExpressionError`."""
        if self.high is None:
            return self
        low, high = (float(parse(text).number(workload.names)) for text in (self.low or "0", self.high))
        return self.model_copy(update={"mean": (low + high) / 2, "scale": (high - low) / 2})

    @property
    def distribution(self) -> str:
        """The kind of the elements, whatever their order."""
        return self.kind if self.kind not in ORDERED else "normal" if self.high is None else "uniform"

    @property
    def described(self) -> str:
        """In words, with all digits of whole numbers."""
        match self.kind:
            case "permutation":
                return "a permutation of 0 to n - 1"
            case "uniform" | "sorted" | "offsets" if self.high is not None:
                return f"{self.kind}, {self.low or 0} to {self.high}"
            case "uniform":
                return f"uniform, {self.mean - self.scale:.12g} to {self.mean + self.scale:.12g}"
            case "constant":
                return f"constant, {self.mean:.12g}"
        return f"{self.kind}, mean {self.mean:.12g}, scale {self.scale:.12g}"


class Argument(Strict):
    """One argument of the kernel, in the order of its signature.

    role: `in` is read only, `out` is written only, `inout` both (its result is compared too), `scalar` is passed by
    value. dtype: a data type or one of the task's type names. shape: an expression for each dimension. values: of a
    scalar, further values that a kernel must be right for; one that has none is checked with some of Tunesmith's
    choice, where reference and baseline follow, unless it is a whole number that depends on sizes.
    """

    name: Identifier
    role: Literal["in", "out", "inout", "scalar"]
    dtype: str
    shape: tuple[ExpressionText, ...] = ()
    fill: Fill = Fill()
    value: ExpressionText | None = None
    values: tuple[ExpressionText, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.role == "scalar" and (self.value is None or self.shape):
            raise ValueError(f"the scalar {self.name} needs `value` (an expression) and no `shape`")
        if self.role != "scalar" and (not self.shape or self.value is not None or self.values):
            raise ValueError(f"the array {self.name} needs `shape` (an expression for each dimension) and no value")
        return self


ORIGINAL_IS_REFERENCE = (
    "The reference is the original kernel: results agree with the original's, which does not prove that they are right."
)


class Tolerance(Strict):
    """An element is right when |got - expected| <= atol + rtol * |expected|, or both are the same infinity or NaN."""

    rtol: Annotated[float, Field(ge=0)]
    atol: Annotated[float, Field(ge=0)]


class Workload(Strict):
    """One shape (and choice of types) the kernel is used on.

    weight: its share in the general configuration's objective. held_out: never tuned on, only verified on. devices:
    the kinds of device it is meant for (large shapes make no sense on a CPU).
    """

    name: str
    sizes: dict[Identifier, StrictInt]
    types: dict[Identifier, str]
    weight: Annotated[float, Field(gt=0)] = 1.0
    held_out: bool = False
    devices: tuple[Literal["gpu", "cpu"], ...] = ("gpu", "cpu")

    @property
    def names(self) -> dict[str, Any]:
        """The names in expressions: sizes as ints, type names and data types as text."""
        return {**DTYPE_NAMES, **self.sizes, **self.types}


class Baseline(Strict):
    """The kernel a candidate is compared with. label: its honest kind, such as plain, extracted, production."""

    label: str = "plain"
    template: Template


class Opponent(Strict):
    """A function or kernel that a user would have called instead, timed beside the kernels. label: its honest kind.
    on_request: timed only where all opponents are asked for, as it costs seconds to start or to compile."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    label: Literal["vendor library", "eager", "compiled", "production"]
    on_request: bool = False


class KernelOpponent(Opponent):
    """A kernel with the task's signature, compiled, checked and launched as the baseline is. configs: of a kernel in
    Triton, which is then called as people call it: `triton.autotune` chooses among them at the first call."""

    template: Template
    configs: tuple[Config, ...] = ()


class FunctionOpponent(Opponent):
    """A function in Python.

    source, function: Python text and the function in it, called with every argument that is read by name, arrays in
    their storage types; it returns the outputs as a dict, in their order, or alone. One with a parameter for each `out`
    argument gets those arrays too, and may return nothing: then it wrote them, and changed the `inout` ones in place.
    framework: whose arrays it takes; CuPy's and PyTorch's on CUDA, NumPy's and PyTorch's with OpenCL.
    """

    source: str
    function: Identifier
    framework: Literal["numpy", "cupy", "torch"]


AnyOpponent = KernelOpponent | FunctionOpponent
OpponentChoice = Literal["usual", "all", "none"]
"""Which opponents are timed: all that are not on request, every one, or none."""


class BackendSources(Strict):
    baseline: Baseline
    templates: tuple[Template, ...] = ()
    opponents: tuple[KernelOpponent, ...] = ()


class Task(Strict):
    """A kernel to tune; see docs/tasks.md for the file format. tolerance: by data type or by output.

    reference: empty where the original kernel is the reference, else Python source that defines `reference_name`,
    called with every argument that is read (arrays in float64, scalars as numbers) by name; it returns a dict of
    float64 arrays, one for each `out` and `inout`. framework: whose arrays it takes and gives. bytes, flops:
    expressions for the least memory traffic (each input read once, each output written once) and the arithmetic.
    requires: what holds of the sizes wherever the kernel is called; checks keep to it, and to `conditions`.
    arithmetic: the data type whose measured peak bounds the flops ("float32" for plain float code); empty where another
    unit, such as tensor cores, may do them. nan: where a NaN among the inputs must reach the results that the reference
    says, or those may be anything.
    """

    name: Identifier
    summary: str = ""
    entry: Identifier
    arguments: Annotated[tuple[Argument, ...], Field(min_length=1)]
    reference: str
    reference_name: Identifier
    framework: Literal["numpy", "torch"] = "numpy"
    bytes: ExpressionText
    flops: ExpressionText = "0"
    requires: tuple[ExpressionText, ...] = ()
    arithmetic: str = ""
    nan: Literal["propagates", "any"] = "propagates"
    types: dict[Identifier, tuple[str, ...]] = Field(default_factory=dict)
    tolerance: dict[str, Tolerance] = Field(default_factory=dict)
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    backends: Annotated[dict[BackendName, BackendSources], Field(min_length=1)]
    opponents: tuple[FunctionOpponent, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.outputs:
            raise ValueError("no argument has the role out or inout, so there is nothing to check")
        _reject_repeats("argument", [argument.name for argument in self.arguments])
        _reject_repeats("workload", [workload.name for workload in self.workloads])
        for name, options in self.types.items():
            if not options:
                raise ValueError(f"types.{name} lists no dtype; use some of {', '.join(DTYPES)}")
            if name in DTYPES or any(name in workload.sizes for workload in self.workloads):
                raise ValueError(f"types.{name}: {name} is also a dtype or a size of a workload; rename it")
            for dtype in options:
                _require_dtype(dtype, f"types.{name}")
        for argument in self.arguments:
            if argument.dtype not in self.types:
                _require_dtype(argument.dtype, f"argument {argument.name}: dtype", extra=tuple(self.types))
            kind = argument.fill.kind
            if kind in ("permutation", "offsets") and any(DTYPES[one].is_float for one in self.dtypes_of(argument)):
                raise ValueError(f"argument {argument.name}: the fill `{kind}` is of whole numbers: use int32 or int64")
        outputs = {argument.name: self.dtypes_of(argument) for argument in self.outputs}
        of_outputs = {dtype for dtypes in outputs.values() for dtype in dtypes}
        for name in self.tolerance:
            if name in outputs:
                continue
            _require_dtype(name, "tolerance", extra=tuple(outputs))
            if name not in of_outputs:
                has = ", ".join(sorted(of_outputs))
                raise ValueError(f"tolerance.{name}: no output has the type {name}, only {has}: remove or correct it")
        used = {dtype for options in self.types.values() for dtype in options}
        used |= {argument.dtype for argument in self.arguments} - set(self.types)
        for backend, sources in self.backends.items():
            for dtype in sorted(used):
                if backend not in DTYPES[dtype].c_names:
                    raise ValueError(
                        f"the dtype {dtype} is not available on the backend {backend}, only on "
                        f"{', '.join(DTYPES[dtype].c_names)}: use another type or leave out [backends.{backend}]"
                    )
            _reject_repeats(f"{backend} template", [template.name for template in sources.templates])
            _reject_repeats("opponent", [one.name for one in (*sources.opponents, *self.opponents)])
        if all(workload.held_out for workload in self.workloads):
            raise ValueError("every workload is held out; leave at least one to tune on")
        return self

    @property
    def weights(self) -> dict[str, float]:
        return {workload.name: workload.weight for workload in self.workloads}

    @property
    def size_names(self) -> frozenset[str]:
        return frozenset(self.workloads[0].sizes)

    @property
    def original_is_reference(self) -> bool:
        return not self.reference

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats for the reader of a verdict about its tolerance and reference."""
        return (ORIGINAL_IS_REFERENCE,) if self.original_is_reference else ()

    @property
    def scalars(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.role == "scalar")

    @property
    def arrays(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.role != "scalar")

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arrays that a kernel reads."""
        return tuple(argument for argument in self.arguments if argument.role in ("in", "inout"))

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.role in ("out", "inout"))

    def workload(self, name: str) -> Workload:
        named = {workload.name: workload for workload in self.workloads}
        if name in named:
            return named[name]
        raise TaskError(f"The task {self.name} has no workload {name!r}; it has {', '.join(named)}.")

    def workloads_for(self, kind: str, *, held_out: bool | None = None) -> tuple[Workload, ...]:
        """The workloads meant for a kind of device; with `held_out` either the tuned or the held-out ones."""
        return tuple(w for w in self.workloads if kind in w.devices and held_out in (None, w.held_out))

    def sources(self, backend: str) -> BackendSources:
        for name, sources in self.backends.items():
            if name == backend:
                return sources
        raise TaskError(
            f"The task {self.name} has no {backend} sources; it has {', '.join(self.backends) or 'none'}: "
            f"add [backends.{backend}] to its task.toml or choose another --backend."
        )

    def opponents_on(self, backend: str, which: OpponentChoice) -> tuple[AnyOpponent, ...]:
        """The opponents of a choice, kernels first."""
        found: tuple[AnyOpponent, ...] = (*self.sources(backend).opponents, *self.opponents)
        return tuple(one for one in found if which == "all" or (which == "usual" and not one.on_request))

    def dtypes_of(self, argument: Argument) -> tuple[str, ...]:
        """The data types that an argument may have."""
        return self.types.get(argument.dtype, (argument.dtype,))

    def dtype_of(self, argument: Argument, workload: Workload) -> str:
        return workload.types.get(argument.dtype, argument.dtype)

    def shape_of(self, argument: Argument, workload: Workload) -> tuple[int, ...]:
        """The argument's shape in elements; raises `TaskError` when a dimension is not positive."""
        try:
            names = workload.names
            shape = tuple(parse(text).integer(names) for text in argument.shape)
        except ExpressionError as error:
            raise TaskError(f"Task {self.name}, workload {workload.name}, argument {argument.name}: {error}") from error
        if any(extent <= 0 for extent in shape):
            raise TaskError(
                f"Task {self.name}, workload {workload.name}: the argument {argument.name} has the shape "
                f"{shape}; every dimension must be positive: fix the sizes or the shape."
            )
        return shape

    def scalar_of(self, argument: Argument, workload: Workload) -> int | float:
        assert argument.value is not None
        value = self._number(f"the scalar {argument.name}", argument.value, workload)
        dtype = DTYPES[self.dtype_of(argument, workload)]
        low, high = dtype.span
        if not low <= value <= high or (not dtype.is_float and value != math.floor(value)):
            raise TaskError(
                f"Task {self.name}, workload {workload.name}: the scalar {argument.name} = `{argument.value}` gives "
                f"{value!r}, but {dtype.name} holds {'' if dtype.is_float else 'whole numbers from '}{low} to {high} "
                "only: use another type, ceil(...) or floor(...)."
            )
        return float(value) if dtype.is_float else int(value)

    def tolerance_of(self, dtype: str, output: str = "") -> Tolerance:
        """That of the output, or the task's for the data type, or the data type's own."""
        own = self.tolerance.get(output) or self.tolerance.get(dtype)
        return own or Tolerance(rtol=DTYPES[dtype].rtol, atol=DTYPES[dtype].atol)

    def bytes_of(self, workload: Workload) -> float:
        return float(self._number("bytes", self.bytes, workload))

    def flops_of(self, workload: Workload) -> float:
        return float(self._number("flops", self.flops, workload))

    def work_of(self, workload: Workload) -> tuple[float, float, str]:
        """The work that the roofs bound: bytes, flops, and the data type of these (`arithmetic`)."""
        return self.bytes_of(workload), self.flops_of(workload), self.arithmetic

    @property
    def conditions(self) -> dict[str, str]:
        """Conditions on sizes under which arrays can be filled as declared, with the mistake where one fails."""
        found = {}
        for argument in self.arguments:
            place, fill, last = f"argument {argument.name}, key fill", argument.fill, "".join(argument.shape[-1:])
            low, high = fill.low or "0", f"({last}) - 1" if fill.kind == "permutation" else fill.high
            if not high or not last:
                continue
            found[f"({low}) <= ({high})"] = f"{place}: the low end `{low}` lies above `{high}`: correct one of them"
            for dtype in self.dtypes_of(argument):
                if not (kind := DTYPES[dtype]).is_float:
                    least, most = (int(max(-MAX_INTEGER, min(end, MAX_INTEGER))) for end in kind.span)
                    beyond = f"{place}: {dtype} holds {least} to {most}, not `{low}` to `{high}`: use a wider type"
                    found[f"{argument.dtype} != {dtype} or {least} <= ({low}) and ({high}) <= {most}"] = beyond
        return found

    def allows(self, workload: Workload, requirement: str | None = None) -> bool:
        """Whether the kernel may be called with the workload's sizes, or whether one `requirement` allows that."""
        texts = (*self.requires, *self.conditions) if requirement is None else (requirement,)
        return all(bool(self._number("requires", text, workload)) for text in texts)

    def _number(self, what: str, text: str, workload: Workload) -> bool | int | float:
        try:
            return parse(text).number(workload.names)
        except ExpressionError as error:
            raise TaskError(f"Task {self.name}, workload {workload.name}, {what}: {error}") from error


def _reject_repeats(what: str, names: list[str]) -> None:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the {what} {repeated[0]} is listed twice")


def _require_dtype(dtype: str, where: str, extra: tuple[str, ...] = ()) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"{where}: the dtype '{dtype}' is not known; use one of {', '.join([*extra, *DTYPES])}")


@dataclass(frozen=True, slots=True)
class Geometry:
    """One launch: grid in blocks, block in threads, dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


def geometry(template: Template, config: Config, workload: Workload) -> Geometry:
    """The launch of `template` at `config` on `workload`; raises `ExpressionError` when it has no whole value."""
    names = {**workload.names, **config}

    def extents(texts: tuple[str, ...]) -> tuple[int, int, int]:
        values = [parse(text).integer(names) for text in texts]
        x, y, z = values + [1] * (3 - len(values))
        return x, y, z

    shared = parse(template.launch.shared_bytes).integer(names)
    return Geometry(extents(template.launch.grid), extents(template.launch.block), shared)
