"""Drafts a task from a Python file with a Triton kernel, and reads a kernel that a program holds: its file as any
other, with the values that its objects have; its call's `grid` is called once with names instead of values.

Owns what becomes of each parameter of the kernel: an array or a number of the task, a parameter of the template, a
value in `FIXED`, or a heuristic, where the launch rounds a size up to a power of two.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

from tunesmith.hw.errors import how_to_install
from tunesmith.kernels.reader.draft import Draft, ReadKernel, written
from tunesmith.kernels.reader.facts import Facts, product
from tunesmith.kernels.reader.facts import Parameter as Argument
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.slice import Slice as Part
from tunesmith.kernels.reader.syntax import Kind
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import KernelOpponent
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Constraint, LaunchGeometry, Parameter, Template
from tunesmith.kernels.triton.launch import Launch, axes_of
from tunesmith.kernels.triton.reading import Reading
from tunesmith.kernels.triton.shapes import COVERING, FEW, GRIDS, POWERS, REMOVED, ROWS, STRIDES, Given, Shapes, sets_of
from tunesmith.kernels.triton.source import (
    Config,
    Kernel,
    Module,
    Slice,
    Symbol,
    Unknown,
    defaults_of,
    find_kernel,
    names_in,
    unknown,
    values_of,
)
from tunesmith.kernels.triton.space import constraints_of, is_power, parameters_of, template_text

MANY = 3
"""Sizes of a kernel, beyond which a draft begins with small ones."""
BLOCK = "32 * num_warps"
"""The threads of a block."""


Grid = tuple[str, ...]


class TritonKernel:
    """A kernel of a file: what each of its parameters is, decided in an order in which each decision can rest on those
    before it. read: as any kernel is read; parameters, grid: of its template; fixed: constants of its own that no
    parameter sets; first: of the baseline, with options; configs: the author's list; told: by stride, the array and the
    dimension that the launch says; float: the type that arrays are drafted with."""

    def __init__(
        self, kernel: Kernel, given: Given | None = None, configs: Sequence[Given] = (), grid: Grid | None = None
    ) -> None:
        """given: values of its constants, where a caller has them, and None for an array that is not passed; configs:
        of its list; grid: of its call. Raises `SourceError`, also where Triton is not installed."""
        try:
            importlib.import_module("triton")
        except ImportError as error:
            why, remedy = f"Triton kernels cannot be drafted here ({error})", how_to_install("triton")
            raise SourceError(f"{why}: {remedy}.") from error
        self.source, self.given, self.grid, self.is_draft = kernel, given or {}, grid, given is None
        self.launch, self.names = (launch := Launch(kernel)), kernel.parameters
        # A function that only converts its argument needs a value to be passed.
        self.heuristics = {name: text for name, text in kernel.heuristics.items() if f"args['{name}']" not in text}
        self.facts, self.guessed, self.programs = Facts([]), list[str](), list[str]()
        self.slice = Slice()
        self.slice.kernel(kernel, {})
        self.constants = {name: value for name in self.names if not unknown(value := self._constant(name))}
        for name in kernel.constexprs:
            if name not in self.constants and name not in self.heuristics and self._tested(name):
                self.constants[name] = False
                self.guessed.append(name)
        self.absent = [name for name, value in self.constants.items() if value is None]
        self.configs = [dict(one) for one in configs] or self._listed()
        passed = [name for name in self.names if name not in self.heuristics]
        self.reading = Reading(kernel.node, self.slice.functions, passed, self._holds)
        if made := ", ".join(self.reading.descriptors):
            why = "tensor descriptors made by the host, which no task passes: make them in the kernel of pointers"
            raise SourceError(f"{kernel.module.path}: {kernel.name} takes {made} as {why}.")
        # What the kernel reads in any case, its callers pass, whatever the default of the host's function is.
        for name in (one for one in self.absent if one in self.reading.pointers and one not in self.given):
            del self.constants[name]
        self.absent = [name for name in self.absent if name in self.constants]
        told = {name for name in passed if self.launch.shaped(name)}
        unused = [one for one in passed if one not in {*self.reading.used, *kernel.constexprs, *told}]
        self.absent += [name for name in unused if name not in self.absent]
        self.arrays = [one for one in self.names if one in self.reading.pointers and one not in self.absent]
        if not self.arrays:
            raise SourceError(f"{kernel.module.path}: {kernel.name} reads or writes none of its arguments.")
        self.tuned = [name for one in self.configs for name in one if name in self.names or name in TRITON_OPTIONS]
        known = [one for one in kernel.constexprs if one in self.constants]
        self.stepped = {name for steps in self.reading.steps.values() for names in steps for name in names}
        counted = self.reading.counted | self.reading.bounds | launch.nodes.keys() | {*kernel.constexprs}
        by_name = {one for one in self.reading.numbers if "stride" in one}
        alone = by_name | (self.stepped & self.reading.numbers - counted)
        self.told = {one: at for one in self.names if (at := launch.stride(one)) and one not in known}
        self.strides = [one for one in self.names if one in self.told or (one in alone and one not in known)]
        self.float = "float16" if self.reading.products else "float32"
        self._decide()

    @property
    def template(self) -> Template:
        return Template(
            name="triton",
            backend="triton",
            source=self.slice.text(self.fixed),
            entry=self.read.name,
            parameters=tuple(self.parameters),
            constraints=tuple(self.constraints()),
            launch=LaunchGeometry(grid=self.grid, block=(BLOCK,)),
        )

    @property
    def opponents(self) -> tuple[KernelOpponent, ...]:
        """The choice of `triton.autotune` among the author's list, if there is a choice."""
        if len(self.configs) < 2:
            return ()
        values = _values_of(self.configs, [name for one in self.configs for name in one])
        parameters = tuple(Parameter(name=name, values=tuple(listed)) for name, listed in values.items())
        template = self.template.model_copy(update={"parameters": parameters, "constraints": ()})
        configs = tuple(self.configs)
        return (KernelOpponent(name="triton.autotune", label="production", template=template, configs=configs),)

    def constraints(self) -> list[Constraint]:
        """The demands of the arrays' types and of the tiles."""
        sizes, dtypes = self.facts.sizes, {one.name: one.dtype for one in self.facts.parameters}
        known = {name: str(value) for name, value in self.first.items() if isinstance(value, int)}
        known |= {name: name for name in (*sizes, *(one.name for one in self.parameters))}
        rows = [one for one in sizes if one in self.reading.bounds and one not in self.launch.sizes]
        return [*constraints_of(self.reading, known, dtypes, rows), *self.demands]

    def _constant(self, name: str) -> Any:
        """The value that the launch passes for all sizes, or the default of the parameter."""
        if name in self.given:
            return self.given[name] if name in self.source.constexprs or self.given[name] is None else _UNKNOWN
        passed = self.launch.given.get(name, _UNKNOWN)
        default = defaults_of(self.source.node.args).get(name)
        if default and unknown(passed):
            with contextlib.suppress(Unknown):
                return self.source.module.evaluate(default)
        return passed

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return [values_of(one) for one in self.source.configs if isinstance(one, Config)]
        except Unknown as error:
            why = f"the list of configurations cannot be evaluated ({error}): give the values in template.toml"
            self.facts.ask("source", why)
            return []

    def _holds(self, test: ast.expr) -> bool | None:
        """Whether a condition holds, by constants and heuristics."""
        values = dict(self.constants)
        for name, text in self.heuristics.items():
            try:
                arguments = {one: values.get(one, _UNKNOWN) for one in self.names}
                values[name] = self.source.module.evaluate(ast.parse(text, mode="eval").body)(arguments)
            except Exception:  # noqa: BLE001, S112 - the user's code may raise anything; the condition stays open
                continue
        try:
            return bool(self.source.module.evaluate(test, values))
        except Unknown:
            return None

    def _decide(self) -> None:
        facts, reading, launch = self.facts, self.reading, self.launch
        self._find_sizes()
        defaults = {name: self._first(name) for name in facts.sizes}
        passed = launch.at(defaults)
        values, fixed, text = self._constants(defaults, passed)
        lists = _values_of(self.configs, self.tuned) | values
        grid = self._grid(text, lists)
        replaced = {name: _replaced(value, text) for name, value in facts.values.items()}
        facts.values = {name: value for name, value in replaced.items() if parse_names(value) <= {*facts.sizes}}
        self.slice = Slice()
        self.slice.kernel(self.source, self.heuristics)
        started = {name: listed[0] for name, listed in lists.items() if name not in TRITON_OPTIONS}
        shapes = self._shapes(self.slice.text(fixed), grid, started, fixed)
        for name in (one for one in dict.fromkeys([*shapes.resized, *shapes.tied]) if one in values):
            fixed[name] = lists.pop(name)[0]
            self.guessed += [name] if name not in self.constants else []
            grid = tuple(_replaced(one, {name: str(fixed[name])}) for one in grid)
        untold = [name for name in values if name in launch.nodes and name not in passed]
        if shapes.why and untold:
            facts.ask("source", f"whether {', '.join(untold)} may be tuned, or an array's length depends on it")
        loops = any(isinstance(one, ast.For) for one in self._nodes())
        self.parameters = parameters_of(reading, lists, passed, loops=loops)
        chosen = {one.name: one.start for one in self.parameters}
        self.grid, self.fixed, self.first = grid, fixed, {**fixed, **chosen}
        self.demands = self._demands(shapes, chosen, defaults)
        facts.grid = tuple(_replaced(one, {name: str(value) for name, value in chosen.items()}) for one in grid)
        facts.block = (str(32 * int(self.first.get("num_warps", 4))),)
        self._shape(shapes, fixed)
        self._arguments(fixed, chosen, defaults)
        self._doubts()
        self.read = ReadKernel(self.source.name, "triton", Part(self.slice.text(self.first), (), ()), facts)
        self.configs = [{**chosen, **{name: one[name] for name in one if name in self.tuned}} for one in self.configs]

    def _find_sizes(self) -> None:
        """The parameters that are sizes, and the values of those that the launch computes from sizes."""
        facts, reading, launch, composed = self.facts, self.reading, self.launch, list[str]()
        counted = (reading.counted | reading.bounds) & reading.numbers
        for name in (one for one in self.names if one not in (*self.strides, *self.heuristics, *self.tuned)):
            if name in self.source.constexprs:
                bounds = (reading.bounds | reading.turns) - reading.tiles.keys() - {*self.constants}
                is_size = name in bounds or (launch.shaped(name) and name not in self.constants)
            else:
                is_size = name not in (*reading.pointers, *self.absent) and (name in counted or launch.shaped(name))
                # Such as the quotient of two dimensions.
                if is_size and re.search(r"[*/%+]", str(launch.given.get(name))):
                    composed.append(name)
                    continue
            if is_size:
                facts.sizes.append(name)
                launch.name(name)
        for name in self.source.constexprs:
            launch.name(name)
        for name in composed:
            if (value := launch.expression(name)) is not None:
                facts.values[name] = value
            else:
                facts.sizes.append(name)
                launch.name(name)

    def _grid(self, text: Mapping[str, str], lists: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
        """The grid of the launch, with the sizes that it has beside the kernel's. text: of constants; lists: values of
        what is tuned, the first of which is the author's."""
        facts = self.facts
        grid, why = self.grid or (), ""
        try:
            grid = grid or self.launch.dimensions()
        except Unknown as error:
            why = str(error)
        facts.sizes += self.launch.sizes
        grid = tuple(_replaced(one, text) for one in grid)
        named = {*facts.sizes, *lists, *TRITON_OPTIONS}
        if unknowns := sorted({name for one in grid for name in parse_names(one)} - named):
            why = f"{', '.join(unknowns)} is not known"
        if why:
            self.programs = [f"programs_{axis}" for axis in range(self.reading.axes)]
            facts.ask(
                "launch", f"the grid, here and in template.toml, for which {', '.join(self.programs)} stand: {why}"
            )
            facts.unknown = "the grid"
            facts.sizes += self.programs
            return tuple(self.programs)
        return tuple(self._blocks_named(one, {name: listed[0] for name, listed in lists.items()}) for one in grid)

    def _demands(self, shapes: Shapes, chosen: Mapping[str, Any], sizes: dict[str, int]) -> list[Constraint]:
        """The constraints of blocks by the arrays that they read; `sizes`, with which a draft begins, keep to it, as
        `requires` says for the baseline."""
        found = list[Constraint]()
        for size, block in shapes.whole:
            if block in chosen:
                why = f"The kernel reads beyond the end of {size}."
                found.append(Constraint(expression=f"{size} % {block} == 0", because=why))
                sizes[size] = max(self._first(size), int(chosen[block]))
        for block, size in self._covering(chosen).items():
            why = f"The kernel reads all of {size} at once."
            found.append(Constraint(expression=f"{size} <= {block}", because=why))
            sizes[size] = min(self._first(size), int(chosen[block]))
        values = {name: str(value) for name, value in chosen.items()}
        self.facts.requires += [_replaced(one.expression, values) for one in found]
        tied = [name for name in shapes.tied if name in self.tuned]
        if all(len({at.get(name) for name in tied}) == 1 for at in self.configs):
            why = "The kernel has tiles of one shape for both."
            found += [Constraint(expression=f"{one} == {other}", because=why) for one, other in pairwise(tied)]
        return found

    def _covering(self, chosen: Mapping[str, Any]) -> dict[str, str]:
        """The blocks that have to be as large as a size, as the kernel reads all of it at once, with that size."""
        found = {name: self.reading.covers.get(name, "") for name in chosen if name in self.reading.tiles}
        return {name: size for name, size in found.items() if size in self.facts.sizes}

    def _blocks_named(self, axis: str, chosen: Mapping[str, Any]) -> str:
        """A grid's axis with the name of the block that the host writes as a number, where there is one such block."""
        for number in re.findall(r"ceil_div\([^()]*, (\d+)\)", axis):
            equal = [name for name, value in chosen.items() if name in self.reading.tiles and str(value) == number]
            if len(equal) == 1 and equal[0] not in parse_names(axis):
                axis = axis.replace(f", {number})", f", {equal[0]})")
        return axis

    def _nodes(self) -> list[ast.AST]:
        return [node for one in self.slice.functions.values() for node in ast.walk(one)]

    def _first(self, name: str) -> int:
        """The value of a size that a draft begins with."""
        small = name in self.reading.tiles or len(self.facts.sizes) > MANY
        return int(self.given.get(name, 64 if small else 1024))

    def _constants(
        self, sizes: Mapping[str, int], passed: Mapping[str, Any]
    ) -> tuple[dict[str, list[Any]], dict[str, Any], dict[str, str]]:
        """The values to tune around of constexprs that no list names, the constants that stay, and expressions of
        constants. passed: by the launch, for `sizes`."""
        values, fixed, covering = dict[str, list[Any]](), dict[str, Any](), dict[str, str]()
        for name in self.names:
            if name in (*self.tuned, *self.heuristics, *self.facts.sizes, *self.strides, *TRITON_OPTIONS):
                continue
            if name in self.absent:
                fixed[name] = None
            if name not in self.source.constexprs or name in self.absent:
                continue
            covered = self.reading.covers.get(name) if name not in self.reading.numbers else None
            by_default = None if name in self.given else self.constants.get(name)
            if by_default is not None and passed.get(name, by_default) != by_default:
                # Of what is a size here the host's function has a default.
                del self.constants[name]
            value = self.constants.get(name, _UNKNOWN)
            if covered in sizes and name not in self.constants:
                self.heuristics = {**self.heuristics, name: f"lambda args: triton.next_power_of_2(args[{covered!r}])"}
                covering[name] = f"2 ** ceil(log2({covered}))"
                continue
            by_size = value is _UNKNOWN
            tile = name in self.reading.tiles
            if by_size and (value := passed.get(name)) is None:
                usual = {"eps": 1e-05, "type": Symbol("tl.float16")}
                value = next((one for part, one in usual.items() if part in name.lower()), 1)
                value = 64 if tile or name in self.reading.spans else value
            if tile and is_power(value) and name not in self.given:
                values[name] = [value, *((max(value // 8, 1), value * 4) if by_size else ())]
            else:
                fixed[name] = value
                # Also of a value that the launch computes from sizes.
                if (by_size or self.launch.doubts(name)) and name in self.reading.used:
                    self.guessed.append(name)
        return values, fixed, {name: str(value) for name, value in fixed.items() if isinstance(value, int)} | covering

    def _tested(self, name: str) -> bool:
        tests = [one.test for one in self._nodes() if isinstance(one, ast.If | ast.IfExp)]
        parts = [part for test in tests for part in (test.values if isinstance(test, ast.BoolOp) else [test])]
        return any(ast.unparse(part) in (name, f"not {name}") for part in parts)

    def _shapes(self, source: str, grid: Sequence[str], chosen: Mapping[str, Any], fixed: Mapping[str, Any]) -> Shapes:
        """The kernel's runs on the host, with `fixed` in its source and blocks of their own."""
        facts, tiles = self.facts, self.reading.tiles
        tiled = {name for axis in grid for name in re.findall(r"(?<=ceil_div\()\w+|\w+(?= //)", axis)}
        written = any(re.search(r"ceil_div\([^()]*, \d+\)", axis) for axis in grid)
        covering = dict.fromkeys(self._covering(chosen), COVERING)
        free = [one for one, value in chosen.items() if one in tiles and one not in covering and is_power(value)]
        texts = (*facts.values.values(), *grid)
        nodes = [*self._nodes(), *(node for text in texts for node in ast.walk(ast.parse(text)))]
        divided = [one for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.FloorDiv | ast.Mod)]
        known = {*facts.sizes}
        # A grid of N // 128 programs has one for the least N.
        quotients = re.findall(r"\b(\w+) // (\d+)", " ".join(grid))
        quotients += [
            one for one in map(_quotient, divided) if one[0] in known and set() < parse_names(one[1]) <= known
        ]
        counts = {name for axis in grid for name in parse_names(axis)} | {ast.unparse(one.right) for one in divided}
        counts |= self.reading.turns - self.reading.bounds
        ordered = dict.fromkeys([*self.launch.sizes, *facts.sizes], ROWS)
        kinds = ordered | dict.fromkeys(known & counts - tiled, FEW) | dict.fromkeys(known & tiles.keys(), POWERS)
        kinds |= dict.fromkeys(self.programs, GRIDS)
        arrays = {one: self._dtype(one) or self.float for one in self.arrays}
        places = {one: n for array in arrays for n, one in enumerate(self._strides_of(array))}
        places |= {one: axis for one, (_, axis) in self.told.items()}
        places = {one: places.get(one, n) % STRIDES for n, one in enumerate(self.strides)}
        # A constant has 32 bits at most.
        constants = "|".join(one for one in self.strides if one in self.source.constexprs)
        source = re.sub(rf"\b({constants})\s*:\s*[\w.]*constexpr\b", r"\1", source) if constants else source
        others = [one for one in self.names if one not in {*arrays, *fixed, *self.heuristics, *places}]
        numbers = {one: facts.values.get(one, one) for one in others}
        passed = {name: value for name, value in self.constants.items() if isinstance(value, int | float)}
        values = {**dict.fromkeys(self.names, 1), **passed, **fixed, **chosen, **covering}
        shapes = Shapes(sets_of(kinds, quotients), [] if written else free, places)
        shapes.run(source, self.source.name, grid, arrays, numbers, values, self.reading.compares)
        if shapes.why.startswith(REMOVED):
            where, why = f"{self.source.module.path}: {self.source.name}", shapes.why.removeprefix(REMOVED)
            remedy = "rewrite that part, or install the version that it is written for"
            raise SourceError(f"{where} cannot be compiled by the Triton that is installed ({why}): {remedy}.")
        if shapes.why:
            facts.ask("source", f"no shape is known, as the kernel does not run on the host ({shapes.why})")
        return shapes

    def _dtype(self, array: str) -> str | None:
        told = self.launch.dtype(array)
        return told if told and told in DTYPES else "int32" if array in self.reading.indices else None

    def _strides_of(self, array: str) -> list[str]:
        """The strides by which the array's indices are multiplied."""
        stepped = {name for names in self.reading.steps.get(array, ()) for name in names}
        return [one for one in self.strides if one in stepped]

    def _shape(self, shapes: Shapes, fixed: Mapping[str, Any]) -> None:
        """Roles and shapes of arrays, and the values of strides."""
        facts = self.facts
        for array in self.arrays:
            facts.roles[array] = self.reading.role(array)  # type: ignore[assignment]
            if not shapes.reached(array):
                why = "no run on the host reaches it" if shapes.ran else "the kernel does not run on the host"
                facts.ask(array, f"the shape, as {why}")
                continue
            own = [one for one in self._strides_of(array) if self.told.get(one, (array, 0))[0] == array]
            if len({shapes.places[one] for one in own}) < len(own):
                facts.ask(array, f"the shape, as runs on the host tell {STRIDES} strides of an array apart")
                continue
            shape, axes = shapes.of(array, own, self.reading.steps.get(array, ()), fixed)
            if "?" in shape:
                named = [f"{array}_{at}" if one == "?" else one for at, one in enumerate(shape)]
                unseen = [one for one in named if one not in shape]
                facts.ask(array, f"the shape, as no run on the host tells {', '.join(unseen)}")
                if not self.is_draft:
                    continue  # Examples tell.
                facts.sizes += [one for one in unseen if one not in facts.sizes]
                shape = named
            facts.shapes[array] = tuple(shape)
            facts.values |= {one: product(shape[axis + 1 :]) or "1" for one, axis in axes.items()}
        for one, (array, axis) in self.told.items():
            known = facts.shapes.get(array, ())
            if array in self.absent:
                facts.values[one] = "0"
            elif one not in facts.values and -len(known) <= axis < len(known):
                facts.values[one] = product(known[axis % len(known) + 1 :]) or "1"

    def _arguments(self, fixed: Mapping[str, Any], chosen: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        facts, taken = self.facts, {*self.names, *self.facts.sizes}
        types = next(one for one in ("T", "TYPE", "ARRAY_TYPE") if one not in taken)
        whole_numbers = self.reading.whole | self.stepped
        for name in self.names:
            if name in fixed or name in chosen or name in self.heuristics:
                continue
            if name in self.reading.pointers:
                dtype = self._dtype(name) or types
                facts.types |= {types: (self.float,)} if dtype == types else {}
                facts.parameters.append(Argument(name, Kind("pointer", 8, f"{dtype}*"), dtype, "", None))
                continue
            value = self.constants.get(name)
            whole = name in facts.sizes or name in self.strides or isinstance(value, int) or name in whole_numbers
            known = sizes.get(name, self._first(name)) if name in facts.sizes else value
            text = str(known) if isinstance(known, int | float) else ""
            if isinstance(value, int | float) and name not in facts.sizes:
                facts.values[name] = text
            text = text or ("1e-05" if "eps" in name.lower() else "")
            kind = Kind("number", 4, "int") if whole else Kind("float", 4, "float")
            facts.parameters.append(Argument(name, kind, "int32" if whole else "float32", text, None))
        for name in self.facts.sizes:
            if name in self.reading.tiles:
                facts.requires.append(f"is_pow2({name})")
        facts.ask(types, f"the types of {types}; an array of another type has its own in its line of `arguments`")
        for name, text in self.launch.sizes.items():
            facts.ask("sizes", f"{name} is {text} of the launch")
        facts.values |= {one: str(sizes.get(one, self._first(one))) for one in facts.sizes if one not in self.names}

    def _doubts(self) -> None:
        if self.guessed:
            self.facts.ask("source", f"FIXED (of baseline.py and kernel.py) has guesses: {', '.join(self.guessed)}")
        for one in dict.fromkeys((*self.slice.doubts, *self.source.module.doubts)):
            self.facts.ask("source", one)
        mentioned = {*names_in(ast.Module(self.source.node.body, []))}
        if absent := [one for one in self.absent if one in mentioned]:
            self.facts.ask("source", f"whether these may stay None, as they seem unused: {', '.join(absent)}")


def draft_triton(path: Path, entry: str | None) -> Draft:
    """The draft of a task for the kernel `entry` of a Python file, or the only one. Raises `SourceError`."""
    kernel = TritonKernel(find_kernel(Module(path), entry))
    template = kernel.template
    files = {"kernel.py": template.source, "template.toml": template_text(template)}
    lines = ['templates = ["template.toml"]']
    for one in kernel.opponents:
        lines += [
            "# The choice of triton.autotune among the list of the file, beside the winner; needs PyTorch.",
            "[[backends.triton.opponents]]",
            f'name = "{one.name}"',
            f'label = "{one.label}"',
            'source_file = "kernel.py"',
            f'launch = {{ grid = {json.dumps(one.template.launch.grid)}, block = ["{BLOCK}"] }}',
            "configs = [",
            *(f"    {{ {', '.join(f'{name} = {json.dumps(v)}' for name, v in at.items())} }}," for at in one.configs),
            "]",
        ]
    return written(kernel.read, f"{path}:{kernel.read.name}", lines, files)


_UNKNOWN: Any = Symbol("it")


def _values_of(configs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """The values that each name has in a list of configurations."""
    return {name: list(dict.fromkeys(one[name] for one in configs if name in one)) for name in dict.fromkeys(names)}


def parse_names(text: str) -> set[str]:
    try:
        return set(parse(text).names)
    except ExpressionError:
        return {"?"}


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """An expression with values instead of names."""
    for name, value in values.items():
        text = re.sub(rf"\b{name}\b", value if value.isidentifier() or value.isdigit() else f"({value})", text)
    return text


def _quotient(node: ast.expr) -> tuple[str, str]:
    """The dividend of divisions one after the other, and the product of all that divides it."""
    divisors = list[str]()
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
        divisors.append(ast.unparse(node.right))
        node = node.left
    return ast.unparse(node), product(divisors)


WHERE = "tune_kernel"


def plain_function(kernel: Any) -> FunctionType | None:
    """The Python function inside a jitted, autotuned or heuristics function of Triton; None for anything else."""
    while not isinstance(kernel, FunctionType) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, FunctionType) else None


def read_function(kernel: Any, inputs: Any, grid: Any) -> tuple[TritonKernel, Any]:
    """A kernel of Triton, and the examples without the constants of the kernel that they name. grid: of a call, or None
    where the kernel's own file calls it. Raises `SourceError`."""
    function = plain_function(kernel)
    assert function is not None
    place = function.__code__.co_filename
    text = "".join(linecache.getlines(place))
    if not text:
        raise SourceError(f"{WHERE}: the source of {function.__name__} is not there ({place}); define it in a file.")
    found = find_kernel(Module(Path(place), text), function.__name__, "source")
    examples = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    first: Given = next((one for one in examples if isinstance(one, Mapping)), {})
    constants = {name: value for name, value in first.items() if name in found.constexprs or value is None}
    listed_configs = getattr(kernel, "configs", None) or getattr(getattr(kernel, "fn", None), "configs", None)
    configs = list(map(values_of, listed_configs or ()))
    read = TritonKernel(found, constants, configs, None if grid is None else _grid(grid, found.parameters))
    dropped = constants.keys() - {one.name for one in read.read.parameters}
    for at, one in enumerate(examples):
        if isinstance(one, Mapping):
            examples[at] = {name: value for name, value in one.items() if name not in dropped}
    return read, inputs if isinstance(inputs, tuple) else examples if isinstance(inputs, list) else examples[0]


def _grid(grid: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The expressions of a grid, which may be a function of the kernel's arguments and constants."""
    try:
        found = grid({one: Symbol(one) for one in names}) if callable(grid) else grid
    except Exception as error:  # the user's code may raise anything
        raise SourceError(
            f"{WHERE}: grid: called with names instead of values it raises {type(error).__name__} ({error}); write it "
            "with triton.cdiv, + - * // % only, or as expressions, such as ['ceil_div(M, BLOCK)']."
        ) from error
    return tuple(axes_of(found))


def typed(kernel: TritonKernel, example: Mapping[str, Any]) -> None:
    """Gives the kernel's arguments the types of the arrays and numbers of an example, outputs included."""
    names = {str(one.storage): name for name, one in reversed(list(DTYPES.items()))}
    facts = kernel.read.facts
    for at, one in enumerate(facts.parameters):
        given = example.get(one.name)
        if one.pointer and given is not None:
            dtype = names.get(str(given.dtype))
            if dtype is None:
                raise SourceError(f"{WHERE}: {one.name} is an array of {given.dtype}, which no task has; convert it.")
            facts.parameters[at] = replace(one, dtype=dtype)
        elif isinstance(given, float) and one.whole:
            facts.parameters[at] = replace(one, kind=Kind("float", 4, "float"), dtype="float32")
    facts.types = {}
