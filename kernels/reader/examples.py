"""A task from a kernel and examples of its arguments: shapes, types, contents and workloads as they show them.

Owns how dimensions become sizes. Each distinct course of a dimension over the examples is one size; the shapes that the
kernel reaches (`tunesmith.kernels.reader.facts`) tell sizes apart that the examples happen to make equal, and give the
whole-number parameters their values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from tunesmith.kernels.reader.draft import ReadKernel, least_bytes, read_kernel
from tunesmith.kernels.reader.facts import Parameter, Role, product
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, BackendSources, Baseline, Fill, Task, Tolerance, Workload
from tunesmith.kernels.spec.template import LaunchGeometry, Template
from tunesmith.kernels.spec.validation import validate_task

WHERE = "tune_kernel"
MIN_NUMBER = 16
"""A number in a grid that is no smaller, and equals a size, is that size."""


def read_signature(source: str, entry: str | None) -> ReadKernel:
    """The arguments of the kernel `entry` of `source` (CUDA C++ or OpenCL C), or the only one. Raises `SourceError`."""
    return required(read_kernel(source, entry, WHERE, option="entry"))


def required(read: ReadKernel) -> ReadKernel:
    """A kernel of which a task can be made. Raises `SourceError`."""
    for name, questions in read.facts.questions.items():
        if hidden := next((one for one in questions if one.startswith("the role")), ""):
            raise SourceError(
                f"{WHERE}: what the kernel does with {name} is not known ({hidden}); make the pointer const if it "
                "is only read, or draft a task with `tunesmith init`."
            )
    if not read.written:
        raise SourceError(f"{WHERE}: the kernel {read.name} writes none of its arrays, so there is nothing to check.")
    return read


def task_from(
    signature: ReadKernel,
    source: str,
    reference: tuple[str, str, Literal["numpy", "torch"]],
    examples: Sequence[Mapping[str, Any]],
    *,
    grid: Sequence[str | int] | None = None,
    block: Sequence[str | int] | None = None,
    tolerance: Mapping[str, tuple[float, float]] | None = None,
    fills: Mapping[str, Any] = MappingProxyType({}),
    template: Template | None = None,
    first: Mapping[str, Any] = MappingProxyType({}),
) -> Task:
    """The task. examples: for each workload NumPy arrays by name, outputs included, and scalars; reference: its text,
    function and framework; grid, block: of the launch, where the code does not tell; tolerance: rtol and atol by data
    type or output; fills: of arrays, as `Fill` has them, instead of the examples' range; template: of the kernel, where
    it comes with one, and `first` its values for the baseline. Raises `TunesmithError`."""
    if grid is None and (unknown := signature.facts.unknown):
        raise SourceError(
            f"{WHERE}: {unknown} cannot be read from the code; give the launch, such as "
            'grid=["ceil_div(n, 256)"], block=[256].'
        )
    sizes = _Sizes(signature, examples, grid is not None)
    launch = _launch(signature, sizes, grid, block)
    if template is not None:
        template = sizes.translated(template)
        values = {name: str(value) for name, value in first.items()}
        axes = template.launch.grid
        bound = (re.sub(r"\b[A-Za-z_]\w*\b", lambda name: values.get(name[0], name[0]), one) for one in axes)
        launch = launch.model_copy(update={"grid": tuple(bound)})
    if not isinstance(fills, Mapping) or not fills.keys() <= set(signature.read):
        raise SourceError(f"{WHERE}: fills: give a dict by names of {', '.join(signature.read)}, not {fills!r:.80}.")
    like = [_argument(one, signature.facts.roles.get(one.name), sizes, examples) for one in signature.parameters]
    arguments = tuple(Argument(**{**one.model_dump(), "fill": fills.get(one.name, one.fill)}) for one in like)
    baseline = Template(
        name="baseline",
        backend=signature.backend,
        source=signature.slice.text,
        entry=signature.name,
        launch=launch,
        static_shared_bytes=signature.facts.static,
    )
    workloads = list[Workload]()
    for number in range(len(examples)):
        own = sizes.of(number)
        if own not in [one.sizes for one in workloads]:
            name = "x".join(map(str, own.values())) or f"workload{number}"
            workloads.append(Workload(name=name, sizes=own, types={}))
    task = Task(
        name=signature.name,
        entry=signature.name,
        arguments=arguments,
        reference=reference[0],
        reference_name=reference[1],
        framework=reference[2],
        bytes=least_bytes((one.role, one.shape, one.dtype) for one in arguments if one.role != "scalar"),
        tolerance=_tolerances(tolerance or {}),
        workloads=tuple(workloads),
        backends={
            signature.backend: BackendSources(
                baseline=Baseline(label="as given", template=baseline),
                templates=() if template is None else (template,),
            )
        },
    )
    if fills:
        validate_task(task, WHERE)
    return task


def _tolerances(given: Mapping[str, tuple[float, float]]) -> dict[str, Tolerance]:
    pairs = given.values() if isinstance(given, Mapping) else [given]
    if not all(isinstance(one, tuple | list) and len(one) == 2 for one in pairs):
        raise SourceError(
            f"{WHERE}: tolerance: give pairs of rtol and atol, such as {{'float32': (1e-5, 1e-6)}}, not {given!r:.80}."
        )
    return {name: Tolerance(rtol=one[0], atol=one[1]) for name, one in given.items()}


class _Sizes:
    """Sizes with their values in each example, and what shapes and whole-number scalars are in terms of them."""

    def __init__(self, signature: ReadKernel, examples: Sequence[Mapping[str, Any]], launched: bool) -> None:
        self._signature, self._examples = signature, examples
        facts = signature.facts
        self._values: dict[str, list[int]] = {}
        self.derived: dict[str, str] = {}
        whole = [one.name for one in facts.parameters if one.whole and one.name not in facts.values]
        # Where the launch is given, sizes that count the blocks of another one play no part.
        self._whole = [*whole, *(one for one in facts.sizes if one not in whole and not launched)]
        known = {name: {at for dim in dims for at in parse(dim).names} for name, dims in facts.shapes.items()}
        self._drafted = {name: facts.shapes[name] for name, names in known.items() if names <= set(self._whole)}
        self._given()
        self._solve()
        self.shapes = {name: self._shape(name) for name in (*signature.read, *signature.written)}
        self._derive()
        if missing := [name for name in self._whole if name not in self._values and name not in self.derived]:
            raise SourceError(
                f"{WHERE}: the value of {missing[0]} cannot be told from the arrays; give each example as a dict with "
                f"it: inputs=[{{..., '{missing[0]}': 1024}}]."
            )

    @property
    def names(self) -> set[str]:
        """The names that an expression may use."""
        return {*self._values, *self.derived}

    def of(self, number: int) -> dict[str, int]:
        """The sizes in one example."""
        return {name: values[number] for name, values in self._values.items()}

    def text(self, expression: str) -> str:
        """An expression of the kernel's parameters as one of sizes."""
        names = parse(expression).names
        for name in sorted(names & self.derived.keys()):
            expression = re.sub(rf"\b{name}\b", f"({self.derived[name]})", expression)
        return expression

    def translated(self, template: Template) -> Template:
        """A template in terms of sizes, where it has the kernel's parameters or numbers that are sizes in examples."""
        values = {str(value): name for name, value in reversed(self.of(0).items()) if value >= MIN_NUMBER}
        axes = [re.sub(r"\b\d+\b", lambda one: values.get(one[0], one[0]), text) for text in template.launch.grid]
        launch = template.launch.model_copy(update={"grid": tuple(map(self.text, axes))})
        rules = tuple(one.model_copy(update={"expression": self.text(one.expression)}) for one in template.constraints)
        return template.model_copy(update={"launch": launch, "constraints": rules})

    def _dims(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(np.shape(one[name])) for one in self._examples]

    def _given(self) -> None:
        for name in self._whole:
            if all(name in one for one in self._examples):
                self._values[name] = [int(one[name]) for one in self._examples]
                if (least := min(self._values[name])) < 1:
                    raise SourceError(f"{WHERE}: {name} is {least}; give a whole number of at least 1.")

    def _solve(self) -> None:
        """Values of whole-number parameters that are the only unknown size in a number of elements or a dimension."""
        for name, drafted in [one for one in self._drafted.items() if one[0] in self._examples[0]] * 2:
            dims = self._dims(name)
            alike = all(len(one) == len(drafted) for one in dims)
            known = [*zip(drafted, zip(*dims, strict=True), strict=True)] if alike else []
            for count, elements in [*known, (product(drafted), tuple(math.prod(one) for one in dims))]:
                unknown = [one for one in sorted(parse(count).names) if one not in self._values]
                if len(unknown) == 1 and unknown[0] in self._whole:
                    found = [_solved(count, unknown[0], one, self.of(at)) for at, one in enumerate(elements)]
                    self._values |= {unknown[0]: found} if all(found) else {}

    def _shape(self, name: str) -> tuple[str, ...]:
        dims = self._dims(name)
        if len({len(one) for one in dims}) > 1:
            raise SourceError(
                f"{WHERE}: {name} has {len(dims[0])} dimensions in one example and other numbers in others."
            )
        drafted = self._drafted.get(name, ())
        if drafted and all(parse(dim).names <= self._values.keys() for dim in drafted):
            reached = [tuple(parse(dim).integer(self.of(at)) for dim in drafted) for at in range(len(dims))]
            if reached == dims:
                return tuple(drafted)
        return tuple(self._size(f"{name}_{at}", [one[at] for one in dims]) for at in range(len(dims[0]))) or ("1",)

    def _size(self, new: str, values: list[int]) -> str:
        same = next((name for name, known in self._values.items() if known == values), None)
        if same is None:
            self._values[new] = values
        return same or new

    def _derive(self) -> None:
        """A whole-number parameter that is a product of an array's dimensions is not a size of its own."""
        for name, value in self._signature.facts.values.items():
            if parse(value).names <= self.names:
                self.derived[name] = self.text(value)
        used = {name for shape in self.shapes.values() for dim in shape for name in parse(dim).names}
        for name in [one for one in self._whole if one not in used and one in self._values]:
            for count in [" * ".join(shape) for shape in self.shapes.values() if len(shape) > 1]:
                if [parse(count).integer(self.of(at)) for at in range(len(self._examples))] == self._values[name]:
                    self.derived[name] = count
                    del self._values[name]
                    break


def _solved(count: str, name: str, total: int, known: Mapping[str, int]) -> int:
    """The value of a size for which `count`, which it multiplies, is `total`; 0 where there is none."""
    once = parse(count).integer({**known, name: 1})
    value = total // once if once > 0 else 0
    return value if value and parse(count).integer({**known, name: value}) == total else 0


def _launch(
    signature: ReadKernel, sizes: _Sizes, grid: Sequence[str | int] | None, block: Sequence[str | int] | None
) -> LaunchGeometry:
    read = signature.facts
    return LaunchGeometry(
        grid=tuple(sizes.text(one) for one in (read.grid if grid is None else _given("grid", grid, sizes))),
        block=tuple(sizes.text(one) for one in (read.block if block is None else _given("block", block, sizes))),
        shared_bytes=sizes.text(read.shared),
    )


def _given(name: str, given: Sequence[str | int], sizes: _Sizes) -> list[str]:
    """A grid or a block as it was given, as texts."""
    extents = given if isinstance(given, list | tuple) else [0]
    if not all(isinstance(one, str) or (isinstance(one, int) and one > 0) for one in extents):
        raise SourceError(f"{WHERE}: {name}: give a list such as ['ceil_div(n, 256)'] or [256], not {given!r:.80}.")
    texts = [str(one) for one in given]
    if unknown := sorted({name for text in texts for name in parse(text).names} - sizes.names - set(DTYPES)):
        known = ", ".join(sorted(sizes.names))
        raise SourceError(f"{WHERE}: {name}: {unknown[0]} is not a size of the kernel; its sizes are {known}.")
    return texts


def _argument(
    parameter: Parameter, role: Role | None, sizes: _Sizes, examples: Sequence[Mapping[str, Any]]
) -> Argument:
    name, dtype = parameter.name, parameter.dtype
    if role is not None:
        given = examples[0][name]
        if str(given.dtype) != str(DTYPES[dtype].storage) and role != "out":
            raise SourceError(
                f"{WHERE}: {name} is an array of {given.dtype}, but the kernel takes {dtype}; convert it."
            )
        return Argument(name=name, role=role, dtype=dtype, shape=sizes.shapes[name], fill=_fill(given, role))
    if name in sizes.derived or name in sizes.of(0):
        return Argument(name=name, role="scalar", dtype=dtype, value=sizes.derived.get(name, name))
    values: set[Any] = {one.get(name) for one in examples}
    if len(values) > 1 or None in values:
        what = "has other values in other examples" if len(values) > 1 else "has no value"
        raise SourceError(
            f"{WHERE}: the scalar {name} {what}; give it in each example, the same in all: "
            f"inputs=[{{..., '{name}': 1.0}}]."
        )
    return Argument(name=name, role="scalar", dtype=dtype, value=repr(float(values.pop())))


def _fill(given: Any, role: str) -> Fill:
    """Contents like an example's: its mean and spread; its range where it is never negative or whole numbers."""
    values = np.asarray(given).astype(np.float64)
    finite = values[np.isfinite(values)]
    if role == "out" or not finite.size:
        return Fill()
    low, high = float(finite.min()), float(finite.max())
    if np.asarray(given).dtype.kind in "iub" or low >= 0:
        return Fill(kind="uniform", mean=(low + high) / 2, scale=(high - low) / 2)
    return Fill(mean=float(f"{finite.mean():.3g}"), scale=float(f"{finite.std():.3g}") or 1.0)
