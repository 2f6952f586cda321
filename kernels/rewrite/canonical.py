"""One spelling for what authors write in many, so that facts and passes meet it in one.

Owns the edits of a kernel's body after which it computes the same in the launch of its task: a function that a
kernel ends with stands in its place, as does what a function returns of an index or a load, macros with a thread's
number are expanded, two branches that give one thing a value are an assignment, a variable is declared where it gets
its first value, barriers between threads that share nothing are gone, axes that the launch does not have are numbers,
blocks of which only the number of a thread counts have one axis, coordinates are computed by the extents of blocks,
loops that step by these have a variable of their own, which counts from the beginning of a row, a pointer that advances
with a loop stays, with the distance in its place, a parameter that is moved once is a variable from there on, and what
a thread adds up in memory is added up in a register.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tunesmith.kernels.reader.parse import kind, split
from tunesmith.kernels.reader.syntax import BUILTINS, LOOPS, QUALIFIERS, WORK_ITEM, Kind, Node, Symbol, Syntax, builtin
from tunesmith.kernels.rewrite.edits import Edit, Span, insert, rendered, replace, span
from tunesmith.kernels.rewrite.facts import AXES, Access, Facts, Loop, grid_size, may_end, name_of
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.rounds import key
from tunesmith.kernels.spec.template import LaunchGeometry

_TELLING = frozenset({*BUILTINS, *WORK_ITEM, "for", "return"})
"""Words of the macros that are expanded."""
_OF_BLOCKS = frozenset({"blockIdx.", "gridDim."})


def canonical(
    read: Callable[[str], Syntax], code: str, launch: LaunchGeometry, values: Sequence[int | None] = ()
) -> tuple[Facts, LaunchGeometry]:
    """Facts of a source in the spelling that the passes know, and the launch of that. read: makes the syntax of a
    source; launch: the task's; values: the constant arguments', else None. Raises `SourceError`."""
    facts = Facts(read(code))
    extents = partial(_extents, values=values)
    words = (_called, _returned, _macros, _choices, _declarations, _barriers, _axes, _one_axis, extents)
    for step in (*words, _loops, _rows, _advances, _moved_parameters, _sums):
        # Several times, as macros have macros in them, and loops loops.
        for _ in range(8):
            edits = [] if facts.oddities else step(facts, launch)
            if not edits:
                break
            facts = Facts(read(rendered(facts.syntax.code, Span(0, len(facts.syntax.code)), edits)))
            if step is _one_axis:
                threads = str(math.prod(map(int, launch.block))) if all(map(str.isdigit, launch.block)) else ""
                block = threads or " * ".join(f"({one})" for one in launch.block)
                launch = launch.model_copy(update={"block": (block,)})
    return facts, launch


def _macros(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """The outermost uses, in the kernel's body, of macros with telling words, as the preprocessor replaces them."""
    syntax, found, last, body = facts.syntax, list[Edit](), 0, facts.body
    uses = [one for one in syntax.macros if body.start <= one[0] and one[1] <= body.end]
    defined = syntax.unit.macros("MACRO_DEFINITION") if uses else []
    words = {one.spelling: {token.spelling for token in one.get_tokens()} for one in defined}
    telling = set(_TELLING)
    while more := {name for name, those in words.items() if name not in telling and telling & those}:
        telling |= more
    for start, end, use in uses:
        wanted = start >= last and use.spelling in telling & words.keys()
        text = _expansion(use, syntax.code[start:end].decode(errors="replace")) if wanted else None
        if text is not None:
            found.append(Edit(start, end, (text,)))
            last = end
    return found


def _expansion(use: Any, written: str) -> str | None:
    """The text of a macro with the arguments of a use; None where that is more than to put them in."""
    name, *tokens = [one for one in use.referenced.get_tokens() if one.kind.name != "COMMENT"]
    given: dict[str, str] = {}
    if tokens and tokens[0].spelling == "(" and tokens[0].extent.start.offset == name.extent.end.offset:
        close = [one.spelling for one in tokens].index(")")
        names = [one.spelling for one in tokens[1:close:2]]
        texts, tokens = split(written[written.index("(") + 1 : -1], "(", ")") if names else [], tokens[close + 1 :]
        if len(texts) != len(names) or "//" in written:
            return None
        given = dict(zip(names, texts, strict=True))
    if {"#", "##", "__VA_ARGS__"} & {one.spelling for one in tokens}:
        return None
    apart = [one.extent.end.offset != other.extent.start.offset for one, other in itertools.pairwise(tokens)]
    parts = (given.get(one.spelling, one.spelling) for one in tokens)
    return "".join(" " * space + part for space, part in zip([False, *apart], parts, strict=False))


def _called(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """The body of a function in place of its call, where the kernel ends with that: sources with a kernel for each type
    are written so."""
    call = facts.body.kids[-1] if facts.body.kids else facts.body
    body = facts.function(call) if call.what == "call" and call.type.what == "void" and not call.fixed else None
    aliases = None if body is None else _template_arguments(facts, call)
    if body is None or aliases is None or len(call.symbol.arguments) != len(call.kids) - 1:
        return []
    if facts.syntax.unit.scope(call.cursor.referenced):  # whose other names it may use
        return []
    outside = {one.name for one in (*facts.parameters, *facts.declared_in(facts.body))}
    inside = {one.name for one in facts.declared_in(body)} | {name for name, _ in aliases}
    for argument, value in zip(call.symbol.arguments, call.kids[1:], strict=True):
        same = value.what == "name" and value.symbol.name == argument.name
        if value.what not in ("name", "literal") or value.fixed or (argument.name in outside and not same):
            return []
        if not same:
            aliases.append((argument.name, f"{argument.written} {argument.name} = {facts.text(value)};"))
        elif not value.type.like(argument.type) or argument.name in inside:
            return []
    names, lines = [name for name, _ in aliases], "\n".join(text for _, text in aliases)
    others = {one.op for one in body.walk() if one.what == "name"} - {one.name for one in call.symbol.arguments}
    if (inside | others) & outside or len(names) != len(set(names)) or call.op in others:
        return []
    return [Edit(call.start, facts.syntax.end(call), (f"{lines}\n", Span(body.start + 1, body.end - 1)))]


def _returned(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """The expression that a function returns in place of its call, where it is a whole number or comes through a
    pointer: passes look at indices and loads."""
    found, last = list[Edit](), 0
    for call in facts.body.walk():
        body = facts.function(call) if call.what == "call" and call.start >= last and not call.fixed else None
        if body is None or len(body.kids) != 1 or body.kids[0].what != "return" or len(body.kids[0].kids) != 1:
            continue
        value, given, taken = body.kids[0].kids[0], call.kids[1:], call.symbol.arguments
        reads = call.type.what == "number" or any(one.type.what == "pointer" for one in taken)
        pairs = dict(zip(taken, given, strict=True)) if len(taken) == len(given) and reads else {}
        texts = {one: _as(node, one.type) for one, node in pairs.items()}
        names = [one for one in value.walk() if one.what == "name"]
        own = facts.declared_in(facts.body) | {*facts.parameters}
        hidden = {one.name for one in own} & {one.op for one in names if one.symbol not in pairs}
        inside = [*value.walk(), *(one for node in given for one in node.walk())]
        plain = all(one.what not in _ACTING and not one.op.startswith("atom") and not one.fixed for one in inside)
        result = _as(value, call.type)
        # A template's own names, and those of a namespace, mean nothing here.
        of_template = call.cursor.referenced.get_num_template_arguments() > 0
        named = of_template and any(one.what in ("cast", "construct", "literal") for one in value.walk())
        scoped = facts.syntax.unit.scope(call.cursor.referenced)
        if pairs and plain and result and all(texts.values()) and not (hidden or named or scoped):
            swaps = [replace(one, *texts[one.symbol]) for one in names if one.symbol in pairs]
            inner = [part if isinstance(part, str) else span(value, *swaps) for part in result]
            found.append(replace(call, *inner))
            last = call.end
    return found


_ACTING = frozenset({"assign", "count", "asm", "lambda", "address"})


def _as(node: Node, kind: Kind) -> tuple[str | Span, ...]:
    """An expression as a type; empty where only the compiler knows how. Its text has the type before conversions."""
    if node.type.like(kind):
        return "(", span(node), ")"
    return (f"(({kind.spelling})(", span(node), "))") if kind.what == node.type.what == "number" else ()


def _template_arguments(facts: Facts, call: Node) -> list[tuple[str, str]] | None:
    """Declarations, by name, of what a call's function is a template of; None where they are more than types and
    numbers."""
    made, found = call.cursor.referenced, list[tuple[str, str]]()
    count = made.get_num_template_arguments()
    if count < 1:
        return found
    of = [one for one in facts.syntax.unit.tree.cursor.walk_preorder() if kind(one) == "FUNCTION_TEMPLATE"]
    at = call.symbol.definition.extent.start.offset
    here = [one for one in of if one.extent.start.offset <= at < one.extent.end.offset]
    names = [one for one in here[-1].get_children() if kind(one).startswith("TEMPLATE_")] if here else []
    if len(names) != count:
        return None
    for number, name in enumerate(names):
        if kind(name) == "TEMPLATE_TYPE_PARAMETER":
            text = f"using {name.spelling} = {made.get_template_argument_type(number).spelling};"
        elif kind(name) == "TEMPLATE_NON_TYPE_PARAMETER":
            text = f"constexpr {name.type.spelling} {name.spelling} = {made.get_template_argument_value(number)};"
        else:
            return None
        found.append((name.spelling, text))
    return found


def _choices(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Both branches of an `if` that only give the same variable or element a value, as one assignment."""
    found = list[Edit]()
    for node in facts.body.walk():
        branches = [one.kids[0] if one.what == "block" and len(one.kids) == 1 else one for one in node.kids[1:]]
        if node.what != "if" or len(branches) != 2 or any(one.fixed for one in node.walk()):
            continue
        plain = all((one.what, one.op) == ("assign", "=") for one in branches)
        target = branches[0].kids[0]
        plain = plain and target.type.what in ("number", "float") and key(target) == key(branches[1].kids[0])
        if not plain or any(one.what in ("assign", "count", "call", "asm", "lambda") for one in node.kids[0].walk()):
            continue
        cast = QUALIFIERS.sub("", target.type.spelling)
        first, second = (f"({cast})({facts.text(one.kids[1])})" for one in branches)
        text = f"{facts.text(target)} = ({facts.text(node.kids[0])}) ? {first} : {second};"
        found.append(Edit(node.start, facts.syntax.end(node), (text,)))
    return found


def _declarations(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Variables that are declared ahead of the statement that gives them their first value, as declared by it: in a
    loop, each round has its own then."""
    found, last = list[Edit](), 0
    for declaration in facts.body.walk() if not facts.jumps else ():
        made = [one for one in declaration.kids if one.what == "variable"]
        if declaration.what != "declaration" or declaration.start < last or declaration.fixed:
            continue
        late = {one.symbol: uses for one in made if (uses := _given_first(facts, one.symbol))}
        gone = len(late) == len(declaration.kids) and not any(one.kids for one in made)
        for symbol, uses in late.items():
            name = symbol.name if gone else _new_name(facts, f"{symbol.name}_here")
            found += [replace(one, f"{symbol.written} " * (one is uses[0]) + name) for one in uses]
        if gone:
            last = declaration.end
            found.append(Edit(declaration.start, facts.syntax.end(declaration), ()))
    return found


def _new_name(facts: Facts, wanted: str) -> str:
    while wanted.encode() in facts.syntax.code:
        wanted += "_"
    return wanted


def _given_first(facts: Facts, symbol: Symbol) -> list[Node]:
    """All uses of a variable, of which the first is an assignment in the block that holds the others; none where it is
    not."""
    uses, made = facts.uses(symbol), symbol.declared
    change = uses[0].parent if uses else None
    if change is None or (change.what, change.op) != ("assign", "=") or change.statement is not change:
        return []
    block = change.parent
    plain = symbol.type.what in ("number", "float", "pointer") and not (made is None or made.type.reference)
    plain = plain and not (symbol.shared or symbol.static or symbol.volatile)
    if block is None or block.what != "block" or (block.parent or block).what == "switch":
        return []
    if not (plain and change.kids[0] is uses[0]) or symbol in facts.names_in(change.kids[1]):
        return []
    lambdas = any(above.what == "lambda" for one in uses for above, _ in one.above())
    return uses if not lambdas and all(block.holds(one) and not one.fixed for one in uses) else []


def _barriers(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Barriers that nobody needs, as no thread reads what another one has written."""
    read = {one.root for one in facts.accesses if one.read}
    both = any(one.written and one.root in read for one in facts.accesses)
    more = any(one.what == "asm" or one.symbol.what == "global" for one in facts.syntax.everything())
    alone = not (facts.shared or facts.warp_wide or facts.escaping or both or more)
    meets = [one for one in facts.barriers if facts.body.holds(one) and one.statement is one and not one.fixed]
    return [replace(one, "") for one in meets] if alone else []


def _axes(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Numbers for the builtins of axes along which the launch has one thread."""
    extents = zip(AXES, (*launch.grid, "1", "1"), (*launch.block, "1", "1"), strict=False)
    alone = [axis for axis, *both in extents if axis != "x" and both == ["1", "1"]]
    number = "{}u" if facts.syntax.language == "cuda" else "(size_t){}"
    return [
        replace(one, number.format(0 if one.op.startswith(("threadIdx", "blockIdx", "@")) else 1))
        for one in facts.builtins()
        if one.op[-1] in alone and not one.fixed
    ]


def _one_axis(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """The numbers of threads along x alone, where a block has several axes and the kernel only asks for the number of
    a thread in its block, and for their count."""
    found, known = dict[tuple[int, int], Edit](), dict[Form, str]()
    for written in itertools.product((False, True), repeat=len(launch.block)):
        number, count = Form(), Form.number(1)
        for axis, extent, digits in zip(AXES, launch.block, written, strict=False):
            number += count * Form.atom(f"threadIdx.{axis}")
            count *= Form.number(int(extent)) if digits and extent.isdigit() else Form.atom(f"blockDim.{axis}")
        known |= {number: "threadIdx.x", count: "blockDim.x"}
    asked = [one for one in facts.builtins() if one.op.startswith(("threadIdx.", "blockDim.", "@", "gridSize"))]
    for use in asked if len(launch.block) > 1 and not facts.syntax.lowering.ranks else ():
        around = (one for one in (use, *(above for above, _ in use.above())) if one.what in ("builtin", "binary"))
        at = next((one for one in around if facts.form(one) in known), None)
        if at is None or at.fixed:
            return []
        name = builtin(known[facts.form(at)], facts.syntax.language)
        found[at.start, at.end] = replace(at, f"(({at.type.spelling})({name}))")
    return list(found.values())


def _extents(facts: Facts, launch: LaunchGeometry, values: Sequence[int | None]) -> list[Edit]:
    """Coordinates and the steps of loops by the extents of blocks, where these stand as numbers of the launch, as
    arguments, or in calls. Where threads work together, such a number may mean more than that."""
    found, last, known, either, hidden = list[Edit](), 0, dict[Form, str](), dict[Form, str](), dict[Form, str]()
    for axis, extent in zip(AXES, launch.block, strict=False):
        names = [f"{one}.{axis}" for one in ("blockIdx", "threadIdx", "gridDim", "blockDim")]
        block, thread, grid, width = (builtin(one, facts.syntax.language) for one in names)
        at, threads = f"{block} * {width} + {thread}", f"{grid} * {width}"
        hidden |= {Form.atom(f"@{axis}"): at, grid_size(axis): threads}
        if extent.isdigit():
            number = Form.number(int(extent))
            known[Form.atom(names[0]) * number + Form.atom(names[1])] = at
            known[Form.atom(names[2]) * number] = threads
            # What is below a power of two may be put into its multiple by `|`.
            either |= known if int(extent) & (int(extent) - 1) == 0 else {}
    for node in facts.body.walk() if not facts.together else ():
        text, target = "", node
        if node.start < last or node.fixed or node.type.what != "number":
            continue
        if node.what in ("binary", "call"):
            form, whats = facts.form(node), {one.what for one in node.walk()}
            for one, value in zip(facts.parameters, values, strict=False):
                form = form.replaced(name_of(one), Form.number(value)) if value and one not in facts.changed else form
            text = known.get(form) or (hidden.get(form, "") if {"call", "builtin"} <= whats else "")
            text = either.get(facts.form(node.kids[0]) + facts.form(node.kids[1]), "") if node.op == "|" else text
        elif node.what == "assign" and node.op == "+=" and (made := node.kids[0].symbol) and made.declared:
            target, by = node.kids[1], facts.form(node.kids[1]).constant
            begins = made.declared.kids and facts.form(made.declared.kids[-1]) == Form.atom("threadIdx.x")
            text = builtin("blockDim.x", facts.syntax.language) if begins and str(by) == launch.block[0] else ""
        if text:
            found.append(replace(target, f"(({target.type.spelling})({text}))"))
            last = target.end
    return found


def _loops(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """A loop that steps by the block or the grid from its variable's first value, as a `for` loop of its own one."""
    code = facts.syntax.code
    for loop in facts.body.walk():
        if loop.what == "while" and loop.kids[1].what == "block" and loop.kids[1].kids:
            (test, body), step = loop.kids, loop.kids[1].kids[-1]
        elif loop.what == "for" and loop.kids[0].what == "nothing":
            _, test, step, body = loop.kids
        else:
            continue
        variable = None if loop.fixed or step.fixed or test.what == "nothing" else _stepped(facts, loop, step)
        if variable is None or variable.declared is None:
            continue
        begin = f"{variable.written} {variable.name} = {facts.text(variable.declared.kids[-1])}"
        if loop.what == "for":
            open_ = code.index(b"(", loop.start) + 1
            return [Edit(open_, code.index(b";", open_), (begin,))]
        if not any(one.what == "continue" for one in body.walk()):
            head = f"for ({begin}; {facts.text(test)}; {facts.text(step)}) "
            return [Edit(loop.start, body.start, (head,)), Edit(step.start, facts.syntax.end(step), ())]
    return []


def _stepped(facts: Facts, loop: Node, step: Node) -> Symbol | None:
    """The variable that a loop alone changes, by the size of a block or a grid, and that nothing uses after it."""
    variable = step.kids[0].symbol if step.what == "assign" else None
    made = None if variable is None else variable.declared
    if variable is None or made is None or not made.kids or facts.changed.get(variable) != [step]:
        return None
    value, again = step.kids[1], facts.uses(variable, step.kids[1])
    by = facts.form(value) - (facts.form(again[0]) if again else Form())
    if (step.op, len(again)) not in (("+=", 0), ("=", 1)) or by not in [Form.atom("blockDim.x"), *map(grid_size, AXES)]:
        return None
    # In one block, so that the loop begins with the declared value; a macro's text is not to be had.
    here = made.parent is not None and made.parent.parent is loop.parent and not made.fixed and not made.kids[-1].fixed
    known = all(facts.is_known(one, loop) for one in facts.names_in(made.kids[-1]))
    plain = variable.type.what == "number" and not (variable.volatile or variable.static or made.type.reference)
    after = any(one.start >= loop.end for one in facts.uses(variable))
    return variable if here and known and plain and not after else None


def _rows(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """Loops of the threads of a block that begin where a row does, as loops that count from the beginning of the
    row."""
    language, found, last = facts.syntax.language, list[Edit](), 0
    thread, threads = (builtin(f"{word}.x", language) for word in ("threadIdx", "blockDim"))
    wide = "long long" if language == "cuda" else "long"

    def text(atom: str) -> str | None:
        return facts.atoms[atom].symbol.name or (builtin(atom, language) if atom[:-1] in _OF_BLOCKS else None)

    for loop in facts.loops:
        start, test, body = loop.node.kids[0], loop.node.kids[1], loop.body
        begin = loop.first - Form.atom("threadIdx.x")
        # All rows have one length: of a block behind the end of its row the difference would wrap around.
        same = begin.terms and facts.reach(begin) < 2 and facts.reach(loop.bound - begin) == 0
        same = same and loop.step == Form.atom("blockDim.x")
        plain = start.what == "declaration" and test.op == "<" and not (loop.fixed or test.fixed or body.fixed)
        # The form does not say in how many bits its products are.
        row = begin.written(text, wide if loop.variable.type.size == 8 else "")
        name, column = loop.variable.name, f"{loop.variable.name}_in_row"
        unused = column not in {one.op for one in loop.node.walk() if one.what == "name"}
        if not (same and plain and row and unused) or loop.variable in facts.changed_in(body) or loop.node.start < last:
            continue
        last, type_ = loop.node.end, loop.variable.written
        bound = f"({facts.text(test.kids[1])}) - ({row})"
        head = f"for ({type_} {column} = {thread}; {column} < {bound}; {column} += {threads}) "
        declared = f"{{\nconst {type_} {name} = ({row}) + {column};"
        block = body.what == "block"
        found.append(Edit(loop.node.start, body.start + block, (head, declared)))
        found += [] if block else [insert(facts.syntax.end(body), "\n}")]
    return found


def _advances(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """A pointer that each round of a loop moves on, as the pointer from before and the distance from there."""
    for loop in (one for one in facts.loops if one.body.what == "block" and not one.fixed):
        for pointer in sorted(facts.changed_in(loop.body), key=lambda one: one.place):
            if pointer.type.what == "pointer" and (edits := _distances(facts, loop, pointer)):
                return edits
    return []


def _distances(facts: Facts, loop: Loop, pointer: Symbol) -> list[Edit]:
    """Each use of a pointer in a loop with the distance that the rounds before have moved it; none where a round may
    move it another distance."""
    inside = [one for one in facts.changed[pointer] if loop.body.holds(one)]
    made, move, uses = pointer.declared, inside[0], facts.uses(pointer)
    home = facts.body if made is None or made.parent is None else made.parent.parent
    counts = (move.what, move.op) in (("assign", "+="), ("count", "++")) and move.parent is loop.body and not move.fixed
    ends = any(one.what in ("continue", "return", "goto") for one in loop.body.walk())
    outside = any(one.start >= loop.node.end or (one.fixed and loop.body.holds(one)) for one in uses)
    hidden = {one.name for one in facts.declared_in(loop.body)}
    said = {one.name for one in (loop.variable, pointer, *facts.names_in(move), *facts.names_in(loop.node.kids[0]))}
    alone = loop.node in facts.homes.get(loop.variable, []) and home is loop.node.parent and not hidden & said
    if len(inside) != 1 or not counts or ends or outside or not alone:
        return []
    by = facts.form(move.kids[1]) if move.what == "assign" else Form.number(1)
    each = by.over(loop.step)
    factor = None if each is None else each.written(lambda atom: facts.atoms[atom].symbol.name or None)
    if each is None or not factor or facts.reach(each) > 0:
        return []
    name, first, shown = loop.variable.name, loop.first_node, facts.text(move.kids[-1])
    rounds = name if loop.first == Form() else f"({name} - ({facts.text(first)}))"
    wide = "long long" if facts.syntax.language == "cuda" else "long"
    found = [Edit(move.start, facts.syntax.end(move), ())]
    for use in uses:
        if loop.body.holds(use) and not move.holds(use):
            after = "" if use.start < move.start else f" + ({shown if move.what == 'assign' else 1})"
            found.append(replace(use, f"({pointer.name} + ({wide}){rounds} * ({factor}){after})"))
    return found


def _moved_parameters(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """A parameter that one statement of the body changes, as a variable from there on."""
    found = list[Edit]()
    for symbol, (by, *more) in facts.changed.items() if not facts.jumps else ():
        uses, own = facts.uses(symbol), symbol in facts.parameters and not (more or by.fixed or symbol.type.reference)
        once = own and by.what == "assign" and by.parent is facts.body
        lambdas = any(above.what == "lambda" for one in uses for above, _ in one.above())
        if not once or lambdas or any(one.fixed for one in uses) or symbol.type.what not in ("number", "pointer"):
            continue
        name, value = _new_name(facts, f"{symbol.name}_here"), by.kids[1]
        so_far = "" if by.op == "=" else f"{symbol.name} {by.op[:-1]} "
        found.append(replace(by, f"{symbol.written} {name} = {so_far}(", span(value), ")"))
        found += [replace(one, name) for one in uses if one.start >= by.end]
    return found


def _sums(facts: Facts, launch: LaunchGeometry) -> list[Edit]:
    """An element that a loop of a thread adds up in memory, in a register until the last statement that touches it.
    Arrays of a task do not overlap, and nobody waits for the element where threads do not work together."""
    if facts.together or facts.jumps or any(one.what == "lambda" for one in facts.body.walk()):
        return []
    blocks = (one for one in facts.body.walk() if one.what == "block" and (one.parent or one).what != "switch")
    made = (_in_register(facts, one, root) for one in blocks for root in facts.arrays if root not in facts.escaping)
    return next((one for one in made if one), [])


def _in_register(facts: Facts, block: Node, root: Symbol) -> list[Edit]:
    """One element of an array in a register, from the first statement of a block that touches the array as far as
    statements touch no other element."""
    touching = [(one, [access for access in facts.of(root) if one.holds(access.node)]) for one in block.kids]
    touching = list(itertools.dropwhile(lambda pair: not pair[1], touching))
    index = touching[0][1][0].index if touching else Form()
    touching = list(itertools.takewhile(lambda pair: all(one.index == index for one in pair[1]), touching))
    region = touching[: max((at + 1 for at, (_, those) in enumerate(touching) if those), default=0)]
    own = [one for _, those in region for one in those]
    if not any(one.what in LOOPS and any(access.written for access in those) for one, those in region):
        return []
    begin, at = region[0][0], own[0].node
    assigns = begin.what == "assign" and begin.kids[0] is at
    changed = {symbol for one, _ in region for symbol in facts.changed_in(one) | facts.declared_in(one)} - {root}
    if not (assigns or _touches(facts, begin, own[0])) or facts.names_in(at) & changed:
        return []
    plain = all(one.node.what in ("index", "deref") and not one.node.fixed and not one.atomic for one in own)
    plain = plain and not any(one.node.parent is not None and one.node.parent.what == "address" for one in own)
    if not plain or any(one[0] == "?" for one in index.atoms) or any(may_end(one, block) for one, _ in region):
        return []
    name, text = _new_name(facts, f"{root.name}_kept"), facts.text(at)
    declared, edits = f"{root.element} {name}", [replace(one.node, name) for one in own[1:]]
    if assigns and begin.op == "=" and not any(begin.kids[1].holds(one.node) for one in own):
        edits.append(replace(at, declared))
    elif assigns and begin.op != "=" and (root.type.element or root.type).size >= 4:
        value = facts.syntax.code.index(begin.op.encode(), at.end) + len(begin.op)
        edits.append(Edit(at.start, value, (f"{declared} = {text} {begin.op[:-1]} (",)))
        edits.append(insert(facts.syntax.end(begin) - 1, ")"))
    else:
        edits += [insert(begin.start, f"{declared} = {text};\n"), replace(at, name)]
    return [*edits, insert(facts.syntax.end(region[-1][0]), f" {text} = {name};")]


def _touches(facts: Facts, node: Node, access: Access) -> bool:
    """Whether a loop touches an element for certain: it counts from 0 to a product of parameters, which are sizes."""
    loop, (tests, doubtful) = facts.loop(node), facts.conditions(access.node, node)
    if loop is None or loop.kind != "counting" or doubtful or not all(one.loop for one in tests):
        return False
    sizes = all(facts.atoms[one].symbol in facts.parameters for one in loop.bound.atoms)
    return sizes and loop.first == Form() and len(loop.bound.terms) == 1 and loop.bound.terms[0][1] > 0
