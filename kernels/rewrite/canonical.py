"""One spelling for what authors write in many, so that facts and passes meet it in one.

Owns the edits of a kernel's body after which it computes the same in the launch of its task: macros that have a
thread's number are expanded; axes that the launch does not have are numbers; a coordinate and the size of a grid are
computed from the extents of the launch, whatever number stands for these; loops that step by the block or the grid are
`for` loops with a variable of their own; an element that a thread adds up in memory is added up in a register.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from tunesmith.kernels.reader.parse import kind
from tunesmith.kernels.reader.syntax import BUILTINS, LOOPS, STATEMENTS, WORK_ITEM, Node, Symbol, Syntax
from tunesmith.kernels.rewrite.edits import Edit, Span, insert, rendered, replace
from tunesmith.kernels.rewrite.facts import AXES, Access, Facts, grid_size, may_end
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.spec.template import LaunchGeometry

_ROUNDS = 8
"""How often a spelling is looked for, as macros have macros in them."""
_EXPANDED = frozenset({*BUILTINS, *WORK_ITEM, "for", "return"})
_ITEM = {word: function for function, word in WORK_ITEM.items()}


def canonical(read: Callable[[str], Syntax], code: str, launch: LaunchGeometry) -> Facts:
    """Facts of a source in the spelling that the passes know. read: makes the syntax of a source; launch: the task's.
    Raises `SourceError`."""
    facts = Facts(read(code))
    for step in (_macros, _axes, _extents, _loops, _sums):
        for _ in range(_ROUNDS):
            edits = [] if facts.oddities else step(facts, launch)
            if not edits:
                break
            text = facts.syntax.code
            facts = Facts(read(rendered(text, Span(0, len(text)), edits)))
    return facts


# Macros.


def _macros(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """The outermost uses of macros, in the kernel's body, whose text has the number of a thread, the head of a loop or
    a return, each replaced as the preprocessor does it."""
    syntax, found, last, body = facts.syntax, list[Edit](), 0, facts.body
    uses = [one for one in syntax.macros if body.start <= one[0] and one[1] <= body.end]
    defined = {
        one.spelling: [token.spelling for token in one.get_tokens()][1:]
        for one in syntax.unit.tree.cursor.get_children()
        if uses and kind(one) == "MACRO_DEFINITION" and one.location.file is not None
    }
    telling = set(_EXPANDED)
    while more := {name for name, tokens in defined.items() if name not in telling and telling & set(tokens)}:
        telling |= more
    for start, end, use in uses:
        told = start >= last and use.spelling in telling & defined.keys()
        text = _expansion(use, syntax.code[start:end].decode(errors="replace")) if told else None
        if text is not None:
            found.append(Edit(start, end, (text,)))
            last = end
    return found


def _expansion(use: Any, written: str) -> str | None:
    """The text of a macro with the arguments of a use; None where that is more than to put them in."""
    name, *tokens = [one for one in use.referenced.get_tokens() if one.kind.name != "COMMENT"]
    given: dict[str, str] = {}
    if tokens and tokens[0].spelling == "(" and tokens[0].extent.start.offset == name.extent.end.offset:
        close = next(at for at, one in enumerate(tokens) if one.spelling == ")")
        names = [one.spelling for one in tokens[1:close] if one.spelling != ","]
        texts, tokens = _arguments(written), tokens[close + 1 :]
        if len(texts) != len(names) or "..." in names:
            return None
        given = dict(zip(names, texts, strict=True))
    if any(one.spelling in ("#", "##", "__VA_ARGS__") for one in tokens):
        return None
    parts, at = list[str](), None
    for one in tokens:
        parts += [" "] * (at is not None and at != one.extent.start.offset)
        parts.append(given.get(one.spelling, one.spelling))
        at = one.extent.end.offset
    return "".join(parts)


def _arguments(written: str) -> list[str]:
    """What stands between the parentheses of a macro's use, split at the commas that are in no further ones."""
    inside = written[written.index("(") + 1 : written.rindex(")")]
    parts, depth = [""], 0
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [one.strip() for one in parts] if inside.strip() else []


# Numbers of threads.


def _has(launch: LaunchGeometry, axis: str) -> bool:
    extents = ((*one, "1", "1")[AXES.index(axis)] for one in (launch.grid, launch.block))
    return axis == "x" or any(one.strip() != "1" for one in extents)


def _axes(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Numbers for the builtins of axes along which the launch has one thread."""
    one_thread = [one for one in facts.builtins() if not one.fixed and not _has(launch, one.op[-1])]
    number = "{}u" if facts.syntax.language == "cuda" else "(size_t){}"
    counts = ("blockDim", "gridDim", "gridSize")
    return [replace(one, number.format(int(one.op.startswith(counts)))) for one in one_thread]


def _extents(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Coordinates and the steps of loops by the extents of blocks, where these stand as numbers of the launch. Where
    threads work together, such a number may mean more than that."""
    found, last, known = list[Edit](), 0, _spellings(facts, launch)
    for node in facts.body.walk() if not facts.together else ():
        if node.start < last or node.fixed or node.type.what != "number":
            continue
        text = ""
        if node.what in ("binary", "call"):
            whats, form = {one.what for one in node.walk()}, _sum(facts, node)
            hidden = {"call", "builtin"} <= whats
            text = next((words for one, words, plain in known if one == form and (hidden or not plain)), "")
        elif node.what == "assign" and node.op == "+=" and (made := node.kids[0].symbol) is not None:
            extent, begins = launch.block[0], made.declared is not None and made.declared.kids
            if extent.isdigit() and begins and facts.form(made.declared.kids[-1]) == Form.atom("threadIdx.x"):
                node, by = node.kids[1], facts.form(node.kids[1])
                text = _word(facts, "blockDim.x") if by == Form.number(int(extent)) else ""
        if text:
            found.append(replace(node, f"(({node.type.spelling})({text}))"))
            last = node.end
    return found


def _spellings(facts: Facts, launch: LaunchGeometry) -> list[tuple[Form, str, bool]]:
    """What coordinates and the threads of a grid are, and how the passes know them; whether facts know them, too."""
    found = list[tuple[Form, str, bool]]()
    for axis, extent in zip(AXES, launch.block, strict=False):
        block, thread, width, grid = (f"{one}.{axis}" for one in ("blockIdx", "threadIdx", "blockDim", "gridDim"))
        at, size = f"{_word(facts, block)} * {_word(facts, width)}", f"{_word(facts, grid)} * {_word(facts, width)}"
        at += f" + {_word(facts, thread)}"
        found += [(Form.atom(f"@{axis}"), at, True), (grid_size(axis), size, True)]
        if extent.isdigit():
            number = Form.number(int(extent))
            found += [(Form.atom(block) * number + Form.atom(thread), at, False)]
            found += [(Form.atom(grid) * number, size, False)]
    return found


def _sum(facts: Facts, node: Node) -> Form:
    """What a number is, with `a | b` as a sum where `a` is a block's number times a power of two."""
    if node.op != "|":
        return facts.form(node)
    left, right = map(facts.form, node.kids)
    factor = left.terms[0][1] if len(left.terms) == 1 else 0
    return left + right if factor > 0 and factor & (factor - 1) == 0 else facts.form(node)


def _word(facts: Facts, builtin: str) -> str:
    word, axis = builtin.split(".")
    return builtin if facts.syntax.language == "cuda" else f"{_ITEM[word]}({AXES.index(axis)})"


# Loops.


def _loops(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Loops that step by the block or the grid from a variable's first value: as `for` loops whose variable is their
    own. One at a time, as they may be inside each other."""
    for loop in facts.body.walk():
        if loop.what == "while":
            test, body = loop.kids
            last = body.kids[-1] if body.what == "block" and body.kids else body
        elif loop.what == "for" and loop.kids[0].what == "nothing":
            _, test, last, body = loop.kids
        else:
            continue
        variable = _stepped(facts, loop, last)
        if variable is None or loop.fixed or last.fixed or test.what == "nothing":
            continue
        made = variable.declared
        assert made is not None
        begin = f"{variable.written} {variable.name} = {facts.text(made.kids[-1])}"
        code = facts.syntax.code
        if loop.what == "for":
            open_ = code.index(b"(", loop.start) + 1
            return [Edit(open_, code.index(b";", open_), (begin,))]
        if not any(one.what == "continue" for one in body.walk()):
            head = f"for ({begin}; {facts.text(test)}; {facts.text(last)}) "
            return [Edit(loop.start, body.start, (head,)), Edit(last.start, _end(facts, last), ())]
    return []


def _stepped(facts: Facts, loop: Node, step: Node) -> Symbol | None:
    """The variable that a loop alone changes, by the threads of a block or of a grid, and that nothing uses after it;
    None for another loop."""
    target = step.kids[0] if step.what == "assign" and step.op in ("+=", "=") else None
    variable = None if target is None or target.what != "name" else target.symbol
    made = None if variable is None else variable.declared
    if variable is None or made is None or not made.kids or facts.changed.get(variable) != [step]:
        return None
    value, by = step.kids[1], facts.form(step.kids[1])
    if step.op == "=":
        sides = value.kids if value.what == "binary" and value.op == "+" else []
        rest = [one for one in sides if one.symbol is not variable]
        by = facts.form(rest[0]) if len(sides) == 2 and len(rest) == 1 else Form()
    steps = [Form.atom("blockDim.x"), *map(grid_size, AXES)]
    here = made.parent is not None and made.parent.parent is loop.parent and made.what == "variable"
    here = here and not made.fixed and not made.kids[-1].fixed
    known = all(facts.is_known(one, loop) for one in facts.names_in(made.kids[-1]))
    after = any(one.start >= loop.end for one in facts.uses(variable))
    plain = variable.type.what == "number" and not variable.volatile and not variable.static and not made.type.reference
    return variable if by in steps and here and known and plain and not after else None


def _end(facts: Facts, statement: Node) -> int:
    """Where the text of a statement ends, with its semicolon."""
    code = facts.syntax.code
    closed = statement.what in STATEMENTS and code[statement.end - 1 : statement.end] in (b"}", b";")
    return statement.end if closed else code.index(b";", statement.end) + 1


# Sums.


def _sums(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Elements that loops of a thread add up in memory: in a register, until the last statement that touches them.
    Arrays of a task do not overlap, and nobody waits for the element where threads do not work together."""
    if facts.together or any(one.what in ("goto", "lambda") for one in facts.body.walk()):
        return []
    for block in (one for one in facts.body.walk() if one.what == "block"):
        for root in (one for one in facts.arrays if one not in facts.escaping):
            edits = _in_register(facts, block, root)
            if edits:
                return edits
    return []


def _in_register(facts: Facts, block: Node, root: Symbol) -> list[Edit]:
    """One element of an array in a register, from the first statement of a block that touches it as far as statements
    touch no other element."""
    by_statement = [(one, [access for access in facts.of(root) if one.holds(access.node)]) for one in block.kids]
    while by_statement and not by_statement[0][1]:
        del by_statement[0]
    index = by_statement[0][1][0].index if by_statement else Form()
    region = list(itertools.takewhile(lambda pair: all(one.index == index for one in pair[1]), by_statement))
    while region and not region[-1][1]:
        del region[-1]
    own = [access for _, those in region for access in those]
    if not any(one.what in LOOPS and any(access.written for access in those) for one, those in region):
        return []
    begin, at = region[0][0], own[0].node
    assigns = begin.what == "assign" and begin.kids[0] is at
    if not (assigns or _touches(facts, begin, own[0])) or any(one.startswith("?") for one in index.atoms):
        return []
    changed = {symbol for one, _ in region for symbol in facts.changed_in(one)} - {root}
    plain = all(one.node.what in ("index", "deref") and not one.node.fixed and not one.atomic for one in own)
    plain = plain and not any(one.node.parent is not None and one.node.parent.what == "address" for one in own)
    if not plain or facts.names_in(at) & changed or any(may_end(one, block) for one, _ in region):
        return []
    name = f"{root.name}_kept"
    while re.search(rf"\b{name}\b".encode(), facts.syntax.code):
        name += "_"
    declared, last = f"{root.element} {name}", _end(facts, begin)
    edits = [replace(one.node, name) for one in own[assigns:]]
    if not assigns:
        edits.append(insert(begin.start, f"{declared} = {facts.text(at)};\n"))
    elif begin.op == "=" and not any(begin.kids[1].holds(one.node) for one in own):
        edits.append(replace(at, declared))
    elif begin.op != "=" and (root.type.element or root.type).size >= 4:
        # As one value, so that it is all in a declaration.
        value = facts.syntax.code.index(begin.op.encode(), at.end) + len(begin.op)
        edits.append(Edit(at.start, value, (f"{declared} = {facts.text(at)} {begin.op[:-1]} (",)))
        edits.append(insert(last - 1, ")"))
    else:
        edits.append(replace(at, f"{declared} = {facts.text(at)}; {name}"))
    return [*edits, insert(_end(facts, region[-1][0]), f" {facts.text(at)} = {name};")]


def _touches(facts: Facts, node: Node, access: Access) -> bool:
    """Whether a loop touches an element for certain: it counts from a number to a size, which is none of 0."""
    loop, (tests, doubtful) = facts.loop(node), facts.conditions(access.node, node)
    if loop is None or loop.kind != "counting" or doubtful or any(not one.loop for one in tests):
        return False
    parameters = [facts.atoms[one].symbol for one in loop.bound.atoms if one in facts.atoms]
    alone = len(loop.bound.terms) == 1 and loop.bound.terms[0][1] > 0
    alone = alone and all(one in facts.parameters for one in parameters)
    return loop.first == Form() and (alone or (loop.bound.constant or 0) > 0)
