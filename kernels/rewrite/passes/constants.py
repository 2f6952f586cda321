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
from tunesmith.kernels.reader.run import Array, Pointer, Run
from tunesmith.kernels.rewrite.facts import AXES
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.sharing import MAX_BLOCK_THREADS, WARP, Fixed
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.template import Constraint, Parameter

BUDGET = 600_000_000
"""Work of all trials of a kernel, as `Run.work` counts it: about two seconds."""
MAX_RUN = BUDGET // 10
"""Work of one run."""
PARSING = 12_000_000
"""Work that reading a source counts as."""
MAX_CONSTANTS = 5
MAX_MOVES = 3
"""Halvings and doublings in one combination; constants with equal values that move together count once."""
MAX_SHARED = 48 * 1024
"""Bytes of the arrays in shared memory of a source."""
LEAST_FILLED = 0.75
"""Share of the elements of shared memory that are used, of the author's share, at least."""
_DIGITS = re.compile(r"([1-9]\d*)[uUlL]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SIZE_UNIT = re.compile(r"(\w+) % (\d+) == 0")
_TILES = ((1, 2, 1), (3, 1, 3), (1, 1, 2))
"""Tiles of three trials: along sizes that the grid follows, by turns, and along others, which loops follow."""
MAX_LENGTH = 2048
"""Of a tile, above which sizes that nothing divides do not become larger."""
MAX_BLOCKS = 6
"""Blocks of a trial along an axis on which their number is fixed."""
MAX_PASSED = 32
MAX_FACTOR = 4
"""Of a constant in a number of the launch that follows from it naturally, such as elements for each thread."""
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
    def places(self) -> Values:
        """Of all constants that it names."""
        return self.factors if self.divisor is None else (*self.factors, self.divisor)

    @property
    def rank(self) -> int:
        """How natural it is, the most natural first: a constant, a product, anything else."""
        simple = self.factors and self.by <= MAX_FACTOR and (self.over, self.plus) == (1, 0)
        return (0 if (len(self.places), self.by) == (1, 1) else 1) if simple else 2

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

    @property
    def natural(self) -> list[_Reading]:
        """The most natural readings."""
        return [one for one in self.readings if one.rank == min(other.rank for other in self.readings)]

    def ranks(self, values: Values, natural: bool) -> dict[int, int]:
        """What the number may be for the constants' values, each with its least rank. natural: by these alone."""
        found = dict[int, int]()
        for one in sorted(self.natural if natural else self.readings, key=lambda one: -one.rank):
            if (number := one.value(values)) is not None and number > 0:
                found[number] = one.rank
        return found


class _Observed(Run):
    """A run that counts the accesses to arrays. last: the first and the last byte of each array that the last block
    reads, and writes."""

    accesses = 0

    def __init__(self, *given: Any) -> None:
        self.last: dict[tuple[str, bool], tuple[float, float]] = {}
        super().__init__(*given)

    def access(self, pointer: Pointer, kind_: Any, **how: Any) -> Any:
        """As of `Run`."""
        self.accesses += int(self.may.sum())
        threads = prod(self.block)
        here = self.may[-threads:]
        for root, offset in pointer.targets.items() if here.any() else ():
            if root in self.arrays:
                low, high = (np.broadcast_to(one, self.count)[-threads:][here] for one in (offset.low, offset.high))
                place = root, bool(how.get("writes"))
                least, most = self.last.get(place, (np.inf, -np.inf))
                self.last[place] = min(least, float(low.min())), max(most, float(high.max()))
        return super().access(pointer, kind_, **how)


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
        self.shares: list[_Reading] = []
        self._plain: dict[tuple[int, int], _Observed | None] = {}
        self._entry = self.unit.entry(subject.facts.syntax.name)
        self.why = self._examine()
        if not self.why:
            self._search()

    def _numbers(self) -> Iterator[_Number]:
        launch = self.subject.launch
        for where, texts in (("grid", launch.grid), ("block", launch.block)):
            for axis, text in enumerate(texts):
                if where == "grid" and text.isdigit():
                    continue
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

    def _sizes(self, scale: int, turn: int) -> dict[str, int]:
        """Small sizes that meet the task's requirements, which a tile that is `scale` times as large divides."""
        task, launch, found = self.subject.task, self.subject.launch, dict[str, int]()
        for at, name in enumerate(sorted(task.size_names)):
            about = " ".join(text for text in launch.grid if name in parse(text).names)
            largest = max(map(int, re.findall(r"\d+", about)), default=1 if about else max(self.own))
            if all(text.isdigit() for text in launch.grid):
                # The grid takes turns: each block shall have some.
                largest = MAX_BLOCKS * prod(int(text) for text in launch.block)
            first, second, other = _TILES[turn]
            if name in self.units:
                found[name] = self.units[name] * scale * ((first, second)[at % 2] if about else other)
            else:
                found[name] = scale * other * min(largest, MAX_LENGTH) + _PRIMES[at % len(_PRIMES)]
        for text in task.requires:
            for _ in range(8):
                if not parse(text).evaluate(found):
                    found |= {name: 2 * found[name] for name in parse(text).names & found.keys()}
        return found

    def _run(self, entry: Any, sizes: Mapping[str, int], grid: Sequence[str], block: Sequence[str]) -> _Observed | None:
        """The kernel of a source in a launch; None where that has no meaning or goes on for too long."""
        task, arguments = self.subject.task, dict[str, int]()
        blocks = [str(min(int(text), MAX_BLOCKS)) if text.isdigit() else text for text in grid]
        extents = [[parse(text).integer(sizes) for text in texts] for texts in (blocks, block)]
        for argument, parameter in zip(task.arguments, self.subject.facts.parameters, strict=True):
            if argument.role == "scalar" and parameter.type.what == "number" and argument.value is not None:
                arguments[parameter.name] = parse(argument.value).integer(sizes)
        run = _Observed(entry.function, arguments, *extents, max(0, min(self.left, MAX_RUN)))
        self.left -= run.work
        return None if run.stopped else run

    def _base(self, scale: int, turn: int) -> _Observed | None:
        """The author's kernel at the same sizes."""
        if (scale, turn) not in self._plain:
            launch = self.subject.launch
            self._plain[scale, turn] = self._run(self._entry, self._sizes(scale, turn), launch.grid, launch.block)
        return self._plain[scale, turn]

    def _examine(self) -> str:
        """Why the author's own values show too little, as a clause; empty where they do not."""
        try:
            runs = [self._base(1, turn) for turn in (0, 1)]
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
        share, rest = divmod(_written(runs[0]), runs[0].count)
        if not rest and share * runs[1].count == _written(runs[1]):
            self.shares = list(_readings(share, self.own, False))
        return ""

    def _parsed(self, values: Values) -> Any:
        code = self.subject.facts.syntax.code
        for one, value in sorted(zip(self.constants, values, strict=True), key=lambda pair: -pair[0].start):
            code = code[: one.start] + str(value).encode() + code[one.end :]
        ahead = self.unit.code[: -len(self.subject.facts.syntax.code.decode())]
        self.left -= PARSING
        return Unit(ahead + code.decode(), Path(self.unit.where), self.unit.language).entry(self._entry.name)

    def _search(self) -> None:
        waiting, known = dict(self._combinations()), 0
        order = list[Values]()
        while self.left > 0 and len(self.passed) < MAX_PASSED:
            if known < len(self.passed):
                known = len(self.passed)
                likely = [one for one in waiting if next(self._launches(one, True), None) is not None]
                order = sorted(likely, key=lambda one: (self._disagreement(one), waiting[one], one), reverse=True)
            if not order:
                return
            values = order.pop()
            del waiting[values]
            if self.keeps_accesses(values, tried=False):
                self._try(values)

    def keeps_accesses(self, values: Values, *, tried: bool = True) -> bool:
        """Whether constants that the launch does not follow leave the number of accesses to arrays as it is: depths and
        paddings do, the radius of a stencil does not. tried: else they may be on trial themselves."""
        readings = [*(one for number in self.numbers for one in number.readings), *self.shares]
        leading = {at for one in readings for at in one.places}
        free = tuple(own if at in leading else value for at, (value, own) in enumerate(zip(values, self.own, strict=True)))
        return free in self.same or (free == values and not tried)

    def _combinations(self) -> Iterator[tuple[Values, int]]:
        """Combinations, each with the halvings and doublings, and the equal constants that differ in it."""
        pairs = [one for one in itertools.combinations(range(len(self.own)), 2) if len({self.own[at] for at in one}) == 1]
        for steps in itertools.product((0, 1, -1, 2, -2), repeat=len(self.own)):
            if all(step >= 0 or not value % (1 << -step) for value, step in zip(self.own, steps, strict=True)):
                values = tuple(value << max(step, 0) >> max(-step, 0) for value, step in zip(self.own, steps, strict=True))
                moves = sum(abs(step) for _, step in set(zip(self.own, steps, strict=True)))
                if 0 < moves <= MAX_MOVES:
                    yield values, 2 * moves + self._scale(values) + sum(values[one] != values[two] for one, two in pairs)

    def _disagreement(self, values: Values) -> int:
        """How far the natural readings of the launch's numbers contradict each other."""
        found = 0
        for number in self.numbers:
            said = {one.value(values) for one in number.natural}
            found += len([one for one in said if number.where == "grid" or (one or 0) <= MAX_BLOCK_THREADS] or "none") - 1
        return found

    def _launches(self, values: Values, natural: bool) -> Iterator[tuple[int, ...]]:
        """What the launch's numbers may be, the most natural ones first, of these the one with the fewest threads.
        natural: by natural readings alone."""
        plain, sizes = self.subject.launch, self._sizes(self._scale(values), 0)
        threads, block_before = self._threads(plain.grid, plain.block, sizes)
        declared = self.subject.facts.launch_bounds
        bound = re.search(r"\(\s*(\d+)", declared[0]) if declared is not None else None
        most = MAX_BLOCK_THREADS if bound is None else int(bound[1])
        found = dict[tuple[int, ...], tuple[int, int]]()
        ranks = [one.ranks(values, natural) for one in self.numbers]
        for said in itertools.product(*ranks):
            total, block = self._threads(*self.launch([*map(str, said)]), sizes)
            whole = not block % WARP or block_before % WARP
            fits = not self.shares or any(self._fits(one, values, threads, total) for one in self.shares)
            if min(WARP, block_before) <= block <= most and whole and total > 0 and fits:
                found[said] = sum(one[number] for one, number in zip(ranks, said, strict=True)), total
        return iter(sorted(found, key=lambda one: (found[one], one)))

    def _fits(self, share: _Reading, values: Values, before: int, threads: int) -> bool:
        """Whether as many elements are written by `threads` as by those `before`."""
        old, new = share.value(self.own), share.value(values)
        return old is not None and new is not None and old * before == new * threads > 0

    @staticmethod
    def _threads(grid: Sequence[str], block: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, int]:
        """The threads of a launch, and of a block."""
        blocks, threads = (prod(parse(text).integer(sizes) for text in texts) for texts in (grid, block))
        return blocks * threads, threads

    def _scale(self, values: Values) -> int:
        return max(max(new // old for new, old in zip(values, self.own, strict=True)), 1)

    def _try(self, values: Values) -> None:
        scale, until, entry = self._scale(values), self.left - BUDGET // 15, None
        for said in self._launches(values, False):
            if self.left < max(until, 0):
                return
            entry = entry or self._parsed(values)
            if (run := self._alike(entry, said, scale, 0)) is None:
                continue
            guarded = self._alike(entry, said, 1 if self.units else scale, 1) is not None
            if not guarded and (not self.units or scale == 1 or self._alike(entry, said, scale, 2) is None):
                return
            if self.left <= 0:
                return
            self.passed[values] = sum(size for _, size in _shared(run)), not guarded
            plain = self._base(scale, 0)
            if plain is None:
                return
            if run.accesses == plain.accesses:
                self.same.add(values)
            self.shares = [one for one in self.shares if self._fits(one, values, plain.count, run.count)]
            for number, chosen in zip(self.numbers, said, strict=True):
                number.readings = [one for one in number.readings if one.value(values) == chosen]
            return

    def _alike(self, entry: Any, said: Sequence[int], scale: int, turn: int) -> _Observed | None:
        """The run of a source in a launch with other numbers, where it does what the author's does."""
        if (base := self._base(scale, turn)) is None:
            return None
        run = self._run(entry, self._sizes(scale, turn), *self.launch([*map(str, said)]))
        return run if run is not None and _alike(run, base) else None


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


def _alike(run: _Observed, base: _Observed) -> bool:
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
        if size > MAX_SHARED or not LEAST_FILLED * filled_before <= filled <= max(1, filled_before):
            return False
        pairs.append((now, old))
    # A block with the same results has the same data.
    results, before = ({place: one for place, one in each.last.items() if place[1]} for each in (run, base))
    same_data = run.last == base.last or results != before
    return same_data and not any(_doubts(now) - _doubts(old) for now, old in pairs)


def _written(run: Run) -> int:
    """The elements of all arrays that are written for certain."""
    return sum(int(one.assigned.sum()) for name, one in run.arrays.items() if not name.startswith("shared "))


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
    passed = {values: one for values, one in trials.passed.items() if trials.keeps_accesses(values)}
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
    if not any(sizes.values()):
        return ""
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
