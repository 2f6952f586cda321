"""A thread goes on from step to step along an axis and keeps what it has read: a sliding window in registers.

Where neighbours along an axis read the same elements, as in a causal convolution or from row to row of a stencil, one
thread takes several neighbours, one after the other: each asks for the elements that are new, and the others move on.
What is asked for is there as far as the array goes, whatever the kernel's guards are.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import Symbol
from tunesmith.kernels.rewrite.edits import replace, switched, wrap
from tunesmith.kernels.rewrite.facts import AXES, Access
from tunesmith.kernels.rewrite.forms import ONE, Form
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Layer, Pass, Subject, require, required

REGISTERS = 32
"""Elements that a thread keeps at most."""


_Place = tuple[Access, list[int], list[str], list[int]]
"""An access of a window, its row and its column, what loops add to both, in C, from 0, and the most that they add."""


@dataclass(frozen=True, slots=True)
class _Window:
    """apart: elements between rows, and from step to step; base: the element of step 0 in row 0 and column 0."""

    root: Symbol
    apart: Form
    base: Form
    places: tuple[_Place, ...]

    @property
    def least(self) -> list[int]:
        return [min(at[k] for _, at, _, _ in self.places) for k in (0, 1)]

    @property
    def size(self) -> list[int]:
        """Its rows and its columns."""
        last = [max(at[k] + most[k] for _, at, _, most in self.places) for k in (0, 1)]
        return [last[k] - self.least[k] + 1 for k in (0, 1)]

    @property
    def saved(self) -> int:
        """Elements that a step need not read again."""
        rows, columns = self.size
        return (rows - 1) * columns if rows * columns <= REGISTERS else 0


_Walk = tuple[str, list[_Window]]
"""The axis along which threads go on, and what they keep. Steps are blocks where threads have no coordinate there."""


def _walk(subject: Subject) -> _Walk:
    facts, best, why = subject.facts, list[_Walk](), "neighbours along an axis read nothing alike"
    require(subject.work.kind == "cells" and not subject.unmovable, subject.unmovable)
    for axis in (one for one in AXES if not any(own.strided and own.name == one for own in subject.work.axes)):
        blocks, kept = axis not in subject.axes, list[_Window]()
        asks = [one for one in facts.builtins() if one.op in (f"blockIdx.{axis}", f"gridDim.{axis}")]
        if blocks and any(one.fixed or not facts.body.holds(one) or one.op.startswith("gridDim") for one in asks):
            continue
        found = [
            one
            for root in facts.arrays
            for one in _windows(subject, root, f"blockIdx.{axis}" if blocks else f"@{axis}")
        ]
        for window in sorted(found, key=lambda one: -one.saved):
            registers = sum(one.size[0] * one.size[1] for one in (*kept, window))
            if subject.in_kernel(subject.lengths.get(window.root.name, "")) is None:
                why = f"the kernel does not know how long {window.root.name} is"
            elif registers <= REGISTERS and not any(window.places[0] in other.places for other in kept):
                kept.append(window)
        best += [(axis, kept)] if kept else []
    return required(max(best, key=lambda one: sum(each.saved for each in one[1]), default=None), why)


def _windows(subject: Subject, root: Symbol, step: str) -> list[_Window]:
    facts, groups = subject.facts, dict[tuple[Form, Form], list[_Place]]()
    along = {f"{word}{step[-1]}" for word in ("blockIdx.", "threadIdx.", "@")}
    for access in facts.of(root) if not facts.is_written(root) and subject.dtype(root) else []:
        apart, rest = access.index.times(step), access.index.without(step)
        if access.node.fixed or not apart.terms or facts.reach(apart) > 0 or along & facts.asked(rest + apart):
            continue
        found = _place(subject, access, rest, apart)
        if found is not None and subject.written(found[1]) is not None and subject.written(apart) is not None:
            groups.setdefault((apart, found[1]), []).append(found[0])
    windows = [_Window(root, apart, base, tuple(places)) for (apart, base), places in groups.items()]
    return [one for one in windows if one.saved > 0 and root not in facts.escaping]


def _place(subject: Subject, access: Access, rest: Form, apart: Form) -> tuple[_Place, Form] | None:
    """Where an access is in a window, and what is left of its index beside distances."""
    facts, rounds, most = subject.facts, ["0", "0"], [0, 0]
    for loop in (one for one in facts.loops if one.atom in rest.atoms):
        by, rest = rest.times(loop.atom), rest.without(loop.atom)
        which = 0 if by in (apart, -apart) else 1
        forwards, length = by == (ONE if which else apart), (loop.bound - loop.first - ONE).constant
        begin = loop.first if forwards else loop.bound - ONE
        first, name = subject.written(begin, loop.node), loop.variable.name
        counts = loop.kind == "counting" and loop.body.holds(access.node) and facts.reach(begin) == 0
        if first is None or length is None or not counts or by not in (apart, -apart, ONE, -ONE):
            return None
        rounds[which] += f" + ({name} - ({first}))" if forwards else f" + (({first}) - {name})"
        most[which], rest = most[which] + length, rest + by * begin
    (atoms, factor), terms = apart.terms[0], dict(rest.terms)
    row = round(terms.get(atoms, 0) / factor)
    rest -= apart * Form.number(row)
    column = dict(rest.terms).get((), 0)
    return (access, [row, column], rounds, most), rest - Form.number(column)


def _change(subject: Subject, found: _Walk) -> Change:
    name, (axis, windows), facts, lines = subject.name("WALK"), found, subject.facts, list[str]()
    blocks = axis not in subject.axes
    step, walked, macro = subject.name("walk"), subject.name(f"walk_{axis}"), subject.name(f"WALK_{axis.upper()}")
    here = subject.builtin(f"blockIdx.{axis}") if blocks else subject.at(axis)
    made, begins, macros = Change(kit=("slide",)), list[str](), dict[str, tuple[str, str]]()
    for number, window in enumerate(windows):
        (top, left), (rows, columns), root = window.least, window.size, window.root
        own, at = (subject.name(f"{one}_{number}") for one in ("window", "WINDOW"))
        apart = subject.written(window.apart)
        length = subject.in_kernel(subject.lengths[root.name])
        begin = subject.written(window.base + Form.number(left) + window.apart * Form.number(top))
        begins.append(f"{root.element} {own}[{columns}][{rows}];")
        lines.append(f"TUNESMITH_SLIDE({own}, {columns}, {rows}, {step} == 0, {root.name}, {length},")
        lines.append(f"    {begin} + ({apart}) * ({subject.wide}){walked}, {apart});")
        macros[f"{at}(row, column, ...)"] = f"{own}[column][row]", "(__VA_ARGS__)"
        for access, place, rounds, _ in window.places:
            row, column = (f"{place[k] - window.least[k]} + {rounds[k]}" for k in (0, 1))
            made.edits.append(wrap(access.node, f"{at}({row}, {column}, ", ")"))
    stops, count = "", subject.grid(axis)
    if blocks:
        macros[macro], made.writes[f"blockIdx.{axis}"] = (walked, here), macro
        made.edits += [replace(one, macro) for one in facts.builtins() if one.op == f"blockIdx.{axis}"]
        if (known := subject.in_kernel(count)) is not None:
            stops = f"if ({walked} >= {known}) break;\n"
        else:
            made.constraints[f"({count}) % {name} == 0"] = "The kernel does not know how many steps there are."
        made.grid[axis] = f"ceil_div({count}, {name})"
    else:
        made.share[axis] = name
    begins = [f"#if {name} > 1", *begins, "#endif", '_Pragma("unroll")']
    begins += [f"for (int {step} = 0; {step} < {name}; ++{step}) {{"]
    begins += [
        f"const {subject.index_type} {walked} = {here} * {name} + {step};\n{stops}#if {name} > 1",
        *lines,
        "#endif",
    ]
    made.parameter(name, (1, 2, 4, 8, 16), f"steps along {axis} that a thread takes, whose reads overlap")
    made.layers.append(Layer(f"{name} > 1", "\n".join(begins), "}", "" if blocks else axis, walked, loops=True))
    made.header.append(switched(f"{name} > 1", macros))
    return made


_ALONE = "A thread that goes on keeps what one element needs."
WALK = Pass(
    "walk",
    _walk,
    _change,
    why="no thread keeps a window: ",
    excludes=dict.fromkeys(("work_per_thread", "vectors", "row_lanes", "output_tiles"), _ALONE),
    after=("block_size", "work_per_thread", "own_bins"),
    languages=BOTH,
)
