"""A thread goes on from step to step along an axis and keeps what it has read: a sliding window in registers.

Where neighbours along an axis read the same elements, as in a causal convolution or from row to row of a stencil, one
thread takes several neighbours, one after the other: each asks for the elements that are new, and the others move on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import AXES, Facts
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.passes.halo import Box, Place, place_of
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Layer, Pass, Plan, Refused, Subject, replace, span
from tunesmith.kernels.rewrite.sharing import Cells
from tunesmith.kernels.spec.template import Constraint, Parameter

REGISTERS = 32
"""Elements that a thread keeps at most."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """axis: along which threads go on; whole_blocks: its steps are the grid's blocks; windows: what is kept."""

    axis: str
    whole_blocks: bool
    windows: list[Box]


def _walk(subject: Subject) -> _Walk | Refused:
    facts, without = subject.facts, "no thread keeps a window"
    if subject.unmovable or not isinstance(subject.work, Cells):
        return Refused(f"{without}: {subject.unmovable or 'its threads work together'}")
    strided, best, why = (
        {one.name for one in subject.work.axes if one.strided},
        None,
        "neighbours along an axis read nothing alike",
    )
    for axis in AXES:
        asks = [one for one in facts.builtins() if one.op in (f"blockIdx.{axis}", f"gridDim.{axis}")]
        blocks = axis not in subject.axes
        odd = [one for one in asks if one.fixed or not facts.body.holds(one) or one.op.startswith("gridDim")]
        if axis in strided or (blocks and (not asks or odd)):
            continue
        windows, kept = list[Box](), 0
        found = [one for root in facts.arrays for one in _windows(subject, root, axis, blocks)]
        for one in sorted(found, key=_saved, reverse=True):
            if subject.in_kernel(subject.lengths.get(one.root.name, "")) is None:
                why = f"the kernel does not know how long {one.root.name} is"
            elif kept + _size(one) <= REGISTERS and not any(one.places[0] in other.places for other in windows):
                windows.append(one)
                kept += _size(one)
        if windows and (best is None or sum(map(_saved, windows)) > sum(map(_saved, best.windows))):
            best = _Walk(axis, blocks, windows)
    return best or Refused(f"{without}: {why}")


def _size(window: Box) -> int:
    (_, wide), (_, high) = window.reach(0), window.reach(1)
    return REGISTERS + 1 if wide is None or high is None else (wide + 1) * (high + 1)


def _saved(window: Box) -> int:
    """Elements that a step need not read again."""
    (_, wide), (_, high) = window.reach(0), window.reach(1)
    return 0 if wide is None or high is None else (wide + 1) * high


def _windows(subject: Subject, root: object, axis: str, blocks: bool) -> list[Box]:
    facts, step, groups = (
        subject.facts,
        f"blockIdx.{axis}" if blocks else f"@{axis}",
        dict[tuple[Form, Form], list[Place]](),
    )
    if root not in facts.arrays or facts.is_written(root) or root in facts.escaping or not subject.dtype(root):
        return []
    for access in facts.of(root):
        apart, rest = access.index.times(step), access.index.without(step)
        if access.node.fixed or not apart.terms or facts.reach(apart) > 0 or _depends(facts, rest + apart, step):
            continue
        found = place_of(subject, access, rest, apart)
        if found is not None and None not in (Plan(subject).written(found[1]), Plan(subject).written(apart)):
            groups.setdefault((apart, found[1]), []).append(found[0])
    boxes = [Box(root, "", "", apart, base, tuple(places)) for (apart, base), places in groups.items()]
    return [one for one in boxes if _saved(one) > 0 and _size(one) <= REGISTERS]


def _depends(facts: Facts, form: Form, atom: str) -> bool:
    """Whether a form changes with an atom, also inside of operations."""
    names = {atom, f"threadIdx.{atom[-1]}", f"blockIdx.{atom[-1]}", f"@{atom[-1]}"}
    inner = (part for one in form.atoms if one in facts.atoms for part in facts.atoms[one].parts)
    return bool(names & form.atoms) or any(_depends(facts, one, atom) for one in inner)


def _change(subject: Subject, found: _Walk, plan: Plan) -> Change:
    name, axis, facts = subject.name("WALK"), found.axis, subject.facts
    step, walked, macro = subject.name("walk"), subject.name(f"walk_{axis}"), subject.name(f"WALK_{axis.upper()}")
    edits, header, begins, slides = list[Edit](), [f"#if {name} > 1"], list[str](), list[str]()
    places, constraints, grid = list[str](), list[Constraint](), dict[str, str]()
    for number, window in enumerate(found.windows):
        (left, wide), (top, high) = window.reach(0), window.reach(1)
        own, at = subject.name(f"window_{number}"), subject.name(f"WINDOW_{number}")
        begins.append(f"{window.root.element} {own}[{(wide or 0) + 1}][{(high or 0) + 1}];")
        begin = plan.written(window.base + Form.number(left) + window.apart * Form.number(top))
        apart, length = plan.written(window.apart), subject.in_kernel(subject.lengths[window.root.name])
        slides.append(
            f"TUNESMITH_SLIDE({subject.wide}, {own}, {(wide or 0) + 1}, {(high or 0) + 1}, {step} == 0, "
            f"{window.root.name}, {length}, {begin} + ({apart}) * ({subject.wide}){walked}, {apart});"
        )
        header.append(f"#define {at}(column, row, ...) {own}[column][row]")
        places.append(f"#define {at}(column, row, ...) (__VA_ARGS__)")
        for one in window.places:
            where = f"{one.column - left} + {one.rounds[0]}, {one.row - top} + {one.rounds[1]}"
            edits.append(
                Edit(one.access.node.start, one.access.node.end, (f"{at}({where}, ", span(one.access.node), ")"))
            )
    here = plan.builtin(f"blockIdx.{axis}") if found.whole_blocks else plan.at[axis]
    stops = ""
    if found.whole_blocks:
        header.append(f"#define {macro} {walked}")
        places.append(f"#define {macro} {here}")
        edits += [replace(one, macro) for one in facts.builtins() if one.op == f"blockIdx.{axis}"]
        count, known = subject.grid(axis), subject.in_kernel(subject.grid(axis))
        grid[axis], stops = f"ceil_div({count}, {name})", f"if ({walked} >= {known}) break;\n"
        if known is None:
            stops, because = "", "The kernel does not know how many steps there are."
            constraints.append(Constraint(expression=f"({count}) % {name} == 0", because=because))
    lines = [
        f"#if {name} > 1",
        *begins,
        "#endif",
        '_Pragma("unroll")',
        f"for (int {step} = 0; {step} < {name}; ++{step}) {{",
    ]
    lines += [
        f"const {subject.index_type} {walked} = {here} * {name} + {step};\n{stops}#if {name} > 1",
        *slides,
        "#endif",
    ]
    parameter = Parameter(
        name=name, values=(1, 2, 4, 8, 16), doc=f"steps along {axis} that a thread takes, whose reads overlap"
    )
    exact = isinstance(subject.work, Cells) and any(one.name == axis and not one.guarded for one in subject.work.axes)
    layer = Layer(f"{name} > 1", "\n".join(lines), "}", "" if found.whole_blocks else axis, walked, loops=True)
    return Change(
        parameters=(parameter,),
        edits=tuple(edits),
        layers=(layer,),
        header="\n".join([*header, "#else", *places, "#endif"]),
        kit=("slide",),
        constraints=tuple(constraints),
        grid=grid,
        share={} if found.whole_blocks else {axis: name},
        exact=(axis,) if exact else (),
    )


_ALONE = "A thread that goes on keeps what one element needs."
WALK = Pass(
    "walk",
    _walk,
    _change,
    excludes=dict.fromkeys(("work_per_thread", "vectors", "row_lanes", "output_tiles", "halo"), _ALONE),
    after=("block_size", "work_per_thread", "halo", "own_bins"),
    languages=("cuda", "opencl"),
)
