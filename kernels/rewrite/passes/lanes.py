"""The loops of a thread over its row become loops of several lanes, which read neighbours and then combine their sums.

Where one thread goes over a whole row, as in a plain product of a matrix and a vector, the threads of a warp read from
as many rows at a time. Here lanes of one warp share a row: they take turns on each loop, and combine what it sums up,
or its largest or smallest, by shuffles, so that all of them have the result (CUDA C++ Programming Guide, "Warp Shuffle
Functions"). What is written outside the loops is written by the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import LOOPS, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, span, switched, wrap
from tunesmith.kernels.rewrite.facts import ENDS, Access, Loop
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.rounds import Carried
from tunesmith.kernels.rewrite.sharing import statements
from tunesmith.kernels.spec.template import Constraint, LaunchGeometry, Parameter

_WHY = "lanes do not share a row"


@dataclass(frozen=True, slots=True)
class _Lanes:
    """sums: by loop that lanes can share, how two values of a variable are combined: "+" or a function; alone: the
    statements that only the first lane carries out."""

    sums: dict[Loop, dict[Symbol, str]]
    alone: list[Node]


def _lanes(subject: Subject) -> _Lanes | Refused:
    facts = subject.facts
    if subject.axes != ["x"] or subject.unmovable:
        return Refused(f"{_WHY}: threads do not have one coordinate")
    if not subject.bounds:
        return Refused(f"{_WHY}: there is no guard for the coordinate of a thread")
    if len(subject.returns) > 1 or facts.escaping:
        return Refused(f"{_WHY}: it returns early, or gives its arrays to functions")
    if outer := sorted(one.name for one in facts.changed if one.what == "global"):
        return Refused(f"{_WHY}: it changes {outer[0]}, which all blocks have")
    found = _Lanes({}, [])
    for one in statements(facts, subject.bounds):
        inside = facts.inside(one)
        if one.what == "for":
            loop = facts.loop(one)
            sums = "a loop does not count one by one" if loop is None else _sums(subject, loop)
            if isinstance(sums, str) or loop is None:
                return Refused(f"{_WHY}: {sums}")
            found.sums[loop] = sums
        elif any(access.written and access.root in facts.arrays for access in inside):
            if facts.changed_in(one) - set(facts.arrays) or any(x.what in LOOPS | {"declaration"} for x in one.walk()):
                return Refused(f"{_WHY}: `{facts.text(one)[:60]}` writes in a way that other lanes need")
            found.alone.append(one)
        elif any(inner.what in LOOPS for inner in one.walk()):
            return Refused(f"{_WHY}: its loops do not stand by themselves")
    why = _apart(subject, found)
    return Refused(f"{_WHY}: {why}") if why else found


def _apart(subject: Subject, found: _Lanes) -> str:
    """Why lanes would need what others write, as a clause; empty where they do not."""
    facts = subject.facts

    def home(access: Access) -> Loop | None:
        return next((one for one in found.sums if one.node.holds(access.node)), None)

    written = {one.root for one in facts.accesses if one.written and one.root in facts.arrays}
    writing = [one for access in facts.accesses if access.root in written and (one := home(access)) is not None]
    if len({(one.first, one.bound) for one in writing}) > 1:
        return "its loops write different parts of a row"
    for root in sorted(written, key=lambda one: one.name):
        own = facts.of(root)
        homes = [home(one) for one in own]
        if all(one is None for one in homes):
            place = next((one for one in found.alone if one.holds(own[0].node)), None)
            if place is None or not all(place.holds(one.node) for one in own):
                return f"{root.name} is written outside of the loops, and read at other places"
            continue
        places = {
            one.index.replaced(there.atom, Form.atom("k")) for one, there in zip(own, homes, strict=True) if there
        }
        if None in homes or len(places) != 1:
            return f"{root.name} is written, and used at other places"
        if any(one.index.times(there.atom) != ONE for one, there in zip(own, homes, strict=True) if there):
            return f"{root.name} is written at places that are no neighbours"
    reads = [(one, there) for one in facts.accesses if one.read and (there := home(one)) is not None]
    near = any(one.index.times(there.atom) == ONE for one, there in reads if one.root in facts.arrays)
    return "" if near else "there is no loop that reads neighbours"


def _sums(subject: Subject, loop: Loop) -> dict[Symbol, str] | str:
    """How the parts that lanes have of a loop's sums are combined, or why lanes cannot share it, as a clause."""
    facts, node = subject.facts, loop.node
    if loop.kind != "counting" or node.fixed or node.kids[2].fixed or loop.first_node.fixed:
        return "a loop does not count one by one"
    body, inside = loop.body, facts.inside(loop.body)
    if any(one.what in ENDS - {"continue"} for one in body.walk()):
        return "a loop may end early"
    if any(one.atomic for one in inside):
        return "a loop has atomic operations"
    carried = Carried(facts, node, facts.body)
    sums = dict[Symbol, str]()
    for symbol in carried.states:
        how, kind = carried.combined(symbol), symbol.type
        if not how or kind.what not in ("number", "float") or kind.size not in (4, 8) or symbol.type.reference:
            return f"a loop changes {symbol.name} in a way that depends on the order of its rounds"
        sums[symbol] = how
    if facts.names_in(node.kids[1]) & (set(sums) | facts.declared_in(body)) or loop.variable in facts.changed_in(body):
        return "a loop changes its own length"
    for one in body.walk():
        if one.what == "name" and one.symbol in sums and not carried.fits(one):
            return f"a loop uses {one.op} before it is complete"
    own = facts.declared_in(body)
    if any(one.written and one.root not in facts.arrays and one.root not in own for one in inside):
        return "a loop writes an array of its own"
    return sums


def _share(subject: Subject, found: _Lanes, plan: Plan) -> Change:
    name, lane, mask, at = (subject.name(one) for one in ("LANES", "lane", "mask", "row_at"))
    edits = list[Edit]()
    macros = {one: subject.name(f"LANE_{one}") for one in ("FIRST", "NEXT", "BEGIN", "JOIN", "ALONE")}
    for loop, sums in found.sums.items():
        node = loop.node
        edits.append(wrap(loop.first_node, "((", f") {macros['FIRST']})"))
        edits.append(wrap(node.kids[2], f"{macros['NEXT']}({loop.variable.name}, ", ")"))
        begin = "".join(f"{macros['BEGIN']}({symbol.name}) " for symbol, how in sums.items() if how == "+")
        ends = [
            f" {macros['JOIN']}({symbol.name}, {'a + b' if how == '+' else f'{how}(a, b)'})"
            for symbol, how in sums.items()
        ]
        last = node.end if loop.body.what == "block" else subject.facts.syntax.code.index(b";", node.end) + 1
        edits.append(Edit(node.start, last, ("{ ", begin, span(node), *(";" * (last > node.end)), *ends, " }")))
    edits += [wrap(one, f"{macros['ALONE']} ", "") for one in found.alone]
    join = "[](decltype(sum) a, decltype(sum) b) { return __VA_ARGS__; }"
    joined = f"tunesmith::joined<{name}>({mask}, sum, {join})"
    header = {
        macros["FIRST"]: (f"+ {lane}", ""),
        f"{macros['NEXT']}(variable, ...)": (f"variable += {name}", "__VA_ARGS__"),
        f"{macros['BEGIN']}(sum)": (f"if ({lane} > 0) sum = 0;", ""),
        f"{macros['JOIN']}(sum, ...)": (f"sum = {joined};", ""),
        macros["ALONE"]: (f"if ({lane} == 0)", ""),
    }
    opens = f"""const {subject.index_type} {at} = {plan.at("x")} / ({name} > 0 ? {name} : 1);
#if {name} > 0
const int {lane} = threadIdx.x % {name};
const unsigned int {mask} = (0xffffffffu >> (32 - {name})) << (threadIdx.x % 32 / {name} * {name});
#endif"""
    block = plan.block("x")
    launch = LaunchGeometry(
        grid=(f"ceil_div({subject.threads('x')} * max({name}, 1), {block})", subject.grid("y"), subject.grid("z")),
        block=(block, "1", "1"),
    )
    because = "A row has all of its lanes in one block."
    return Change(
        parameters=(
            Parameter(name=name, values=(0, 2, 4, 8, 16, 32), doc="lanes that share the loops of a row; 0: none"),
        ),
        edits=tuple(edits),
        layers=(Layer(f"{name} > 0", opens, "", "x", at),),
        header=switched(f"{name} > 0", header),
        kit=("lanes",),
        constraints=(Constraint(expression=f"{name} == 0 or {block} % {name} == 0", because=because),),
        instead=(name, launch),
    )


ROW_LANES = Pass(
    "row_lanes",
    _lanes,
    _share,
    excludes=dict.fromkeys(("work_per_thread", "own_bins", "vectors"), "Lanes that share a row share one row."),
    after=("block_size", "work_per_thread", "cache_hints"),
)
