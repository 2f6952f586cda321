"""The constants that fix a kernel's tile, such as `#define BLOCK_SIZE 16`, become parameters.

Owns the search for values that a kernel admits. Each combination of values is tried: the source with the new constants
and a launch that follows them is run by `tunesmith.kernels.reader.run` for small sizes, and must reach, write and leave
out the same elements of the same arrays as the author's own. The device checks each value again.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.kernels.reader.parse import Unit, kind, walk
from tunesmith.kernels.reader.run import MAX_WORK, Array, Run
from tunesmith.kernels.rewrite.facts import AXES
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.sharing import MAX_BLOCK_THREADS, WARP, Fixed
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.template import Constraint, Parameter

BUDGET = 700_000_000
"""Work of all trials of a kernel, as `Run.work` counts it: about two seconds."""
PARSING = 12_000_000
"""Work that reading a source counts as."""
MAX_CONSTANTS = 5
MAX_MOVES = 3
"""Halvings and doublings in one combination; constants with equal values that move together count once."""
LEAST_FILLED = 0.75
"""Share of the elements of shared memory that are used, of the author's share, at least."""
_DIGITS = re.compile(r"([1-9]\d*)[uUlL]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SIZE_UNIT = re.compile(r"(\w+) % (\d+) == 0")
_PRIMES = (5, 11, 3, 7, 13, 9)
Values = tuple[int, ...]
"""A value for each constant, in their order."""


@dataclass(frozen=True, slots=True)
class _Constant:
    """A whole number with a name. start, end: bytes of its digits in the source."""

    name: str
    value: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a number of the launch may follow from the constants: the product of those at the places `factors` and of
    `by`, divided by `over` and by the constant at the place `divisor`, and `plus` more."""

    factors: tuple[int, ...] = ()
    by: int = 1
    over: int = 1
    divisor: int | None = None
    plus: int = 0

    @property
    def pure(self) -> bool:
        """Whether it says nothing but constants."""
        return bool(self.factors) and (self.by, self.over, self.plus) == (1, 1, 0)

    def value(self, values: Values) -> int | None:
        """The number for the constants' values; None where it is not whole."""
        over = self.over * (1 if self.divisor is None else values[self.divisor])
        whole, rest = divmod(prod(values[at] for at in self.factors) * self.by, over)
        return None if rest else whole + self.plus

    def text(self, names: Sequence[str]) -> str:
        """An expression with names for the constants; without a division it is one of C, too."""
        product = " * ".join([*(names[at] for at in self.factors), *([str(self.by)] if self.by > 1 else [])]) or "1"
        over = [*([str(self.over)] if self.over > 1 else []), *([] if self.divisor is None else [names[self.divisor]])]
        plus = f" {'+' if self.plus > 0 else '-'} {abs(self.plus)}" if self.plus else ""
        whole = "".join([product, *(f" // {one}" for one in over), plus])
        return whole if re.fullmatch(r"\w+", whole) else f"({whole})"


@dataclass(slots=True)
class _Number:
    """A whole number in the launch. where: "grid" or "block"; axis, start, end: its place there; readings: those that
    agree with all trials so far."""

    where: str
    axis: int
    start: int
    end: int
    readings: list[_Reading]


class _Counted(Run):
    """A run that counts the accesses to arrays, of all threads."""

    accesses = 0

    def access(self, *given: Any, **how: Any) -> Any:
        self.accesses += int(self.may.sum())
        return super().access(*given, **how)


class _Trials:
    """The search for combinations of values. passed: by combination, its bytes of shared memory and whether it needs
    sizes that the larger tile divides; same: combinations that access arrays as often as the author's do; why: why
    there are none."""

    def __init__(self, subject: Subject, constants: list[_Constant]) -> None:
        self.subject, self.constants, self.left = subject, constants, BUDGET
        self.unit = subject.facts.syntax.unit
        self.own = tuple(one.value for one in constants)
        self.numbers = list(self._numbers())
        self.units = {one[1]: int(one[2]) for text in subject.task.requires if (one := _SIZE_UNIT.fullmatch(text))}
        self.passed: dict[Values, tuple[int, bool]] = {}
        self.same: set[Values] = set()
        self._plain: dict[tuple[int, bool], _Counted | None] = {}
        self._entry = self.unit.entry(subject.facts.syntax.name)
        self.why = self._examine()
        if not self.why:
            self._search()

    def _numbers(self) -> Iterator[_Number]:
        launch = self.subject.launch
        for where, texts in (("grid", launch.grid), ("block", launch.block)):
            for axis, text in enumerate(texts):
                for node in ast.walk(ast.parse(text, mode="eval")):
                    if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1:
                        start = node.col_offset
                        readings = list(_readings(node.value, self.own, where == "grid"))
                        yield _Number(where, axis, start, start + len(str(node.value)), readings)

    def launch(self, said: Sequence[str]) -> tuple[list[str], list[str]]:
        """The grid and the block with other texts for their numbers."""
        plain = {"grid": [*self.subject.launch.grid], "block": [*self.subject.launch.block]}
        for number, text in sorted(zip(self.numbers, said, strict=True), key=lambda one: -one[0].start):
            old = plain[number.where][number.axis]
            plain[number.where][number.axis] = old[: number.start] + text + old[number.end :]
        return plain["grid"], plain["block"]

    # Trials.

    def _sizes(self, scale: int, whole: bool) -> dict[str, int]:
        """Small sizes that meet the task's requirements. whole: which a tile that is `scale` times as large divides."""
        task, launch, found = self.subject.task, self.subject.launch, dict[str, int]()
        for at, name in enumerate(task.size_names):
            about = [text for text in launch.grid if name in parse(text).names]
            largest = max((int(one) for text in about for one in re.findall(r"\d+", text)), default=max(self.own))
            unit = self.units.get(name, 0)
            if unit:
                found[name] = unit * (scale * (2, 1)[at % 2] if whole else (3, 5)[at % 2] if about else 3)
            else:
                found[name] = (2 + whole) * min(largest, 256) + _PRIMES[at % len(_PRIMES)]
        for text in task.requires:
            for _ in range(8):
                if not parse(text).evaluate(found):
                    found |= {name: 2 * found[name] for name in parse(text).names & found.keys()}
        return found

    def _run(self, entry: Any, sizes: Mapping[str, int], grid: Sequence[str], block: Sequence[str]) -> _Counted | None:
        """The kernel of a source in a launch; None where that has no meaning or goes on for too long."""
        task, arguments = self.subject.task, dict[str, int]()
        extents = [[parse(text).integer(sizes) for text in texts] for texts in (grid, block)]
        for argument, parameter in zip(task.arguments, self.subject.facts.parameters, strict=True):
            if argument.role == "scalar" and parameter.type.what == "number" and argument.value is not None:
                arguments[parameter.name] = parse(argument.value).integer(sizes)
        run = _Counted(entry.function, arguments, *extents, max(0, min(self.left, MAX_WORK)))
        self.left -= run.work
        return None if run.stopped else run

    def _base(self, scale: int, whole: bool) -> _Counted | None:
        """The author's kernel at the same sizes."""
        if (scale, whole) not in self._plain:
            launch = self.subject.launch
            self._plain[scale, whole] = self._run(self._entry, self._sizes(scale, whole), launch.grid, launch.block)
        return self._plain[scale, whole]

    def _examine(self) -> str:
        """Why the author's own values show too little, as a clause; empty where they do not."""
        try:
            runs = [self._base(1, True), self._base(1, False)]
        except ExpressionError:
            return "the launch, or a scalar, depends on more than sizes"
        for run in runs:
            if run is None:
                return "the kernel is too long to be followed"
            self.passed[self.own] = sum(size for _, size in _shared(run)), False
            self.same.add(self.own)
            for name, one in run.arrays.items():
                if one.lost:
                    return f"the accesses to {name} cannot be followed"
                if one.open and (one.written or name.startswith("shared ")):
                    return f"indices of {name.partition('@')[0]} are not known"
                if one.written and not name.startswith("shared ") and not one.assigned.any():
                    return f"no element of {name} is written for certain"
        return ""

    def _parsed(self, values: Values) -> Any:
        code = self.subject.facts.syntax.code
        for one, value in sorted(zip(self.constants, values, strict=True), key=lambda pair: -pair[0].start):
            code = code[: one.start] + str(value).encode() + code[one.end :]
        ahead = self.unit.code[: -len(self.subject.facts.syntax.code.decode())]
        self.left -= PARSING
        return Unit(ahead + code.decode(), Path(self.unit.where), self.unit.language).entry(self._entry.name)

    def _search(self) -> None:
        for values in self._combinations():
            if self.left <= 0:
                return
            self._try(values)

    def _combinations(self) -> list[Values]:
        """The most promising first: where all readings of the launch's numbers agree, then those with few moves."""
        found = dict[Values, tuple[int, int, int]]()
        for steps in itertools.product((0, 1, -1, 2, -2), repeat=len(self.own)):
            scaled = [value << step if step >= 0 else value / (1 << -step) for value, step in zip(self.own, steps)]
            values = tuple(int(one) for one in scaled)
            moves = {(value, step) for value, step in zip(self.own, steps, strict=True) if step}
            if 0 < sum(abs(step) for _, step in moves) <= MAX_MOVES and all(v == s and v for v, s in zip(values, scaled)):
                apart = [{one.value(values) for one in number.readings if one.pure} for number in self.numbers]
                found[values] = sum(max(0, len(one) - 1) for one in apart), len(moves), sum(map(abs, steps))
        return sorted(found, key=lambda one: found[one])

    def _launches(self, values: Values, sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
        """What the launch's numbers may be, those with the fewest threads first."""
        found, declared = dict[tuple[int, ...], int](), self.subject.facts.launch_bounds
        bound = re.search(r"\(\s*(\d+)", declared[0]) if declared is not None else None
        most = MAX_BLOCK_THREADS if bound is None else int(bound[1])
        for said in itertools.product(*({one.value(values) for one in number.readings} for number in self.numbers)):
            if any(one is None or one < 1 for one in said):
                continue
            grid, block = (prod(parse(text).integer(sizes) for text in texts) for texts in self.launch([*map(str, said)]))
            plain = prod(parse(text).integer(sizes) for text in self.subject.launch.block)
            if min(WARP, plain) <= block <= most and grid > 0 and not (block % WARP and not plain % WARP):
                found[said] = grid * block
        return iter(sorted(found, key=lambda one: (found[one], one)))

    def _try(self, values: Values) -> None:
        scale = max(max(new // old for new, old in zip(values, self.own, strict=True)), 1)
        sizes, base, entry = self._sizes(scale, True), self._base(scale, True), None
        until = self.left - BUDGET // 6
        for said in self._launches(values, sizes):
            if self.left < max(until, 0) or base is None:
                return
            entry = entry or self._parsed(values)
            run = self._run(entry, sizes, *self.launch([*map(str, said)]))
            if run is None or not _alike(run, base):
                continue
            sizes = self._sizes(scale, False)
            other, base = self._run(entry, sizes, *self.launch([*map(str, said)])), self._base(scale, False)
            needs = other is None or base is None or not _alike(other, base)
            if needs and (scale == 1 or not self.units):
                return
            self.passed[values] = sum(size for _, size in _shared(run)), needs
            if run.accesses == self._plain[scale, True].accesses:
                self.same.add(values)
            for number, chosen in zip(self.numbers, said, strict=True):
                number.readings = [one for one in number.readings if one.value(values) == chosen]
            return


def _readings(number: int, own: Values, divides: bool) -> Iterator[_Reading]:
    """How a number may follow from constants with the values `own`, the simplest first. divides: also by division."""
    yield _Reading((), number)
    places = [at for at, value in enumerate(own) if value > 1]
    for at in places:
        if number % own[at] == 0:
            yield _Reading((at,), number // own[at])
        elif abs(number - own[at]) <= own[at] // 2:
            yield _Reading((at,), plus=number - own[at])
        if divides and own[at] > number and own[at] % number == 0:
            yield _Reading((at,), over=own[at] // number)
    for one, two in itertools.combinations_with_replacement(places, 2):
        if number % (own[one] * own[two]) == 0:
            yield _Reading((one, two), number // (own[one] * own[two]))
        for by in places if divides else ():
            if by not in (one, two) and own[one] * own[two] == number * own[by]:
                yield _Reading((one, two), divisor=by)


def _shared(run: Run) -> list[tuple[Array | None, int]]:
    """What a run did to each array in shared memory, in the order of the source, and its bytes."""
    return [(run.arrays.get(f"shared {name}"), one.kind.size) for name, one in run.shared.items()]


def _alike(run: Run, base: Run) -> bool:
    """Whether a run does to arrays what the author's does, and keeps to shared memory as well as that."""
    local, local_before = _shared(run), _shared(base)
    names = [name for name in base.arrays if not name.startswith("shared ")]
    pairs = [(run.arrays[name], base.arrays[name]) for name in names]
    if any(now.reach != old.reach or not np.array_equal(now.assigned, old.assigned) for now, old in pairs):
        return False
    for (now, size), (old, size_before) in zip(local, local_before, strict=True):
        if now is None or old is None or not size:
            return False
        filled, filled_before = now.reach * now.element / size, old.reach * old.element / size_before
        if not LEAST_FILLED * filled_before <= filled <= max(1, filled_before):
            return False
        pairs.append((now, old))
    return not any(_doubts(now) - _doubts(old) for now, old in pairs)


def _doubts(array: Array) -> set[str]:
    """What is wrong, or not known, of the accesses to an array."""
    return {name for name in ("open", "negative", "early", "lost", "collides") if getattr(array, name)}


def _constants(subject: Subject) -> list[_Constant] | Refused:
    """The constants that may fix the tile: those in the extents of shared arrays, and those of which an extent of the
    block is a multiple."""
    facts, launch = subject.facts, subject.launch
    if not isinstance(subject.work, Fixed):
        return Refused("constants stay: the size of a block is free")
    if launch.shared_bytes != "0" or any(not one.isdigit() for one in launch.block):
        return Refused("constants stay: the launch does not say its block, or has dynamic shared memory")
    extents = [int(one) for one in launch.block]
    meanings, found = dict[str, str](), dict[str, _Constant | None]()
    for cursor, words in _definitions(subject):
        bare, name = [one for one in words if one.spelling not in "()"], cursor.spelling
        literal = _DIGITS.fullmatch(bare[0].spelling) if len(bare) == 1 else None
        meanings[name] = " ".join(one.spelling for one in words)
        if literal is not None and name not in found:
            start = bare[0].extent.start.offset - _ahead(subject)
            found[name] = _Constant(name, int(literal[1]), start, start + len(literal[1]))
        else:
            found[name] = None
    used = _names(meanings, "".join(facts.text(one) for one in (facts.body, *facts.syntax.functions)))
    in_tiles = _names(meanings, " ".join(facts.text(one.declared) for one in facts.shared if one.declared is not None))
    tiles = [one for name, one in found.items() if name in used and one is not None and _is_tile(one)]
    chosen = [one for one in tiles if one.name in in_tiles]
    chosen += [one for one in tiles if one not in chosen and any(not each % one.value and one.value > 1 for each in extents)]
    return chosen[:MAX_CONSTANTS] or Refused("no constant fixes the tile")


def _ahead(subject: Subject) -> int:
    """Bytes ahead of the source, for clang."""
    syntax = subject.facts.syntax
    return len(syntax.unit.code.encode()) - len(syntax.code)


def _is_tile(constant: _Constant) -> bool:
    return constant.value > 0 and not ("warp" in constant.name.lower() and constant.value == WARP)


def _definitions(subject: Subject) -> Iterator[tuple[Any, list[Any]]]:
    """The definitions of macros, constants and enumerators in the source, each with the tokens of its value."""
    syntax = subject.facts.syntax
    for cursor in [*syntax.unit.tree.cursor.get_children(), *walk(syntax.cursor)]:
        if cursor.location.file is None or cursor.location.file.name != syntax.unit.where:
            continue
        for one in cursor.get_children() if kind(cursor) == "ENUM_DECL" else (cursor,):
            words = list(one.get_tokens()) if kind(one) in ("MACRO_DEFINITION", "VAR_DECL", "ENUM_CONSTANT_DECL") else []
            spelled = [word.spelling for word in words]
            if kind(one) == "MACRO_DEFINITION":
                yield one, words[1:]
            elif "=" in spelled and (kind(one) != "VAR_DECL" or one.type.is_const_qualified()):
                yield one, words[len(spelled) - spelled[::-1].index("=") :]


def _names(meanings: Mapping[str, str], text: str) -> set[str]:
    """The defined names in a text, and those in what they mean."""
    found, waiting = set[str](), [text]
    while waiting:
        new = set(_WORD.findall(waiting.pop())) & meanings.keys() - found
        found |= new
        waiting += [meanings[one] for one in new]
    return found


def _tried(subject: Subject) -> _Trials | Refused:
    constants = _constants(subject)
    if isinstance(constants, Refused):
        return constants
    trials = _Trials(subject, constants)
    names = " and ".join(one.name for one in constants)
    if trials.why:
        return Refused(f"{names} stay: {trials.why}")
    return trials if len(trials.passed) > 1 else Refused(f"{names} stay: other values do not compute the same")


def _change(subject: Subject, trials: _Trials, plan: Plan) -> Change | Refused:
    constants, own = trials.constants, trials.own
    readings = [one.readings[0] for one in trials.numbers]
    leading = {at for one in readings for at in (*one.factors, *(() if one.divisor is None else (one.divisor,)))}
    passed = {values: one for values, one in trials.passed.items() if _free_values_pass(trials, values, leading)}
    varied = [at for at in range(len(own)) if len({values[at] for values in passed}) > 1]
    # Constants that are always equal are one parameter.
    heads = {at: next(one for one in varied if all(v[one] == v[at] for v in passed)) for at in varied}
    names = [
        subject.name(constants[heads[at]].name) if at in heads else str(constants[at].value) for at in range(len(own))
    ]
    first = list(dict.fromkeys(heads.values()))
    if not first:
        return Refused("constants stay: other values do not compute the same")
    points = {tuple(values[at] for at in first): one for values, one in passed.items()}
    named, start = [names[at] for at in first], tuple(own[at] for at in first)
    parameters, constraints = list[Parameter](), list[Constraint]()
    for at, name in zip(first, named, strict=True):
        others = sorted({values[at] for values in passed} - {own[at]})
        also = [constants[one].name for one in varied if heads[one] == at]
        parameters.append(Parameter(name=name, values=(own[at], *others), doc=f"{' and '.join(also)} of the source"))
    if len(points) < prod(len(one.values) for one in parameters):
        because = "Other combinations of the source's constants do not compute the same."
        constraints.append(Constraint(expression=_among(named, set(points)), because=because))
    if larger := _larger(first, own, [values for values, (_, needs) in passed.items() if needs]):
        scale = ", ".join(["1", *(f"{names[at]} // {own[at]}" for at in larger)])
        because = "The kernel has no guard for sizes that its tile does not divide."
        constraints += [
            Constraint(expression=f"{size} % ({unit} * max({scale})) == 0", because=because)
            for size, unit in trials.units.items()
        ]
    grid, block = trials.launch([one.text(names) for one in readings])
    off = " and ".join(f"{name} == {value}" for name, value in zip(named, start, strict=True))
    change = Change(
        parameters=tuple(parameters),
        edits=tuple(Edit(constants[at].start, constants[at].end, (names[at],)) for at in varied),
        off=f"({off})",
        grid=dict(zip(AXES, grid, strict=False)),
        block=dict(zip(AXES, block, strict=False)),
        static_shared=_bytes(subject, named, {values: size for values, (size, _) in points.items()}),
        constraints=tuple(constraints),
    )
    return _bounded(subject, change, plan)


def _free_values_pass(trials: _Trials, values: Values, leading: set[int]) -> bool:
    """Whether constants that the launch does not follow keep the number of accesses: depths and paddings do, the
    radius of a stencil does not."""
    alone = tuple(value if at not in leading else own for at, (value, own) in enumerate(zip(values, trials.own)))
    return alone in trials.same


def _larger(places: Sequence[int], own: Values, points: Sequence[Values]) -> list[int]:
    """The places of constants that are larger than the author's in some of the points, as few as explain them all."""
    found = list[int]()
    for larger in sorted(([at for at in places if one[at] > own[at]] for one in points), key=len):
        found += larger if not set(larger) & set(found) else []
    return sorted(found)


def _among(names: Sequence[str], points: set[Values]) -> str:
    """An expression for names that have the values of a point."""
    behind = dict[frozenset[Values], list[int]]()
    for value in sorted({one[0] for one in points}):
        behind.setdefault(frozenset(one[1:] for one in points if one[0] == value), []).append(value)
    parts = []
    for rest, values in behind.items():
        here = f"{names[0]} in ({', '.join(map(str, values))})" if values[1:] else f"{names[0]} == {values[0]}"
        parts.append(f"({here} and ({_among(names[1:], set(rest))}))" if names[1:] else here)
    return " or ".join(parts)


def _bytes(subject: Subject, names: Sequence[str], sizes: Mapping[Values, int]) -> str:
    """Bytes of shared memory beyond those that the task declares, as a sum of few products of constants; else the
    most that a point needs."""
    declared = subject.task.sources(subject.backend).baseline.template.static_shared_bytes
    points, wanted = list(sizes), np.array(list(sizes.values()), float)
    terms = [one for count in range(4) for one in itertools.combinations_with_replacement(range(len(names)), count)]
    for count in range(1, min(4, len(points))):
        for chosen in itertools.combinations(terms, count):
            products = np.array([[prod(point[at] for at in one) for one in chosen] for point in points], float)
            factors = np.rint(np.linalg.lstsq(products, wanted, rcond=None)[0])
            if (factors > 0).all() and np.array_equal(products @ factors, wanted):
                texts = [" * ".join([str(int(by)), *(names[at] for at in one)]) for by, one in zip(factors, chosen)]
                return f"{' + '.join(texts)} - ({declared})"
    return f"{int(wanted.max())} - ({declared})"


def _bounded(subject: Subject, change: Change, plan: Plan) -> Change:
    """The change with launch bounds that follow the block, where there are some."""
    if "launch_bounds" not in plan.changes:
        return change
    minimum, macro = subject.name("MIN_BLOCKS"), subject.name("LAUNCH_BOUNDS")
    threads = " * ".join(change.block.values())
    lines = [f"#if {minimum} > 0", f"#undef {macro}", f"#define {macro} __launch_bounds__({threads}, {minimum})", "#endif"]
    because = "No multiprocessor holds more threads."
    bound = Constraint(expression=f"{threads} * {minimum} <= 2048", because=because)
    return replace(change, header="\n".join(lines), constraints=(*change.constraints, bound))


_KEPT = "The rule knows the kernel's own block alone."
CONSTANTS = Pass(
    "constants",
    _tried,
    _change,
    excludes=dict.fromkeys(("block_size", "work_per_thread", "row_teams", "row_lanes", "shuffles", "own_bins"), _KEPT),
    after=("launch_bounds",),
    languages=("cuda", "opencl"),
)
