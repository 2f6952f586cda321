"""What a thread carries from one round of a loop to the next, where threads share the rounds out.

A rewrite that gives a thread other rounds keeps sums, products and extremes, which do not ask for the order of their
parts, and changes all else: a count that is used, the element before, a place in an array of the thread's own. A
running extreme may scale sums by exponentials, as a softmax of one pass has it, and say where it was found.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.source import Kernel, bare, declared, named_by, operator, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_ASSIGNED = {"+=": "+", "-=": "+", "*=": "*", "/=": "*", "|=": "|", "&=": "&", "^=": "^"}
_CHAINS = {"+": "+", "-": "+", "*": "*", "|": "|", "&": "&", "^": "^", "||": "||", "&&": "&&"}
_EXTREME = re.compile(r"(?:std::)?_*[hf]?(?:max|min)f?2?")
_EXPONENTIAL = re.compile(r"(?:std::)?_*h?exp(?:2|10)?f?")
_LITERALS = frozenset({"number_literal", "true", "false"})
_CHANGES = frozenset({"assignment_expression", "update_expression", "call_expression"})
_LEAVES = frozenset({"break_statement", "continue_statement", "return_statement", "goto_statement"})


def order_matters(kernel: Kernel, loop: Node, within: Node) -> str:
    """Why results depend on which thread has which round of `loop`, as a clause; empty where they do not. within: the
    body in which the loop stands, of the kernel or of a function."""
    body = loop.child_by_field_name("body")
    if body is None:
        return ""
    states = _states(kernel, loop, body, within)
    extremes = {name for name, those in states.items() if all(_picks(one, body) for one in those)}
    weights = set[str]()
    for node in walk(body):
        value = node.child_by_field_name("value") if node.type == "init_declarator" else None
        if value is not None:
            if _called(value, _EXPONENTIAL) and _names(value) & (extremes | weights):
                weights |= {text(one) for one in named_by(node)}
            elif _is_call(value, _EXTREME) and _names(value) & extremes:
                extremes |= {text(one) for one in named_by(node)}
    for name, those in states.items():
        kinds = {_kind(one, body, extremes, weights) for one in those}
        if "" in kinds or len(kinds) > 1:
            return f"a loop changes {name} in a way that depends on the order of its rounds"
    followed = states.keys() | extremes | weights
    for node in walk(body):
        used = node.type == "identifier" and text(node) in followed
        if used and not _fits(kernel, node, body, frozenset(states), extremes, weights):
            return f"a loop uses {text(node)}, which depends on the rounds before"
    if kernel.shared or kernel.warp_wide:
        return ""
    for node in walk(within):
        after = node.type == "identifier" and text(node) in states and node.start_byte >= loop.end_byte
        if after and not _given_to_atomics(node):
            return f"each thread has a part of {text(node)}, and they do not put the parts together"
    return ""


def parts(kernel: Kernel, loop: Node, within: Node) -> set[str]:
    """The variables of which each thread has a part after the loop."""
    body = loop.child_by_field_name("body")
    return set() if body is None else set(_states(kernel, loop, body, within))


def _states(kernel: Kernel, loop: Node, body: Node, within: Node) -> dict[str, list[Node]]:
    """What the loop changes that lives longer than a round, and is a thread's own, with the places."""
    inside, everywhere = ([text(name) for name in declared(node)] for node in (loop, within))
    memory = _memory(kernel, within)
    found: dict[str, list[Node]] = {}
    for node in kernel.changes(body):
        name, above = text(node), node.parent
        through = above is not None and re.match(rf"{name}\s*(?:\[|->)|\*", text(above)) is not None
        own = 0 < inside.count(name) == everywhere.count(name)
        if not own and not (through and name in memory):
            found.setdefault(name, []).append(node)
    return {name: those for name, those in found.items() if not _made_anew(name, loop, body, within)}


def _memory(kernel: Kernel, within: Node) -> set[str]:
    """The names of what several threads have: arrays that the body is given, shared memory, and pointers into these."""
    head = None if within.parent is None else within.parent.child_by_field_name("declarator")
    given = [] if head is None else [one for one in walk(head) if one.type == "parameter_declaration"]
    found = {text(name) for one in given if re.search(r"[*\[]", text(one)) for name in named_by(one)}
    for node in walk(kernel.root):
        if node.type == "declaration" and "__shared__" in text(node).split("=")[0]:
            found |= {text(one) for one in named_by(node)}
    for node in walk(within):
        declarator = node.child_by_field_name("declarator") if node.type == "init_declarator" else None
        value = node.child_by_field_name("value")
        pointer = declarator is not None and declarator.type == "pointer_declarator"
        if pointer and value is not None and _names(value) & found:
            found |= {text(one) for one in named_by(node)}
    return found


def _made_anew(name: str, loop: Node, body: Node, within: Node) -> bool:
    """Whether each round gives the variable a value before it uses it, and nothing uses the last one."""
    uses = [one for one in walk(within) if one.type == "identifier" and text(one) == name]
    inside = [one for one in uses if body.start_byte <= one.start_byte < body.end_byte]
    after = [one for one in uses if one.start_byte >= loop.end_byte]
    above = loop.parent
    while above is not None and above != within:
        if above.type in ("for_statement", "while_statement", "do_statement", "lambda_expression"):
            return False
        above = above.parent
    first = _overwrites(inside[0])
    always = first is not None and (first == body or first.parent == body)
    return always and (not after or _overwrites(after[0]) is not None)


def _overwrites(node: Node) -> Node | None:
    """The statement that gives a variable a value without a look at the one before; None where it is another."""
    change = node.parent
    if change is None or change.type != "assignment_expression" or operator(change) != "=":
        return None
    value, statement = change.child_by_field_name("right"), change.parent
    if change.child_by_field_name("left") != node or value is None or text(node) in _names(value):
        return None
    return statement if statement is not None and statement.type == "expression_statement" else None


def _kind(node: Node, body: Node, extremes: set[str], weights: set[str]) -> str:
    """How a change combines the value so far with the round's own part; empty where it depends on the order."""
    change, name = _change(node), text(node)
    if change.type == "update_expression":
        return "+"
    if change.type == "call_expression":
        # What a lambda or an object changes when it is called is not followed.
        return "call" if change.child_by_field_name("function") != node else ""
    value = bare(change.child_by_field_name("right"))
    if change.type != "assignment_expression" or value is None:
        return ""
    if operator(change) != "=":
        how = _ASSIGNED.get(operator(change), "")
        return "+" if how == "*" and _scales(value, extremes, weights) else how
    test = _test(change, body)
    found_there = test is not None and name not in _names(value) and bool(_names(test) & extremes)
    if found_there or _picks(node, body):
        return "pick"
    if value.type in _LITERALS:
        return text(value)
    return _folded(value, _compact(change.child_by_field_name("left")), extremes, weights)


def _folded(value: Node, target: str, extremes: set[str], weights: set[str]) -> str:
    """How a value puts the old one, `target`, together with another; empty where it does not."""
    if value.type == "call_expression":
        inside = value.child_by_field_name("arguments")
        given = [bare(one) or one for one in (inside.named_children if inside is not None else ())]
        if len(given) == 1:
            # A conversion.
            return _folded(given[0], target, extremes, weights)
        return "call" if [_compact(one) for one in given].count(target) == 1 else ""
    sign = _CHAINS.get(operator(value), "") if value.type == "binary_expression" else ""
    terms = _terms(value, sign) if sign else []
    mine = [(one, plus) for one, plus in terms if target in _compact(one)]
    if len(mine) != 1 or not mine[0][1]:
        return ""
    factors = [_compact(one) for one, _ in _terms(mine[0][0], "*")]
    others = [one for one, _ in _terms(mine[0][0], "*") if _compact(one) != target]
    scaled = sign == "+" and all(_scales(one, extremes, weights) for one in others)
    return sign if factors.count(target) == 1 and (not others or scaled) else ""


def _scales(value: Node, extremes: set[str], weights: set[str]) -> bool:
    """Whether a factor is an exponential of a running extreme, or made of one."""
    return bool(_names(value) & weights) or (_called(value, _EXPONENTIAL) and bool(_names(value) & extremes))


def _picks(node: Node, body: Node) -> bool:
    """Whether a change keeps the larger or the smaller of two values."""
    change, name = _change(node), text(node)
    value = bare(change.child_by_field_name("right")) if change.type == "assignment_expression" else None
    if value is None or operator(change) != "=" or change.child_by_field_name("left") != node:
        return False
    if _is_call(value, _EXTREME):
        return name in _names(value)
    if value.type == "conditional_expression":
        chosen = {_compact(bare(value.child_by_field_name(one))) for one in ("consequence", "alternative")}
        return name in chosen and _compared(value.child_by_field_name("condition")) == chosen
    for one in walk(body):
        if one.type == "init_declarator" and [text(made) for made in named_by(one)] == [text(value)]:
            made_of = bare(one.child_by_field_name("value"))
            if made_of is not None and _is_call(made_of, _EXTREME) and name in _names(made_of):
                return True
    return _compared(_test(change, body)) == {name, _compact(value)}


def _compared(test: Node | None) -> set[str]:
    """The two texts that a test compares by size; empty for another test."""
    test = bare(test)
    if test is None or test.type != "binary_expression" or operator(test) not in ("<", ">", "<=", ">="):
        return set()
    return {_compact(bare(test.child_by_field_name(one))) for one in ("left", "right")}


def _test(node: Node, body: Node) -> Node | None:
    """The test of the innermost `if` of the loop's body in which a node stands."""
    above: Node | None = node
    while above is not None and above != body.parent:
        if above.type == "if_statement":
            return above.child_by_field_name("condition")
        above = above.parent
    return None


def _fits(
    kernel: Kernel, node: Node, body: Node, states: frozenset[str], extremes: set[str], weights: set[str]
) -> bool:
    """Whether a use of a state, or of a value computed from an extreme, is part of a change that `_kind` knows."""
    at, above, exponential, name = node, node.parent, False, text(node)
    while above is not None and at != body:
        alone = above.parent is not None and above.parent.type == "expression_statement"
        if above.type == "subscript_argument_list":
            return False
        if above.type == "call_expression":
            exponential = exponential or _is_call(above, _EXPONENTIAL)
            if node in kernel.changes(above):
                return alone
        elif above.type == "update_expression":
            return alone
        elif above.type == "assignment_expression":
            left = above.child_by_field_name("left")
            target = next((text(one) for one in walk(left) if one.type == "identifier"), "") if left else ""
            scales = name in weights or (name in extremes and (exponential or target in extremes))
            return alone and (left == at or target == name or (scales and target in states))
        elif above.type == "init_declarator":
            return bool({text(one) for one in named_by(above)} & (extremes | weights))
        elif above.type == "condition_clause":
            return name in extremes and above.parent is not None and _only_changes(kernel, above.parent, states)
        at, above = above, above.parent
    return False


def _only_changes(kernel: Kernel, branch: Node, states: frozenset[str]) -> bool:
    """Whether all that an `if` does is to change states."""
    inside = list(walk(branch))
    calls = any(one.type == "expression_statement" and one.children[0].type == "call_expression" for one in inside)
    if branch.type != "if_statement" or calls or any(one.type in _LEAVES for one in inside):
        return False
    changes = [one for one in inside if one.type in ("assignment_expression", "update_expression")]
    return all(any(text(name) in states for name in kernel.changes(one)) for one in changes)


def _given_to_atomics(node: Node) -> bool:
    """Whether a use is in an argument of an atomic operation."""
    above = node.parent
    while above is not None and above.type not in ("compound_statement", "expression_statement"):
        called = above.child_by_field_name("function") if above.type == "call_expression" else None
        if called is not None and text(called).startswith("atomic"):
            return True
        above = above.parent
    return False


def _change(node: Node) -> Node:
    """The assignment, the call or the like that changes a variable."""
    above = node
    while above.parent is not None and above.type not in _CHANGES and not above.type.endswith("statement"):
        above = above.parent
    return above


def _is_call(node: Node, names: re.Pattern[str]) -> bool:
    node = bare(node) or node
    called = node.child_by_field_name("function") if node.type == "call_expression" else None
    return called is not None and names.fullmatch(text(called)) is not None


def _called(node: Node, names: re.Pattern[str]) -> bool:
    return any(_is_call(one, names) for one in walk(node))


def _names(node: Node) -> set[str]:
    return {text(one) for one in walk(node) if one.type == "identifier"}


def _compact(node: Node | None) -> str:
    return "" if node is None else re.sub(r"\s+", "", text(node))


def _terms(node: Node, sign: str) -> list[tuple[Node, bool]]:
    """What a chain of one operation puts together, and whether it is added rather than taken away."""
    one = bare(node) or node
    left, right = one.child_by_field_name("left"), one.child_by_field_name("right")
    chain = one.type == "binary_expression" and _CHAINS.get(operator(one)) == sign
    if not chain or left is None or right is None:
        return [(one, True)]
    minus = operator(one) == "-"
    return [*_terms(left, sign), *((part, plus != minus) for part, plus in _terms(right, sign))]
