"""Tiles of a transpose in shared memory.

What is read along one dimension and written along another goes through a tile, so that reads and writes both follow the
rows in memory (CUDA C++ Best Practices Guide, "Shared Memory in Matrix Transpose").
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import Node
from tunesmith.kernels.rewrite.edits import Edit, Span, replace
from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.forms import ONE
from tunesmith.kernels.rewrite.passes.record import Change, Pass, Plan, Refused, Subject
from tunesmith.kernels.rewrite.passes.vectors import assignment, value_of
from tunesmith.kernels.spec.template import LaunchGeometry, Parameter

ROWS = 8
"""Rows of threads of a block; each goes over several rows of the tile."""
ALONE = "A tile has a launch of its own."


def _untiled(subject: Subject) -> str:
    """Why blocks cannot have tiles of the results, as a clause; empty where they can."""
    if subject.axes != ["x", "y"]:
        return "threads do not have two coordinates"
    if set(subject.bounds) != {"x", "y"}:
        return "there is no guard for each coordinate"
    return subject.unmovable or ("the kernel has launch bounds of its own" if subject.facts.launch_bounds else "")


def _turned(subject: Subject) -> tuple[Access, Access, Node] | Refused:
    """The element that is read, the one that is written, and the assignment that does."""
    facts = subject.facts
    if why := _untiled(subject):
        return Refused(f"it is no transpose: {why}")
    shared = [one for one in facts.accesses if one.root in facts.arrays]
    loads, stores = [one for one in shared if one.read], [one for one in shared if one.written]
    if len(loads) != 1 or len(stores) != 1 or loads[0].root is stores[0].root or facts.escaping or len(shared) != 2:
        return Refused("it is no transpose: it does more than to read one element and to write one")
    load, store, assign = loads[0], stores[0], assignment(stores[0])
    apart = (load.index.times("@x"), store.index.times("@y")) == (ONE, ONE)
    if not apart or "@y" not in load.index.atoms or "@x" not in store.index.atoms or store.index.times("@x") == ONE:
        return Refused("it is no transpose: what it reads and writes is not along x and along y")
    if assign is None or not assign.kids[1].holds(load.node) or load.node.fixed or load.node.what != "index":
        return Refused("it is no transpose: what it writes is not computed from what it reads in one assignment")
    others = [one for one in assign.kids[1].walk() if not load.node.holds(one)]
    known = all(
        one.symbol is None or one.symbol.what == "function" or facts.is_known(one.symbol, None) for one in others
    )
    certain = all(facts.certain(one.node, subject.bounds) for one in (load, store))
    if not known or not certain or any(one.what == "builtin" for one in others):
        return Refused("it is no transpose: what it writes depends on more than what it reads")
    if not subject.dtype(load.root):
        return Refused(f"the transpose stays: the size of `{load.root.element}` is not known")
    return load, store, assign


def _tile(subject: Subject, found: tuple[Access, Access, Node], plan: Plan) -> Change | Refused:
    load, store, assign = found
    name, tile, x, y, value = (subject.name(one) for one in ("TILE", "tile", "tile_x", "tile_y", "element_of_tile"))
    given = {"@x": x, "@y": y}
    places = [plan.written(form, None, given) for form in (load.index, store.index)]
    bounds = [plan.written(subject.bounds[axis]) for axis in "xy"]
    if None in places or None in bounds:
        return Refused("the transpose stays: its indices are not known ahead of its guard")
    source, target = load.root, store.root
    hints = plan.hint(source), plan.hint(target, stored=True)
    before = f"""
#if {name} > 0
__shared__ {source.element} {tile}[{name}][{name} + 1];
tunesmith::transpose<{name}, {ROWS}>({tile}, {bounds[0]}, {bounds[1]},
    [&](long long {x}, long long {y}) {{ return tunesmith::load<{hints[0]}>(&{source.name}[{places[0]}]); }},
    [&](long long {x}, long long {y}, const {source.element}& {value}) {{
        tunesmith::store<{hints[1]}>(&{target.name}[{places[1]}], """
    inner = value_of(subject, assign)
    copied = Span(inner.start, inner.end, (replace(load.node, value),))
    body = Span(subject.facts.body.start + 1, subject.facts.body.end - 1)
    edit = Edit(body.start, body.end, (before, copied, ");\n    });\n#else\n", body, "\n#endif\n"))
    launch = LaunchGeometry(
        grid=(*(f"ceil_div({subject.threads(axis)}, max({name}, 1))" for axis in "xy"), subject.grid("z")),
        block=(name, f"{ROWS}", "1"),
    )
    parameter = Parameter(name=name, values=(0, 16, 32, 64), doc="side of a tile turned in shared memory; 0: none")
    return Change(
        parameters=(parameter,),
        edits=(edit,),
        kit=("transposed", "hints"),
        static_shared=f"{name} * ({name} + 1) * sizeof({subject.dtype(source)})",
        instead=(name, launch),
    )


TRANSPOSED_TILES = Pass(
    "transposed_tiles",
    _turned,
    _tile,
    excludes=dict.fromkeys(("block_size", "work_per_thread", "launch_bounds", "vectors"), ALONE),
    after=("cache_hints",),
)
