"""Away from the border a thread asks no longer whether its neighbours are inside: its body is compiled twice.

A stencil, a convolution or a pooling asks in each round of its loops whether a neighbour lies in the array, or moves it
there with min and max. One test ahead of the body, for the extremes of all rounds, answers for all of them where the
thread's element is not at the border. Which answer is the usual one is seen in the middle of the task's last workload.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import LAMBDA, Node
from tunesmith.kernels.rewrite.edits import Edit, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import Facts, Loop
from tunesmith.kernels.rewrite.forms import ONE, ZERO, Form
from tunesmith.kernels.rewrite.passes.record import ALONE, Change, Layer, Pass, Refused, Subject
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Workload

_ORDERED: Mapping[str, tuple[int, int, int]] = {"<": (-1, 1, 1), "<=": (-1, 1, 0), ">": (1, -1, 1), ">=": (1, -1, 0)}
"""Of a comparison of a and b: it holds where this many a, this many b, less this number, are not negative."""
_CHOSEN: Mapping[str, int] = {"max": 1, "min": -1}
"""Of functions of a and b: the first is the result where this many times a - b is not negative."""
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "/": lambda a, b: int(a / b),
    "%": operator.mod,
    ">>": operator.rshift,
    "&": operator.and_,
}
_WHY = "every element asks for its neighbours"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of a test, or of min or max, away from the border. edit: the source with it; needs: forms that are
    not negative there; value: of min or max, the result."""

    edit: Edit
    needs: tuple[Form, ...]
    value: Form = ZERO


def _answers(subject: Subject) -> list[_Answer] | Refused:
    facts, found, values = subject.facts, list[_Answer](), dict[str, Form]()
    if subject.work.kind != "cells":
        return Refused(f"{_WHY}: {subject.work.why or 'a block takes turns on its row'}")
    middle, counting = _middle(subject), {one.node: one for one in facts.loops if one.kind == "counting"}
    # A result of max is an operand of min in the same expression, which stands around it, or further down.
    for node in sorted(facts.body.walk(), key=lambda one: (one.end, -one.start)):
        loops = [counting[above] for above, part in node.above() if above in counting and above.kids[3] is part]
        chooses = node.what == "call" and node.op in _CHOSEN and len(node.kids) == 3
        if node.fixed or node.inside(LAMBDA) or not loops or not (chooses or node.op in _ORDERED) or middle is None:
            continue
        a, b = (_simple(facts.form(one), values) for one in node.kids[-2:])
        if (answer := _answer(subject, node, (a, b), loops, middle)) is not None:
            found.append(answer)
            values |= {atom: answer.value for atom in facts.form(node).atoms if chooses}
    return found or Refused(f"{_WHY}: no round of a loop asks whether a neighbour is inside")


def _simple(form: Form, values: Mapping[str, Form]) -> Form:
    """The form with results of min and max in their places."""
    for atom in values.keys() & form.atoms:
        form = form.replaced(atom, values[atom])
    return form


def _answer(
    subject: Subject, node: Node, operands: tuple[Form, Form], loops: list[Loop], middle: Mapping[str, int]
) -> _Answer | None:
    """The usual answer to a test, or result of min or max, in the rounds of the loops around it."""
    facts, (a, b), (left, right) = subject.facts, node.kids[-2:], operands
    if a.type.what != "number" or b.type.what != "number":
        return None
    if node.op in _CHOSEN:
        more = (left - right) * Form.number(_CHOSEN[node.op])
        answers = [(more, "CHOSEN", a, left), (-more, "CHOSEN", b, right)]
        if a.type.spelling != b.type.spelling:
            return None
    else:
        first, second, less = _ORDERED[node.op]
        holds = left * Form.number(first) + right * Form.number(second) - Form.number(less)
        answers = [(holds, "HOLDS", node, ZERO), (-holds - ONE, "FAILS", node, ZERO)]
    # Where the comparison is one of unsigned numbers, a negative one is large.
    unsigned = [] if max(a.type.least, b.type.least) < 0 else [left, right]
    for form, macro, text, value in answers:
        needs = [least for one in (form, *unsigned) for least in _least(facts, one, loops, middle)]
        numbers = [_value(facts, one, middle) for one in needs]
        known = all(subject.written(one) is not None for one in needs)
        if known and all(one is not None and one >= 0 for one in numbers) and any(map(facts.reach, needs)):
            name = subject.name(macro)
            if text is node:
                return _Answer(wrap(node, f"{name}(", ")"), tuple(needs))
            return _Answer(replace(node, f"{name}((", span(text), "), ", span(node), ")"), tuple(needs), value)
    return None


def _least(facts: Facts, form: Form, loops: list[Loop], middle: Mapping[str, int]) -> list[Form]:
    """Forms that are not negative where `form` is in no round of the loops, from the innermost on."""
    needs = list[Form]()
    for loop in loops:
        by = form.times(loop.atom)
        value = _value(facts, by, middle)
        if value is None:
            return [by]
        if by.terms:
            needs += [] if by.constant is not None else [by if value >= 0 else -by]
            form = form.replaced(loop.atom, loop.first if value >= 0 else loop.bound - ONE)
    return [one for one in (form, *needs) if one.constant is None or one.constant < 0]


def _middle(subject: Subject) -> Mapping[str, int] | None:
    """Numbers of the threads and blocks in the middle of the last workload that is tuned, and its sizes and scalars, by
    atom; None where the task does not tell them."""
    task, facts = subject.task, subject.facts
    workload = [one for one in task.workloads if not one.held_out][-1]
    found = dict[str, int]()
    for axis, extent in zip("xyz", (*subject.launch.block, "1", "1"), strict=False):
        blocks, threads = (parse(text).integer(workload.names) for text in (subject.grid(axis), extent))
        found |= {f"blockIdx.{axis}": blocks // 2, f"threadIdx.{axis}": threads // 2, f"@{axis}": blocks * threads // 2}
        found |= {f"blockDim.{axis}": threads, f"gridDim.{axis}": blocks}
    return found | _scalars(subject, workload) if len(task.arguments) == len(facts.parameters) else None


def _scalars(subject: Subject, workload: Workload) -> dict[str, int]:
    pairs = zip(subject.task.arguments, subject.facts.parameters, strict=True)
    named = {parameter: argument for argument, parameter in pairs if argument.role == "scalar"}
    atoms = {name: one.symbol for name, one in subject.facts.atoms.items() if one.symbol in named and not one.op}
    return {name: int(subject.task.scalar_of(named[symbol], workload)) for name, symbol in atoms.items()}


def _value(facts: Facts, form: Form, known: Mapping[str, int]) -> int | None:
    """The number that a form is with the known atoms; None where it has others, such as an element of an array, which
    may not be read ahead of the kernel's guard."""
    total = 0
    for atoms, factor in form.terms:
        for atom in atoms:
            value = known.get(atom)
            if value is None and (found := facts.atoms.get(atom)) is not None and found.op in _OPERATIONS:
                parts = [part for one in found.parts if (part := _value(facts, one, known)) is not None]
                value = _OPERATIONS[found.op](*parts) if len(parts) == 2 and parts[1] else None
            if value is None:
                return None
            factor *= value
        total += factor
    return total


def _change(subject: Subject, answers: list[_Answer]) -> Change:
    name, body, inside = (subject.name(one) for one in ("INTERIOR", "body", "is_interior"))
    needs = dict.fromkeys(subject.written(form) for one in answers for form in one.needs)
    # A coordinate without a sign would take it from the whole sum.
    test = " && ".join(f"({subject.wide})({one}) >= 0" for one in needs)
    opens = f"""#if {name} > 0
const auto {body} = [&](auto {inside}_kind) {{
constexpr bool {inside} = decltype({inside}_kind)::value;
#endif"""
    closes = f"""#if {name} > 0
}};
if ({test}) {body}(tunesmith::Is<true>()); else {body}(tunesmith::Is<false>());
#endif"""
    made = Change(kit=("interior",), edits=[one.edit for one in answers])
    made.layers.append(Layer(f"{name} > 0", opens, closes))
    macros = {
        f"{subject.name('HOLDS')}(...)": (f"({inside} || (__VA_ARGS__))", "(__VA_ARGS__)"),
        f"{subject.name('FAILS')}(...)": (f"(!{inside} && (__VA_ARGS__))", "(__VA_ARGS__)"),
        f"{subject.name('CHOSEN')}(chosen, ...)": (f"({inside} ? chosen : (__VA_ARGS__))", "(__VA_ARGS__)"),
    }
    made.header.append(switched(f"{name} > 0", macros))
    made.parameter(name, (0, 1), "whether the body is compiled once more, without tests, for elements off the border")
    return made


INTERIOR = Pass(
    "interior",
    _answers,
    _change,
    excludes=dict.fromkeys(("output_tiles", "column_lanes", "permuted_tiles", "row_lanes", "runs"), ALONE),
    after=("block_size", "own_bins", "walk", "vectors", "work_per_thread"),
)
