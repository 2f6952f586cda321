"""What neighbouring threads of a stencil read alike is read once for the block, with the margin around it.

A block stages the part of the array that it needs in shared memory, each element with one access to global memory. An
access outside of the coordinates that the guard lets through goes to the array as before: what lies there is not known
to exist until the kernel itself reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, Plan, Refused, Subject, wrap
from tunesmith.kernels.rewrite.syntax import Symbol
from tunesmith.kernels.spec.template import Parameter

REACH = 16
"""Elements from its own that a thread may read at most."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """root: the array; pitch: what rows are apart; places: accesses, each by how far it is from the thread's own place."""

    root: Symbol
    pitch: Form
    places: list[tuple[Access, int, int]]


def _staged(subject: Subject) -> _Staged | Refused:
    without = "nothing is staged with a margin"
    if subject.unmovable or subject.axes not in (["x"], ["x", "y"]):
        return Refused(f"{without}: threads do not have one or two coordinates")
    if not subject.bounds or subject.launch.shared_bytes != "0":
        return Refused(f"{without}: there is no guard for each coordinate")
    best: _Staged | None = None
    for root in subject.facts.arrays:
        found = _around(subject, root)
        if found is not None and (best is None or _distances(found) > _distances(best)):
            best = found
    return best or Refused(f"{without}: no array is read at fixed distances from a thread's own place")


def _distances(found: _Staged) -> int:
    return len({place[1:] for place in found.places})


def _around(subject: Subject, root: Symbol) -> _Staged | None:
    facts, places = subject.facts, list[tuple[Access, int, int]]()
    own = facts.of(root)
    if not own or facts.is_written(root) or root in facts.escaping or not subject.dtype(root):
        return None
    several = "y" in subject.axes
    pitch = own[0].index.times("@y") if several else Form()
    if several and (pitch.constant is not None or facts.reach(pitch) > 0 or len(pitch.terms) != 1):
        return None
    for one in own:
        rest, index = one.index.without("@x", "@y"), one.index
        if one.node.what != "index" or one.node.fixed or index.times("@x") != ONE or index.times("@y") != pitch:
            return None
        x = dict(rest.terms).get((), 0)
        rows = range(-REACH, REACH + 1) if several else (0,)
        y = next((k for k in rows if rest - Form.number(x) == pitch * Form.number(k)), None)
        if y is None or abs(x) > REACH:
            return None
        places.append((one, x, y))
    found = _Staged(root, pitch, places)
    if _distances(found) < 2:
        return None
    # Every element below the bounds exists: its own thread reads it, or that of a later one, or the task says so.
    exists = any(x == y == 0 and facts.certain(one.node, subject.bounds, REACH) for one, x, y in places)
    names = [facts.atoms[atom].symbol for bound in subject.bounds.values() for atom in bound.atoms]
    factors = sorted(re.split(r"\s*\*\s*", subject.lengths.get(root.name, "")))
    whole = all(bound == Form.atom(next(iter(bound.atoms), "")) for bound in subject.bounds.values())
    said = whole and factors == sorted(one.name for one in names if one is not None)
    return found if exists or said else None


def _halo(subject: Subject, found: _Staged, plan: Plan) -> Change | Refused:
    root, several = found.root, "y" in subject.axes
    bounds = {axis: plan.written(bound) for axis, bound in subject.bounds.items()}
    pitch = plan.written(found.pitch) if several else "0"
    if None in bounds.values() or pitch is None:
        return Refused("nothing is staged with a margin: the guard's bounds are not known ahead of it")
    low = {axis: min(place[at] for place in found.places) for at, axis in ((1, "x"), (2, "y"))}
    wide = {axis: max(place[at] for place in found.places) - low[axis] for at, axis in ((1, "x"), (2, "y"))}
    name, macro, staged = subject.name("HALO"), subject.name("HALO_AT"), subject.name("staged")
    x, y, width = subject.name("halo_x"), subject.name("halo_y"), subject.name("halo_pitch")
    across, down = plan.builtin("blockDim.x"), plan.builtin("blockDim.y")
    opens = f"""#if {name}
extern __shared__ {root.element} {staged}[];
const int {width} = (int){across} + {wide["x"]};
const long long {x} = {plan.at["x"]}, {y} = {plan.at["y"] if several else "0"};
tunesmith::surround<{plan.hint(root)}>({staged}, {root.name}, {width}, {f"(int){down} + {wide['y']}" if several else "1"},
    {x} - threadIdx.x + {low["x"]}, {y} - threadIdx.y + {low["y"]}, {bounds["x"]}, {bounds.get("y", "1")}, {pitch});
#endif"""
    tests = [f"{at} + (dx) >= 0 && {at} + (dx) < {bounds['x']}" for at in (x,)]
    tests += [f"{y} + (dy) >= 0 && {y} + (dy) < {bounds['y']}"] if several else []
    rows = f"((int)threadIdx.y + (dy) - {low['y']}) * {width} + " if several else ""
    place = f"{rows}(int)threadIdx.x + (dx) - {low['x']}".replace("- -", "+ ")
    header = f"""#if {name}
#define {macro}(dx, dy, ...) ({" && ".join(tests)} ? {staged}[{place}] : (__VA_ARGS__))
#else
#define {macro}(dx, dy, ...) (__VA_ARGS__)
#endif"""
    area = " * ".join(f"({plan.block(axis)} + {wide[axis]})" for axis in subject.axes)
    return Change(
        parameters=(
            Parameter(name=name, values=(False, True), doc=f"whether a block stages what it reads of {root.name}"),
        ),
        edits=tuple(wrap(one.node, f"{macro}({dx}, {dy}, ", ")") for one, dx, dy in found.places),
        layers=(Layer(name, opens, ""),),
        header=header,
        kit=("halo",),
        shared=f"({area} * sizeof({subject.dtype(root)}) if {name} else 0)",
    )


_ALONE = "What is staged is for one element of each thread."
HALO = Pass(
    "halo",
    _staged,
    _halo,
    excludes=dict.fromkeys(("work_per_thread", "vectors", "own_bins", "row_lanes"), _ALONE),
    after=("block_size", "cache_hints"),
)
