"""Loops in which each thread goes over a run of neighbours go through shared memory, a part of the run at a time.

Where threads have runs next to each other, as in a scan of a row, neighbouring threads touch elements that are a run
apart. Here the lanes of a warp bring the next part of each other's runs as neighbours, and write the results back as
neighbours (the transposition of "BlockLoad" in D. Merrill's CUB). A warp needs no other one, so the loop may do to its
elements whatever it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tunesmith.kernels.reader.syntax import Symbol
from tunesmith.kernels.rewrite.edits import Edit, insert, replace, span
from tunesmith.kernels.rewrite.facts import Access, Facts, Loop, may_end
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Subject, require, required
from tunesmith.kernels.rewrite.passes.vectors import moved
from tunesmith.kernels.rewrite.sharing import WARP

_LEAST = 8
"""Elements of a run that are worth it."""
_NEAR = 16
"""Elements ahead of a round's own, or behind it, that come with it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The elements of an array around `base` and the variable of a loop. places: accesses, by the distance; length: of
    the array, in C, or empty where each round has its element for certain."""

    root: Symbol
    base: Form
    places: dict[Access, int]
    length: str


def _find(subject: Subject) -> dict[Loop, list[_Run]]:
    facts, block = subject.facts, subject.launch.block
    require(subject.work.why, "which thread has which element is free")
    whole = all(one.isdigit() for one in block) and not prod(map(int, block)) % WARP
    require(whole, f"the block of {' x '.join(block)} threads is not known to have whole warps")
    found = {loop: runs for loop in facts.loops if _goes_on(subject, loop) and (runs := [*_runs(subject, loop)])}
    return required(found, "no loop that all threads come to goes over a run of each")


def _goes_on(subject: Subject, loop: Loop) -> bool:
    """Whether all threads of a block come to a loop, which counts one by one, and never meet in it."""
    facts, meets = subject.facts, [*subject.facts.barriers, *subject.facts.warp_wide]
    counts = loop.kind == "counting" and not loop.fixed and loop.node.kids[1].op != "!="
    counts = counts and ((loop.bound - loop.first).constant or _LEAST) >= _LEAST
    known = None not in (subject.written(loop.first, loop.node), subject.written(loop.bound, loop.node))
    if not counts or not known or loop.variable in facts.changed_in(loop.body) or may_end(loop.body, loop.node):
        return False
    tests, doubtful = facts.conditions(loop.node)
    calls = any(one.what == "call" and facts.function(one) is not None for one in loop.body.walk())
    apart = not any(loop.node.holds(one) or (calls and not facts.body.holds(one)) for one in meets)
    return apart and not doubtful and all(one.least is not None and facts.reach(one.least) < 2 for one in tests)


def _runs(subject: Subject, loop: Loop) -> Iterator[_Run]:
    facts, inside = subject.facts, subject.facts.inside(loop.body)
    for root in facts.arrays:
        own, groups = [one for one in inside if one.root is root], dict[Form, dict[Access, int]]()
        several, written = len({one.index for one in own}) > 1, any(one.written for one in own)
        plain = all(one.node.what in ("index", "deref") and not one.node.fixed for one in own)
        plain = plain and all(one.index.times(loop.atom) == ONE for one in own) and not (several and written)
        if not plain or root in facts.escaping or not subject.dtype(root) or not facts.is_known(root, loop.node):
            continue
        for one in own:
            column = dict(one.index.terms).get((), 0)
            column = column if several and abs(column) <= _NEAR else 0
            groups.setdefault(one.index.without(loop.atom) - Form.number(column), {})[one] = column
        length = subject.in_kernel(subject.lengths.get(root.name, "")) or ""
        for base, places in groups.items():
            always = [one for one in places if not any(facts.conditions(one.node, loop.node))]
            # An element that a round may leave may be read where the array has it, but not written.
            sure = any(one.written for one in always) if written else length or (always and not any(places.values()))
            if sure and _apart(facts, base + loop.first) and subject.written(base, loop.node) is not None:
                yield _Run(root, base, places, length)


def _apart(facts: Facts, form: Form) -> bool:
    """Whether neighbouring threads have values that are not neighbours."""
    by = (one.times(atom) for one in facts.inner(form) for atom in ("threadIdx.x", "@x"))
    return any(one not in (ZERO, ONE, -ONE) for one in by)


def _through_tiles(subject: Subject, found: dict[Loop, list[_Run]]) -> Change:
    name, tiles, union = (subject.name(one) for one in ("RUN", "run_tiles", "RunTiles"))
    warps, made, text, sizes = prod(map(int, subject.launch.block)) // WARP, Change(kit=("runs",)), "", ["0"]
    for number, (loop, runs) in enumerate(found.items()):
        made.edits.append(_rewritten(subject, loop, runs, f"{tiles}[{subject.thread[0]} / {WARP}].of_{number}"))
        members, bytes_ = "", list[str]()
        for at, one in enumerate(runs):
            before, after = max(0, -min(one.places.values())), max(0, *one.places.values())
            members += f"tunesmith::Runs<{one.root.element}, {name}, {before}, {after}> at_{at}; "
            size = f"sizeof({subject.dtype(one.root)})"
            columns = f"{name} + round_up({before}, 16 // {size}) + round_up({after}, 16 // {size})"
            bytes_.append(f"{WARP} * (({columns}) * {size} + 16)")
        text, sizes = f"{text}struct {{ {members}}} of_{number};\n", [*sizes, " + ".join(bytes_)]
    text = f"\n#if {name} > 0\nunion {union} {{\n{text}}};\n__shared__ {union} {tiles}[{warps}];\n#endif\n"
    made.edits.append(insert(subject.facts.body.start + 1, text))
    sizes_of = {subject.dtype(one.root) for runs in found.values() for one in runs}
    for size in sorted(sizes_of):
        made.constraints[f"{name} == 0 or {name} * sizeof({size}) >= 16"] = "A part has a vector or more."
    doc = "elements of a thread's run that are in shared memory at a time; 0: none"
    made.parameter(name, (0, _LEAST, 16, 32, 64), doc)
    made.static_shared = f"(max({', '.join(sizes)}) * {warps} if {name} > 0 else 0)"
    return made


def _rewritten(subject: Subject, loop: Loop, runs: list[_Run], tiles: str) -> Edit:
    """A loop as one over parts of runs, which come to shared memory before and leave it behind. Where the runs of a
    warp are all shorter than a part, so that neighbours share the lines of caches, it stays."""
    words = ("RUN", "run_first", "run_left", "run_column", "run_lane", "tiles_here")
    name, first, left, column, lane, here = map(subject.name, words)
    moves, swaps = {False: "", True: ""}, list[Edit]()
    for number, one in enumerate(runs):
        begin = f"{subject.written(one.base, loop.node)} + {first}"
        given = f"{lane}, {one.root.name}, {begin}, {left}, {one.length or f'{begin} + {left}'}"
        for back in {False for x in one.places if x.read} | {True for x in one.places if x.written}:
            how = f"{str(back).lower()}, {subject.hint(one.root, stored=back)}"
            moves[back] += f"tunesmith::move<{how}>({here}.at_{number}, {given});\n"
        for access, distance in one.places.items():
            swaps.append(moved(subject, access, f"{here}.at_{number}.of({lane}, {column} + {distance})"))
    extent = f"{subject.written(loop.first, loop.node)}, {subject.written(loop.bound, loop.node)}"
    part, turn = f"[&](const {subject.wide} {first}, const {subject.wide} {left})", f"const int {column}"
    opens = f"\n#if {name} > 0\nif (tunesmith::are_long<{name}>({extent})) {{\n"
    opens += f"const int {lane} = {subject.thread[0]} % {WARP};\nauto& {here} = {tiles};\n"
    opens += f"tunesmith::parts<{name}>({extent}, {part} {{\n{moves[False]}}}, {part} {{\n{moves[True]}}}, "
    opens += f"[&]({loop.variable.written} {loop.variable.name}, {turn}) {{\n"
    return replace(loop.node, opens, span(loop.body, *swaps), "; });\n} else\n#endif\n", span(loop.node))


RUNS = Pass("runs", _find, _through_tiles, why="runs of neighbours stay a thread's own: ", after=("cache_hints",))
