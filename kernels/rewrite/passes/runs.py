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

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span, insert, replace, span
from tunesmith.kernels.rewrite.facts import Access, Facts, Loop, may_end
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Refused, Subject
from tunesmith.kernels.rewrite.passes.vectors import moved
from tunesmith.kernels.rewrite.sharing import WARP

_WHY = "runs of neighbours stay a thread's own"
_NEAR = 16
"""Elements ahead of a round's own, or behind it, that come with it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The elements of an array around `base` and the variable of a loop, of which each round has some: accesses by the
    distance, of which each round certainly writes one where any does. length: of the array, in C, or empty."""

    root: Symbol
    base: Form
    places: dict[Access, int]
    length: str

    @property
    def around(self) -> tuple[int, int]:
        """How many elements before and behind its own a round may need."""
        return max(0, -min(self.places.values())), max(0, *self.places.values())

    @property
    def read(self) -> bool:
        return any(one.read for one in self.places)

    @property
    def written(self) -> bool:
        return any(one.written for one in self.places)

    def type(self, columns: str) -> str:
        """Of a warp's part of it in shared memory, in C."""
        before, after = self.around
        return f"tunesmith::Runs<{self.root.element}, {columns}, {before}, {after}>"


_Found = dict[Loop, list[_Run]]


def _find(subject: Subject) -> _Found | Refused:
    facts, block = subject.facts, subject.launch.block
    if not subject.work.why:
        return Refused(f"{_WHY}: which thread has which element is free")
    if not all(one.isdigit() for one in block) or prod(map(int, block)) % WARP:
        return Refused(f"{_WHY}: the block of {' x '.join(block)} threads is not known to have whole warps")
    found = {loop: runs for loop in facts.loops if _goes_on(facts, loop) and (runs := [*_runs(subject, loop)])}
    return found or Refused(f"{_WHY}: no loop that all threads come to goes over a run of each")


def _goes_on(facts: Facts, loop: Loop) -> bool:
    """Whether all threads of a block come to a loop, which counts one by one as far as was clear ahead of it, and never
    meet in it."""
    bound, meets = _bound(loop), [*facts.barriers, *facts.warp_wide]
    if loop.kind != "counting" or loop.fixed or bound is None or may_end(loop.body, loop.node):
        return False
    tests, doubtful = facts.conditions(loop.node)
    alike = not doubtful and all(one.least is not None and facts.reach(one.least) < 2 for one in tests)
    calls = any(one.what == "call" and facts.function(one) is not None for one in loop.body.walk())
    apart = not any(loop.node.holds(one) or (calls and not facts.body.holds(one)) for one in meets)
    steady = not (facts.names_in(loop.node.kids[1]) | {loop.variable}) & facts.changed_in(loop.body)
    return alike and apart and steady and not any(facts.is_written(one.root) for one in facts.inside(bound))


def _bound(loop: Loop) -> Node | None:
    """What the variable of a loop is compared with by size, as a number of the same kind; else None."""
    test = loop.node.kids[1]
    bound = test.kids[test.kids[0].what == "name" and test.kids[0].symbol is loop.variable]
    same = (bound.type.least < 0) == (loop.variable.type.least < 0) or isinstance(bound.value, int)
    return bound if same and test.op != "!=" else None


def _runs(subject: Subject, loop: Loop) -> Iterator[_Run]:
    facts, inside = subject.facts, subject.facts.inside(loop.body)
    for root in facts.arrays:
        own, groups = [one for one in inside if one.root is root], dict[Form, dict[Access, int]]()
        several, written = len({one.index for one in own}) > 1, any(one.written for one in own)
        if root in facts.escaping or not subject.dtype(root) or not facts.is_known(root, loop.node):
            continue
        if several and written:
            continue
        for one in own:
            column = dict(one.index.terms).get((), 0)
            column = column if several and abs(column) <= _NEAR else 0
            groups.setdefault(one.index.without(loop.atom) - Form.number(column), {})[one] = column
        length = subject.in_kernel(subject.lengths.get(root.name, "")) or ""
        for base, places in groups.items():
            always = [one for one in places if not any(facts.conditions(one.node, loop.node))]
            # What each round touches is there; anything else may be read where the array has it, and not written.
            sure = any(one.written for one in always) if written else length or (always and not any(places.values()))
            plain = all(one.node.what in ("index", "deref") and not one.node.fixed for one in places)
            plain = plain and all(one.index.times(loop.atom) == ONE for one in places)
            if plain and sure and _apart(facts, base + loop.first) and subject.written(base, loop.node) is not None:
                yield _Run(root, base, places, length)


def _apart(facts: Facts, form: Form) -> bool:
    """Whether neighbouring threads have values that are not neighbours."""
    by = [factor for atom in ("threadIdx.x", "@x") if (factor := form.times(atom)).terms]
    parts = (part for atom in form.atoms if atom in facts.atoms for part in facts.atoms[atom].parts)
    return any(one not in (ONE, -ONE) for one in by) or any(_apart(facts, part) for part in parts)


def _through_tiles(subject: Subject, found: _Found) -> Change:
    name, tiles, union = (subject.name(one) for one in ("RUN", "run_tiles", "RunTiles"))
    warps, made, parts, sizes = prod(map(int, subject.launch.block)) // WARP, Change(kit=("runs",)), "", list[str]()
    for number, (loop, runs) in enumerate(found.items()):
        made.edits.append(_rewritten(subject, loop, runs, f"{tiles}[{{}}].of_{number}"))
        parts += f"struct {{ {' '.join(f'{one.type(name)} at_{at};' for at, one in enumerate(runs))} }} of_{number};\n"
        sizes.append(" + ".join(_bytes(subject, one, name) for one in runs))
    text = f"\n#if {name} > 0\nunion {union} {{\n{parts}}};\n__shared__ {union} {tiles}[{warps}];\n#endif\n"
    made.edits.append(insert(subject.facts.body.start + 1, text))
    made.parameter(name, (0, 16, 32, 64), "elements of a thread's run that are in shared memory at a time; 0: none")
    made.static_shared = f"(max({', '.join([*sizes, '0'])}) * {warps} if {name} > 0 else 0)"
    return made


def _bytes(subject: Subject, run: _Run, columns: str) -> str:
    size = f"sizeof({subject.dtype(run.root)})"
    around = "".join(f" + round_up({one}, 16 // {size})" for one in run.around if one)
    return f"{WARP} * (({columns}{around}) * {size} + 16)"


def _rewritten(subject: Subject, loop: Loop, runs: list[_Run], tiles: str) -> Edit:
    """A loop as one over parts of runs, which come to shared memory before and leave it behind."""
    words = ("RUN", "run_first", "run_length", "run_at", "run_left", "run_column", "run_lane")
    name, first, length, at, left, column, lane = map(subject.name, words)
    kind, bound, thread = loop.variable.written.removeprefix("const "), _bound(loop), subject.thread[0]
    assert bound is not None, "the loop was found by its bound"
    here, wide, took, gave, swaps = subject.name("tiles_here"), subject.wide, list[str](), list[str](), list[Edit]()
    for number, one in enumerate(runs):
        begin = f"{subject.written(one.base, loop.node)} + {first} + {at}"
        limit = one.length or f"{begin} + {left}"
        given = f"({here}.at_{number}, {lane}, {one.root.name}, {begin}, {left}, {limit});"
        if one.read:
            took.append(f"tunesmith::move<false, {subject.hint(one.root)}>{given}")
        if one.written:
            gave.append(f"tunesmith::move<true, {subject.hint(one.root, stored=True)}>{given}")
        for access, distance in one.places.items():
            swaps.append(moved(subject, access, f"{here}.at_{number}.of({lane}, {column} + {distance})"))
    least = loop.bound - subject.facts.form(bound)
    begins: list[str | Span] = [
        f"\n#if {name} > 0\n{{\nconst {kind} {first} = ",
        span(loop.first_node),
        f";\nconst {wide} {length} = ({wide})(",
        span(bound),
        f") + {least.constant} - {first};\nconst int {lane} = {thread} % {WARP};\n",
        f"auto& {here} = {tiles.format(f'{thread} / {WARP}')};\n"
        f"for ({wide} {at} = 0; __any_sync(0xffffffffu, {at} < {length}); {at} += {name}) {{\n"
        f"const {wide} {left} = {length} - {at};\n__syncwarp();\n",
        "\n".join([*took, "__syncwarp();", "#ifdef TUNESMITH_UNROLL", "#pragma unroll TUNESMITH_UNROLL", "#endif"]),
        f"\nfor (int {column} = 0; {column} < ({left} < {name} ? (int){left} : {name}); ++{column}) {{\n"
        f"const {kind} {loop.variable.name} = {first} + ({kind})({at} + {column});\n",
    ]
    ends = "\n".join(["; }", "__syncwarp();", *gave, "}", "__syncwarp();", "}", "#else", ""])
    return replace(loop.node, *begins, span(loop.body, *swaps), ends, span(loop.node), "\n#endif\n")


RUNS = Pass("runs", _find, _through_tiles, after=("cache_hints",))
