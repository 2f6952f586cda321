"""Specialisation: parameters that are whole numbers become constants where they have the values of the workloads.

A compiler unrolls a loop whose length it knows, keeps an array that the loop runs over in registers, and divides by a
constant without a division. All other values take the code as it came.
"""

from __future__ import annotations

import re

from tunesmith.kernels.reader.syntax import LOOPS, Node, Symbol
from tunesmith.kernels.rewrite.edits import Edit, Span
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Pass, Subject, require

SMALL = 64
"""Up to this value a parameter is a constant also where workloads differ in it, such as the width of a filter."""
SETS = 4
"""Sets of values that have code of their own at most."""
_Values = dict[Symbol, int]
_OF_LAUNCH = re.compile(r"@[xyz]|\w+\.[xyz]")
_DIVISIONS = frozenset({"/", "%", "/=", "%="})


def _values(subject: Subject) -> list[_Values]:
    """The sets of values of the parameters that become constants."""
    facts, task, found = subject.facts, subject.task, dict[Symbol, list[int]]()
    once = facts.jumps or any(one not in facts.parameters for one in facts.shared)
    twice = subject.backend != "opencl" or not once
    require(twice, "the code cannot be there twice, for its labels or its memory of a work-group")
    require(len(facts.parameters) == len(task.arguments), "the kernel's parameters are not the task's arguments")
    require(_has_need(facts), "each loop has a length, and each division a divisor, that the compiler knows")
    tuned = [one for one in task.workloads if not one.held_out]
    for argument, parameter in zip(task.arguments, facts.parameters, strict=True):
        whole = argument.role == "scalar" and parameter.type.what == "number" and not parameter.type.reference
        if not whole or parameter in facts.changed:
            continue
        values = [int(task.scalar_of(argument, one)) for one in tuned]
        if len(set(values)) == 1 or max(map(abs, values)) <= SMALL:
            found[parameter] = values
    sets = [dict(zip(found, values, strict=True)) for values in dict.fromkeys(zip(*found.values(), strict=True))]
    require(sets, "none is small, or the same in all workloads")
    require(len(sets) <= SETS, f"workloads have {len(sets)} sets of values, more than {SETS}")
    return sets


def _has_need(facts: Facts) -> bool:
    """Whether there is a loop within a thread, or a division, to which a constant may be of use."""
    apart = {one.node for one in facts.loops if one.kind in ("block", "grid")}
    for node in facts.syntax.everything():
        if node.what in LOOPS and node not in apart:
            test = node.kids[1] if node.what == "for" else node.kids[0]
            if test.what != "binary" or _is_open(facts, test.kids[1]):
                return True
        divides = node.what in ("binary", "assign") and node.op in _DIVISIONS and node.type.what == "number"
        if divides and _is_open(facts, node.kids[1]):
            return True
    return False


def _is_open(facts: Facts, node: Node) -> bool:
    """Whether a number is made of more than constants and the numbers of threads and blocks."""
    return not all(_OF_LAUNCH.fullmatch(one) for one in facts.form(node).atoms)


def _specialise(subject: Subject, sets: list[_Values]) -> Change:
    name, call, body = subject.name("SPECIALISED"), subject.name("specialised"), subject.inside
    kinds = [f"const {one.type.spelling.removeprefix('const ')} {one.name}" for one in sets[0]]
    tests = [" && ".join(f"{one.name} == {value}" for one, value in values.items()) for values in sets]
    parts: list[str | Span] = [f"\n#if {name} > 0\n"]
    if subject.backend == "cuda":
        parts += [f"const auto {call} = [&]({', '.join(kinds)}) __attribute__((always_inline)) {{\n#endif\n", body]
        parts.append(f"\n#if {name} > 0\n}};\n")
        for test, values in zip(tests, sets, strict=True):
            parts.append(f"if ({test}) {call}({', '.join(map(str, values.values()))}); else\n")
        parts.append(f"{call}({', '.join(one.name for one in sets[0])});\n#endif\n")
    else:
        for test, values in zip(tests, sets, strict=True):
            constants = (f"{kind} = {value};" for kind, value in zip(kinds, values.values(), strict=True))
            parts += [f"if ({test}) {{ {' '.join(constants)}\n", body, "} else\n"]
        parts += ["#endif\n{", body, "}\n"]
    made = Change(edits=[Edit(body.start, body.end, tuple(parts))])
    doc = (
        f"1: constants in code of its own, for their values in the workloads: {', '.join(one.name for one in sets[0])}"
    )
    made.parameter(name, (0, 1), doc)
    return made


CONSTANTS = Pass("constants", _values, _specialise, why="no parameter becomes a constant: ", languages=BOTH)
