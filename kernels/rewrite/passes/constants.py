"""The constants that fix a kernel's tile, such as `#define BLOCK_SIZE 16`, become parameters.

Owns the search for values that a kernel admits. Each combination of values is tried: the source with the new constants,
and a launch that follows them, is run by `tunesmith.kernels.reader.run` on small sizes, and must reach and write the
same elements of the same arrays as the author's own. The device checks each value again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.kernels.reader.parse import SourceError, Unit, kind, walk
from tunesmith.kernels.reader.run import Array, Pointer, Run
from tunesmith.kernels.reader.syntax import Lowering, Symbol
from tunesmith.kernels.rewrite.edits import Edit
from tunesmith.kernels.rewrite.facts import AXES
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Refused, Subject
from tunesmith.kernels.rewrite.sharing import MAX_BLOCK_THREADS, WARP
from tunesmith.kernels.spec.expression import ExpressionError, parse

BUDGET = 600_000_000
"""Work of all trials of a kernel, as `Run.work` counts it: about two seconds."""
MAX_RUN, MAX_TRIAL = BUDGET // 10, BUDGET // 15
"""Work of one run, and of one combination before its last launch."""
PARSING = 12_000_000
"""Work that reading a source counts as."""
MAX_CONSTANTS, MAX_COMBINATIONS = 5, 32
MAX_TEXT, MAX_NAME = 1900, 50
MAX_MOVES = 3
"""Halvings and doublings in one combination; constants with equal values that move together count once."""
MAX_SHARED = 48 * 1024
"""Bytes of the arrays in shared memory of a source."""
LEAST_FILLED = 0.75
"""Of the share of shared memory that the author's kernel uses."""
MAX_BLOCKS = 6
"""Blocks of a trial along an axis whose number of blocks no size changes."""
MAX_LENGTH = 2048
"""Of a size that no tile has to divide, at the author's tile."""
_TILES = ((1, 2, 1), (3, 1, 3), (1, 1, 2))
"""Tiles in three trials: along sizes in the grid, by turns, and along the others, which loops follow."""
MAX_DOUBLED = 12
"""How often a size is doubled until a requirement holds."""
MAX_THREADS = 1 << 18
_FAR = 1 << 24
"""Bytes, more than an array has in a trial."""
_PRIMES = (5, 11, 3, 7, 13, 9)
_LITERAL = re.compile(r"([1-9]\d*)([uUlL]*)")
_NUMBER = re.compile(r"(?<![\w.])(?:[2-9]|[1-9]\d+)(?![\w.])")
"""A number in the launch that may follow from constants."""
_DIVISIBLE = re.compile(r"(\w+) % (\d+) == 0")
Values = tuple[int, ...]
"""A value for each constant, in their order."""


@dataclass(frozen=True, slots=True)
class _Constant:
    """A whole number with a name. start, end: bytes of its digits in the source; suffix: the letters behind them."""

    name: str
    value: int
    start: int
    end: int
    suffix: str

    def replaced(self, name: str) -> Edit:
        """The edit that puts a macro in its place."""
        return Edit(self.start, self.end + len(self.suffix), (f"({name} + 0{self.suffix})" if self.suffix else name,))


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a number may follow from the constants: the product of those at the places `factors`, times `by`, and `plus`
    more."""

    factors: tuple[int, ...] = ()
    by: Fraction = Fraction(1)
    plus: int = 0

    @property
    def rank(self) -> int:
        """How natural it is, the most natural first: a constant, a product with few elements a thread, anything
        else."""
        natural = self.factors and self.by in (1, 2, 4) and not self.plus
        return 2 if not natural else int(len(self.factors) > 1 or self.by > 1)

    def value(self, values: Values) -> int:
        """The number for the constants' values; 0 where it is not whole."""
        found = prod(values[at] for at in self.factors) * self.by + self.plus
        return int(found) if found.denominator == 1 else 0

    def text(self, names: Sequence[str]) -> str:
        """An expression with names for the constants; without a division it is one of C, too."""
        product = " * ".join([*(names[at] for at in self.factors), *([str(self.by)] if self.by > 1 else [])])
        product += f" // {self.by.denominator}" if self.by < 1 else ""
        whole = f"{product} {'+' if self.plus > 0 else '-'} {abs(self.plus)}" if self.plus else product
        return whole if re.fullmatch(r"\w+", whole) else f"({whole})"


def _readings(number: int, own: Values, divides: bool) -> list[_Reading]:
    """How a number may follow from constants with the values `own`, the simplest first. divides: also by division."""
    found, places = [_Reading((), Fraction(number))], [at for at, value in enumerate(own) if value > 1]
    for at in places:
        by = Fraction(number, own[at])
        if by.denominator == 1 or (divides and by.numerator == 1):
            found.append(_Reading((at,), by))
        elif abs(number - own[at]) <= own[at] // 2:
            found.append(_Reading((at,), plus=number - own[at]))
    for pair in itertools.combinations_with_replacement(places, 2):
        by = Fraction(number, own[pair[0]] * own[pair[1]])
        found += [_Reading(pair, by)] if by.denominator == 1 else []
    return found


def _natural(readings: Sequence[_Reading]) -> list[_Reading]:
    """The most natural ones."""
    return [one for one in readings if one.rank == min(other.rank for other in readings)]


class _Observed(Run):
    """A run that also knows the number of accesses to arrays; seen: the first bytes of all reads, and writes, by array,
    those in shared memory by their order in the source; clashes: of these, where two threads of a block write one
    element; last: the first and the last byte of each other array that the last block reads, and writes."""

    accesses = 0

    def __init__(self, *given: Any) -> None:
        self.seen: dict[tuple[str | int, bool], Any] = {}
        self.last: dict[tuple[str, bool], tuple[float, float]] = {}
        self.clashes: set[int] = set()
        super().__init__(*given)

    def access(self, pointer: Pointer, kind_: Any, **how: Any) -> Any:
        """As of `Run`."""
        self.accesses += int(self.may.sum())
        threads, writes = prod(self.block), bool(how.get("writes"))
        for root, offset in pointer.targets.items():
            low, high = (np.broadcast_to(one, self.count) for one in (offset.low, offset.high))
            known = self.may & (low == high) & (low >= 0) & (low < _FAR)
            bytes_ = low[known].astype(np.int64)
            if root in self.shared:
                place = list(self.shared).index(root)
                self._see((place, writes), bytes_)
                cells = bytes_ + _FAR * (np.flatnonzero(known) // threads)
                self.clashes |= {place} if writes and len(np.unique(cells)) < len(cells) else set()
            elif root in self.arrays:
                self._see((root, writes), bytes_)
                if (here := self.may[-threads:]).any():
                    least, most = self.last.get((root, writes), (np.inf, -np.inf))
                    ends = low[-threads:][here].min(), high[-threads:][here].max()
                    self.last[root, writes] = min(least, float(ends[0])), max(most, float(ends[1]))
        return super().access(pointer, kind_, **how)

    def _see(self, place: tuple[str | int, bool], bytes_: Any) -> None:
        mask = self.seen.get(place, np.zeros(0, bool))
        if (end := int(bytes_.max(initial=-1)) + 1) > len(mask):
            mask = self.seen[place] = np.concatenate([mask, np.zeros(end - len(mask), bool)])
        mask[bytes_] = True

    @property
    def inner(self) -> list[tuple[Array, int]]:
        """The arrays in shared memory, in the order of the source, with their bytes."""
        return [(one, symbol.type.size) for symbol, one in self.shared.items()]

    @property
    def written(self) -> int:
        """The elements of all arrays in global memory that are written for certain."""
        return sum(int(one.assigned.sum()) for one in self.arrays.values())

    def does_as(self, base: _Observed) -> bool:
        """Whether it does to arrays what the author's run does, and keeps to shared memory as well as that."""
        pairs = [(self.arrays[name], one) for name, one in base.arrays.items()]
        same = all(now.reach == old.reach and np.array_equal(now.assigned, old.assigned) for now, old in pairs)
        same = same and all(
            np.array_equal(self.seen.get(place, ()), one) for place, one in base.seen.items() if place[0] in self.arrays
        )
        same = same and len(self.inner) == len(base.inner)
        for (now, size), (old, size_before) in zip(self.inner, base.inner, strict=False):
            share, before = (one.reach * one.element / max(of, 1) for one, of in ((now, size), (old, size_before)))
            same = same and size <= MAX_SHARED and LEAST_FILLED * before <= share <= max(1, before)
            pairs.append((now, old))
        # A block with the same results has the same data.
        results, others = ({place: one for place, one in run.last.items() if place[1]} for run in (self, base))
        same = same and (self.last == base.last or results != others)
        same = same and self.clashes <= base.clashes and self.unwritten <= base.unwritten
        return same and not any(_doubts(now) - _doubts(old) for now, old in pairs)

    @property
    def unwritten(self) -> set[int]:
        """The arrays in shared memory of which elements are read that no thread writes."""
        found = set[int]()
        for place in range(len(self.shared)):
            read, written = (np.flatnonzero(self.seen.get((place, writes), ())) for writes in (False, True))
            found |= {place} if len(np.setdiff1d(read, written, True)) else set()
        return found


def _doubts(array: Array) -> set[str]:
    """The faults and unknowns of the accesses to an array."""
    return {name for name in ("open", "negative", "early", "lost", "collides") if getattr(array, name)}


class _Trials:
    """The search for combinations of values. passed: by combination, its bytes of shared memory and whether its tile
    must divide the sizes; same: the tiles that access arrays as often as the author's values; numbers: for each number
    of the launch, the readings that agree with all that passed; shares: readings of the elements that a thread writes,
    where all write as many."""

    def __init__(self, subject: Subject, constants: list[_Constant]) -> None:
        self.subject, self.constants, self.left = subject, constants, BUDGET
        self.own = tuple(one.value for one in constants)
        self.units = {one[1]: int(one[2]) for text in subject.task.requires if (one := _DIVISIBLE.fullmatch(text))}
        texts = " ".join(text for text in subject.launch.grid if not text.isdigit())
        self.numbers = [_readings(int(one), self.own, True) for one in _NUMBER.findall(texts)]
        self.numbers += [_readings(int(one), self.own, False) for one in subject.launch.block if one != "1"]
        self.passed: dict[Values, tuple[int, bool]] = {}
        self.same = {self.own}
        self.shares: list[_Reading] = []
        self._entry = _entry(subject.facts.syntax.unit, subject.facts.syntax.name)
        self._plain: dict[tuple[int, int], _Observed | None] = {}

    def launch(self, said: Sequence[object]) -> tuple[list[str], list[str]]:
        """The grid and the block with other texts for their numbers."""
        left, launch = map(str, said), self.subject.launch
        grid = [one if one.isdigit() else _NUMBER.sub(lambda _: next(left), one) for one in launch.grid]
        return grid, [_NUMBER.sub(lambda _: next(left), one) for one in launch.block]

    def examine(self) -> str:
        """Runs the author's values; why they show too little, as a clause, or empty."""
        first, second = (self._base(1, turn) for turn in (0, 1))
        if first is None or second is None:
            return "the kernel cannot be followed on small sizes"
        for name, one in [*first.arrays.items(), *second.arrays.items()]:
            if one.lost or (one.written and (one.open or not one.assigned.any())):
                return f"what becomes of {name} is not known"
        if any(one.open for one, _ in first.inner):
            return "indices in shared memory are not known"
        self.passed[self.own] = sum(size for _, size in first.inner), False
        share, rest = divmod(first.written, first.count)
        if not rest and share * second.count == second.written:
            self.shares = _readings(share, self.own, False)
        return ""

    def search(self) -> None:
        """Tries combinations, those first for which the most natural readings agree."""
        waiting, known, order = dict(self._combinations()), -1, list[Values]()
        while self.left > 0 and len(self.passed) < MAX_COMBINATIONS:
            left = sum(map(len, [*self.numbers, self.shares]))
            if known != left:
                known, order = left, [one for one in waiting if self._launches(one, True)]
                order.sort(key=lambda one: (self._disagreement(one), waiting[one], one), reverse=True)
            if not order:
                return
            values = order.pop()
            del waiting[values]
            if self.keeps_accesses(values, tried=False):
                self._try(values)

    def keeps_accesses(self, values: Values, *, tried: bool = True) -> bool:
        """Whether constants that the launch does not follow leave the number of accesses to arrays as it is: depths and
        paddings do, the radius of a stencil does not. tried: else they may be on trial themselves."""
        leading = {at for readings in (*self.numbers, self.shares) for one in readings for at in one.factors}
        free = tuple(self.own[at] if at in leading else value for at, value in enumerate(values))
        return free in self.same or (free == values and not tried)

    def _combinations(self) -> Iterator[tuple[Values, int]]:
        """Combinations, each with what it costs: moves, larger sizes of a trial, and constants no longer equal."""
        pairs = list(itertools.combinations(range(len(self.own)), 2))
        for steps in itertools.product((0, 1, -1, 2, -2), repeat=len(self.own)):
            moved = list(zip(self.own, steps, strict=True))
            moves = sum(abs(step) for _, step in set(moved))
            if 0 < moves <= MAX_MOVES and all(step >= 0 or not value % (1 << -step) for value, step in moved):
                values = tuple(value << max(step, 0) >> max(-step, 0) for value, step in moved)
                parted = sum(self.own[a] == self.own[b] and values[a] != values[b] for a, b in pairs)
                yield values, 2 * moves + self._scale(values) + parted

    def _scale(self, values: Values) -> int:
        return max(1, *(new // old for new, old in zip(values, self.own, strict=True)))

    def _disagreement(self, values: Values) -> int:
        """The values that the most natural readings give the launch's numbers, beyond one for each."""
        blocks = sum(one != "1" for one in self.subject.launch.block)
        said = [{one.value(values) for one in _natural(readings)} for readings in self.numbers]
        said[len(said) - blocks :] = [{n for n in one if n <= MAX_BLOCK_THREADS} for one in said[len(said) - blocks :]]
        return sum(len(one) - 1 for one in said)

    def _launches(self, values: Values, natural: bool) -> list[Values]:
        """What the launch's numbers may be, the most natural first, of these the one with the fewest threads. natural:
        by the most natural readings alone."""
        sizes, bound = self._sizes(self._scale(values), 0), self.subject.facts.launch_bounds
        declared = None if bound is None else re.search(r"\(\s*(\d+)", bound[0])
        most = MAX_BLOCK_THREADS if declared is None else int(declared[1])
        before, block_before = _threads(self.subject.launch.grid, self.subject.launch.block, sizes)
        ranks, found = list[dict[int, int]](), dict[Values, tuple[int, int]]()
        for readings in self.numbers:
            used = _natural(readings) if natural else readings
            ranks.append({one.value(values): one.rank for one in sorted(used, key=lambda one: -one.rank)})
        for said in itertools.product(*ranks):
            threads, block = _threads(*self.launch(said), sizes) if min(said, default=1) > 0 else (0, 0)
            fits = not self.shares or any(self._fits(one, values, before, threads) for one in self.shares)
            whole = not block % WARP or block_before % WARP
            if threads and fits and whole and min(WARP, block_before) <= block <= most:
                found[said] = sum(one[number] for one, number in zip(ranks, said, strict=True)), threads
        return sorted(found, key=lambda one: (found[one], one))

    def _fits(self, share: _Reading, values: Values, before: int, threads: int) -> bool:
        """Whether as many elements are written by `threads` as by those `before`."""
        return share.value(self.own) * before == share.value(values) * threads > 0

    def _try(self, values: Values) -> None:
        scale, until, entry = self._scale(values), self.left - MAX_TRIAL, None
        for said in self._launches(values, False):
            if self.left < max(until, 0):
                return
            entry = entry or self._parsed(values)
            run, plain = self._alike(entry, said, scale, 0), self._base(scale, 0)
            if run is None or plain is None:
                continue
            guarded = self._alike(entry, said, 1 if self.units else scale, 1) is not None
            divides = self.units and scale > 1 and self._alike(entry, said, scale, 2) is not None
            if self.left > 0 and (guarded or divides):
                self.passed[values] = sum(size for _, size in run.inner), not guarded
                self.same |= {values} if run.accesses == plain.accesses else set()
                self.shares = [one for one in self.shares if self._fits(one, values, plain.count, run.count)]
                chosen = zip(self.numbers, said, strict=True)
                self.numbers = [[one for one in readings if one.value(values) == n] for readings, n in chosen]
            return

    def _alike(self, entry: Any, said: Values, scale: int, turn: int) -> _Observed | None:
        """The run of a source in a launch with other numbers, where it does what the author's does."""
        if (base := self._base(scale, turn)) is None:
            return None
        run = self._run(entry, scale, turn, *self.launch(said))
        return run if run is not None and run.does_as(base) else None

    def _base(self, scale: int, turn: int) -> _Observed | None:
        """The author's kernel at the same sizes."""
        if (scale, turn) not in self._plain:
            launch = self.subject.launch
            self._plain[scale, turn] = self._run(self._entry, scale, turn, launch.grid, launch.block)
        return self._plain[scale, turn]

    def _run(self, entry: Any, scale: int, turn: int, grid: Sequence[str], block: Sequence[str]) -> _Observed | None:
        """The kernel of a source in a launch; None where it goes on for too long, or the sizes may not be."""
        sizes, arguments = self._sizes(scale, turn), dict[str, int]()
        blocks = [str(min(int(text), MAX_BLOCKS)) if text.isdigit() else text for text in grid]
        extents = [[parse(text).integer(sizes) for text in texts] for texts in (blocks, block)]
        allowed = all(parse(text).evaluate(sizes) for text in self.subject.task.requires)
        if entry is None or not allowed or prod(map(prod, extents)) > MAX_THREADS:
            return None
        for argument, parameter in zip(self.subject.task.arguments, self.subject.facts.parameters, strict=True):
            if argument.value is not None and parameter.type.what == "number":
                arguments[parameter.name] = parse(argument.value).integer(sizes)
        lowering, kernel = entry
        run = _Observed(lowering, kernel, arguments, *extents, max(0, min(self.left, MAX_RUN)))
        run.follow(lowering.body(kernel))
        self.left -= run.work
        return None if run.stopped else run

    def _parsed(self, values: Values) -> Any:
        """The kernel of the source with other values; None where the source refuses them."""
        syntax, self.left = self.subject.facts.syntax, self.left - PARSING
        code = syntax.code
        for one, value in sorted(zip(self.constants, values, strict=True), key=lambda pair: -pair[0].start):
            code = code[: one.start] + str(value).encode() + code[one.end :]
        ahead = syntax.unit.code[: -len(syntax.code.decode())]
        try:
            unit = Unit(ahead + code.decode(), Path(syntax.unit.where), syntax.language)
            return None if len(unit.diagnostics) > len(syntax.unit.diagnostics) else _entry(unit, syntax.name)
        except SourceError:
            return None

    def _sizes(self, scale: int, turn: int) -> dict[str, int]:
        """Small sizes that meet the task's requirements; a tile that is `scale` times as large divides those that the
        author's has to divide."""
        task, launch, found = self.subject.task, self.subject.launch, dict[str, int]()
        by_turns = all(text.isdigit() for text in launch.grid)
        for at, name in enumerate(sorted(task.size_names)):
            about = " ".join(text for text in launch.grid if name in parse(text).names)
            if unit := self.units.get(name, 0):
                tiles = _TILES[turn][at % 2 if about else 2]
                found[name] = scale * tiles * unit
                continue
            others = MAX_BLOCKS * prod(map(int, launch.block)) if by_turns else max(self.own)
            tile = max(map(int, re.findall(r"\d+", about)), default=1 if about else min(others, MAX_LENGTH))
            rest = _PRIMES[at % len(_PRIMES)] * (-1 if turn == 1 and tile >= WARP // 2 else 1)
            found[name] = scale * _TILES[turn][2] * tile + rest
        for text, _ in itertools.product(task.requires, range(MAX_DOUBLED)):
            if not parse(text).evaluate(found):
                found |= {name: 2 * found[name] for name in parse(text).names & found.keys()}
        return found


def _entry(unit: Unit, name: str) -> tuple[Lowering, Symbol]:
    """The kernel of a source, as `Run` takes it."""
    lowering = Lowering(unit)
    return lowering, lowering.symbol(unit.entry(name).function)


def _threads(grid: Sequence[str], block: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, int]:
    """The threads of a launch, and of a block."""
    blocks, threads = (prod(parse(text).integer(sizes) for text in texts) for texts in (grid, block))
    return blocks * threads, threads


def _constants(subject: Subject) -> list[_Constant]:
    """The constants that may fix the tile: those in the extents of shared arrays, and those of which an extent of the
    block is a multiple."""
    facts, syntax = subject.facts, subject.facts.syntax
    meanings, found = dict[str, str](), dict[str, list[_Constant]]()
    ahead = len(syntax.unit.code.encode()) - len(syntax.code)
    for name, words in _definitions(subject):
        bare = [one for one in words if one.spelling not in "()"]
        meanings[name] = " ".join(one.spelling for one in words)
        literal, found[name] = _LITERAL.fullmatch(meanings[name].strip("() ")), found.get(name, [])
        value, suffix = (0, "") if literal is None else (int(literal[1]), literal[2])
        start = bare[0].extent.start.offset - ahead if bare else 0
        found[name].append(_Constant(name, value, start, start + len(str(value)), suffix))

    def names(text: str) -> set[str]:
        """The defined names in a text, and in what they mean."""
        known, waiting = set[str](), [text]
        while waiting:
            new = set(re.findall(r"\w+", waiting.pop())) & meanings.keys() - known
            known, waiting = known | new, waiting + [meanings[one] for one in new]
        return known

    used = names(" ".join(facts.text(one) for one in (facts.body, *syntax.functions)))
    in_tiles = names(" ".join(facts.text(one.declared) for one in facts.shared if one.declared is not None))
    once = [of[0] for name, of in found.items() if name in used and len(of) == 1]
    # A warp is as wide as the hardware makes it.
    once = [one for one in once if one.value and "warp" not in one.name.lower() and len(one.name) <= MAX_NAME]
    tiles = [one for one in once if one.name in in_tiles]
    extents = [int(text) for text in subject.launch.block]
    others = [one for one in once if one.value > 1 and any(not each % one.value for each in extents)]
    return list(dict.fromkeys([*tiles, *others]))[:MAX_CONSTANTS]


def _definitions(subject: Subject) -> Iterator[tuple[str, list[Any]]]:
    """The macros, constants and enumerators of the source, each with the tokens of its value."""
    unit = subject.facts.syntax.unit
    kinds = ("MACRO_DEFINITION", "VAR_DECL", "ENUM_DECL")
    top = [one for one in unit.top if kind(one) in kinds and str(one.location.file) == unit.where]
    enumerators = [inner for one in top if kind(one) == "ENUM_DECL" for inner in one.get_children()]
    for one in [*top, *enumerators, *walk(subject.facts.syntax.cursor)]:
        words = list(one.get_tokens()) if kind(one) in ("MACRO_DEFINITION", "VAR_DECL", "ENUM_CONSTANT_DECL") else []
        assigned = [at for at, word in enumerate(words, 1) if word.spelling == "="]
        if kind(one) == "MACRO_DEFINITION":
            yield one.spelling, words[1:]
        elif assigned and (kind(one) != "VAR_DECL" or one.type.is_const_qualified()):
            yield one.spelling, words[assigned[-1] :]


def _tried(subject: Subject) -> _Trials | Refused:
    launch = subject.launch
    if not subject.work.why:
        return "constants stay: the size of a block is free"
    if launch.shared_bytes != "0" or not all(one.isdigit() for one in launch.block):
        return "constants stay: the launch does not say its block, or has dynamic shared memory"
    trials = _Trials(subject, _constants(subject))
    if not trials.constants:
        return "constants stay: none fixes a tile"
    try:
        why = trials.examine()
        if not why:
            trials.search()
    except ExpressionError:
        why = "the launch, or a scalar, is not a whole number for all sizes"
    if not why:
        trials.passed = {values: one for values, one in trials.passed.items() if trials.keeps_accesses(values)}
        why = "" if len(trials.passed) > 1 else "other values do not compute the same"
    return f"{', '.join(one.name for one in trials.constants)} stay: {why}" if why else trials


def _change(subject: Subject, trials: _Trials) -> Change:
    constants, own, passed = trials.constants, trials.own, trials.passed
    varied = [at for at in range(len(own)) if any(values[at] != own[at] for values in passed)]
    # Constants that are always equal are one parameter.
    heads = {at: next(one for one in varied if all(values[one] == values[at] for values in passed)) for at in varied}
    names = [subject.name(constants[heads.get(at, at)].name) if at in heads else str(own[at]) for at in range(len(own))]
    first = list(dict.fromkeys(heads.values()))
    named, points = [names[at] for at in first], {tuple(values[at] for at in first) for values in passed}
    made = Change(edits=[constants[at].replaced(names[at]) for at in varied])
    for at in first:
        others = sorted({values[at] for values in passed} - {own[at]})
        doc = " and ".join(constants[one].name for one in varied if heads[one] == at) + DOC
        made.parameter(names[at], (own[at], *others), doc)
    if len(points) < prod(len(one.values) for one in made.parameters):
        because = "Other combinations of the source's constants do not compute the same."
        if len(text := _among(named, points)) > MAX_TEXT:
            trials.passed.popitem()
            return _change(subject, trials)
        made.constraints[text] = because
    if any(divides for _, divides in passed.values()):
        scale = ", ".join(["1", *(f"{names[at]} // {own[at]}" for at in first)])
        because = "The kernel has no guard for sizes that its tile does not divide."
        made.constraints |= {f"{size} % ({unit} * max({scale})) == 0": because for size, unit in trials.units.items()}
    grid, block = trials.launch([readings[0].text(names) for readings in trials.numbers])
    threads = " * ".join(block)
    if "launch_bounds" in subject.changes:
        minimum, macro = subject.name("MIN_BLOCKS"), subject.name("LAUNCH_BOUNDS")
        made.header += [f"#if {minimum} > 0", f"#undef {macro}"]
        made.header += [f"#define {macro} __launch_bounds__({threads}, {minimum})", "#endif"]
        made.constraints[f"{threads} * {minimum} <= 2048"] = "No multiprocessor holds more threads."
    made.off = "(" + " and ".join(f"{names[at]} == {own[at]}" for at in first) + ")"
    made.grid, made.block = dict(zip(AXES, grid, strict=False)), dict(zip(AXES, block, strict=False))
    sizes = {tuple(one[at] for at in first): size for one, (size, _) in passed.items()}
    made.static_shared = _bytes(subject, named, sizes)
    return made


def _among(names: Sequence[str], points: set[Values]) -> str:
    """An expression for names that have the values of a point."""
    behind = dict[frozenset[Values], list[int]]()
    for value in sorted({one[0] for one in points}):
        behind.setdefault(frozenset(one[1:] for one in points if one[0] == value), []).append(value)
    parts = []
    for rest, values in behind.items():
        here = f"{names[0]} in ({', '.join(map(str, values))})" if values[1:] else f"{names[0]} == {values[0]}"
        parts.append(f"{here} and ({_among(names[1:], set(rest))})" if names[1:] else here)
    return " or ".join(parts)


def _bytes(subject: Subject, names: Sequence[str], sizes: Mapping[Values, int]) -> str:
    """Bytes of shared memory beyond the task's declaration: a sum of few products of the constants, or the most
    that a point needs."""
    declared = subject.task.sources(subject.backend).baseline.template.static_shared_bytes
    wanted = np.array(list(sizes.values()), float)
    terms = [one for count in range(4) for one in itertools.combinations_with_replacement(range(len(names)), count)]
    for count in range(1, min(4, len(sizes)) if wanted.any() else 1):
        for chosen in itertools.combinations(terms, count):
            products = np.array([[prod(point[at] for at in one) for one in chosen] for point in sizes], float)
            factors = np.rint(np.linalg.lstsq(products, wanted, rcond=None)[0])
            if (factors > 0).all() and np.array_equal(products @ factors, wanted):
                texts = [(str(int(by)), *(names[at] for at in one)) for by, one in zip(factors, chosen, strict=True)]
                return f"{' + '.join(map(' * '.join, texts))} - ({declared})"
    return f"{int(wanted.max())} - ({declared})" if wanted.any() else ""


DOC = " of the source"
"""How the parameters' texts end."""
_KEPT = "The rule knows the kernel's own block alone."
CONSTANTS = Pass(
    "constants",
    _tried,
    _change,
    excludes=dict.fromkeys(("block_size", "work_per_thread", "row_teams", "row_lanes", "shuffles", "own_bins"), _KEPT),
    after=("launch_bounds",),
    languages=("cuda", "opencl"),
)
