"""How a kernel shares its work among threads, read from its source: what of the launch may change, and why not more.

Three kinds are told apart. `Cells`: each thread computes from its global coordinates alone, so that any launch with as
many threads computes the same. `Rows`: the threads of a block share loops that step by the block's size, so that the
size of the block is free and the grid is not. `Fixed`: neither was recognised, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.carried import order_matters, parts
from tunesmith.kernels.rewrite.source import Kernel, bare, named_by, operator, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

WARP = 32
MAX_BLOCK_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a `Cells` launch. guarded: more threads than the kernel came with do nothing; else the launch must
    cover exactly the same coordinates. bound: the expression of parameters below which coordinates do something, where
    the guard comes first in the kernel; strided: the threads step through the axis by the size of the whole grid, so
    that any number of them will do."""

    name: str
    bound: str = ""
    strided: bool = False
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Cells:
    """axes: those with global coordinates, x first."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """most: threads that a block may have, by the sizes of the arrays in shared memory."""

    most: int = MAX_BLOCK_THREADS


@dataclass(frozen=True, slots=True)
class Fixed:
    """why: a sentence without its full stop."""

    why: str


def sharing(kernel: Kernel) -> Cells | Rows | Fixed:
    """How `kernel` shares its work."""
    cells = _cells(kernel)
    if isinstance(cells, Cells):
        return cells
    rows = _rows(kernel)
    return rows if isinstance(rows, Rows) else Fixed(rows.why if kernel.shared or kernel.barriers else cells.why)


def _of_some(kernel: Kernel, node: Node, names: set[str]) -> bool:
    """Whether only some threads come to `node`, by a condition on their number."""
    at, above = node, node.parent
    while above is not None and at != kernel.body:
        if above.type in ("if_statement", "conditional_expression"):
            condition = above.child_by_field_name("condition")
            if condition is not None and condition != at and names & set(re.findall(r"[\w.]+", text(condition))):
                return True
        at, above = above, above.parent
    return False


def global_coordinate(kernel: Kernel, node: Node) -> str:
    """The axis of `blockIdx.a * blockDim.a + threadIdx.a`, in any order and behind casts; else empty."""
    if node.type != "binary_expression" or operator(node) != "+":
        return ""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    for product, thread in ((left, right), (right, left)):
        name = kernel.builtin(thread)
        if name.startswith("threadIdx.") and _product(kernel, product) == {
            f"blockIdx.{name[-1]}",
            f"blockDim.{name[-1]}",
        }:
            return name[-1]
    return ""


def _product(kernel: Kernel, node: Node | None) -> set[str]:
    """The two builtins that are multiplied; empty for anything else."""
    node = bare(node)
    if node is None or node.type != "binary_expression" or operator(node) != "*":
        return set()
    factors = {kernel.builtin(node.child_by_field_name(side)) for side in ("left", "right")}
    return set() if "" in factors else factors


def _cells(kernel: Kernel) -> Cells | Fixed:
    if kernel.shared or kernel.barriers or kernel.warp_wide:
        return Fixed("its threads work together")
    understood: set[tuple[int, int]] = set()
    found: dict[str, list[Node]] = {}
    for node in walk(kernel.body):
        if axis := global_coordinate(kernel, node):
            found.setdefault(axis, []).append(node)
            understood |= {_place(one) for one in walk(node)}
    strided = set()
    for node in walk(kernel.body):
        if node.type == "for_statement" and (axis := _grid_stride(kernel, node)):
            if why := order_matters(kernel, node, kernel.body):
                return Fixed(why)
            strided.add(axis)
            step = node.child_by_field_name("update")
            assert step is not None
            understood |= {_place(one) for one in walk(step)}
    for use in kernel.builtin_uses():
        if _place(use) in understood:
            continue
        name = kernel.builtin(use)
        if not name.startswith("blockIdx.") or name[-1] in found:
            return Fixed(f"it uses {text(use)} for more than the global coordinate of a thread")
    if not found:
        return Fixed("it has no global coordinate, blockIdx.x * blockDim.x + threadIdx.x")
    axes = []
    for axis in sorted(found):
        if axis in strided and not _only_starts_loops(kernel, found[axis]):
            return Fixed(f"its coordinate along {axis} does more than begin a loop over the grid")
        guarded = axis not in strided and _guarded(kernel, axis)
        axes.append(Axis(axis, _guard(kernel, axis) if guarded else "", axis in strided, guarded))
    return Cells(tuple(axes))


def _place(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def loop_of(node: Node) -> tuple[str, Node, str, Node] | None:
    """A loop `for (int v = FIRST; v < BOUND; v += STEP)` or `++v`: name, first value, the bound's text, step."""
    start, condition, update = (node.child_by_field_name(one) for one in ("initializer", "condition", "update"))
    if start is None or condition is None or update is None or start.type != "declaration":
        return None
    declared = start.children_by_field_name("declarator")
    if len(declared) != 1 or declared[0].type != "init_declarator":
        return None
    name, first = declared[0].child_by_field_name("declarator"), declared[0].child_by_field_name("value")
    left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    target, step = update.child_by_field_name("left"), update.child_by_field_name("right")
    if update.type == "update_expression" and "++" in text(update):
        target = step = update.child_by_field_name("argument")
    if name is None or first is None or left is None or right is None or target is None or step is None:
        return None
    fits = (
        operator(condition) == "<"
        and (operator(update) == "+=" or target is step)
        and text(left) == text(name) == text(target)
    )
    return (text(name), first, text(right), step) if fits and condition.type == "binary_expression" else None


def block_stride(kernel: Kernel, node: Node) -> tuple[str, str] | None:
    """Variable and bound of a loop in which the threads of a block take turns, or None."""
    loop = loop_of(node)
    if loop is None or kernel.builtin(loop[1]) != "threadIdx.x" or kernel.builtin(loop[3]) != "blockDim.x":
        return None
    return loop[0], loop[2]


def _grid_stride(kernel: Kernel, node: Node) -> str:
    """The axis of a loop in which all threads of the grid take turns; else empty."""
    loop = loop_of(node)
    if loop is None:
        return ""
    _, first, _, step = loop
    for axis in "xyz":
        if _product(kernel, step) == {f"gridDim.{axis}", f"blockDim.{axis}"}:
            at = bare(first)
            if at is not None and (global_coordinate(kernel, at) == axis or _is_coordinate(kernel, text(at), axis)):
                return axis
    return ""


def _is_coordinate(kernel: Kernel, name: str, axis: str) -> bool:
    return name in coordinates(kernel, axis)


def coordinates(kernel: Kernel, axis: str) -> set[str]:
    """The variables that are the global coordinate along `axis`, that nothing changes, and whose names no other
    variable has."""
    found = list[str]()
    for node in walk(kernel.body):
        if node.type == "init_declarator":
            name, value = node.child_by_field_name("declarator"), bare(node.child_by_field_name("value"))
            if name is None or value is None or name.type != "identifier" or text(name) in kernel.changed:
                continue
            if global_coordinate(kernel, value) == axis:
                found.append(text(name))
    names = [text(one) for one in kernel.declared_names]
    return {one for one in found if names.count(one) == found.count(one)}


def _only_starts_loops(kernel: Kernel, nodes: list[Node]) -> bool:
    """Whether the coordinates `nodes` are nothing but the first values of loops over the grid."""
    for node in nodes:
        above = node.parent
        while above is not None and above.type in ("parenthesized_expression", "cast_expression"):
            above = above.parent
        declaration = None if above is None else above.parent
        loop = None if declaration is None else declaration.parent
        if loop is None or loop.type != "for_statement" or not _grid_stride(kernel, loop):
            return False
    return True


def _guard(kernel: Kernel, axis: str) -> str:
    """The bound of the guard behind which the kernel does all its work on a coordinate; empty where there is none."""
    names, bounds, guarded = coordinates(kernel, axis), list[str](), False
    for statement in kernel.body.named_children:
        if statement.type in ("comment", "declaration") and (guarded or not _touches_memory(kernel, statement)):
            continue
        if statement.type == "if_statement":
            condition = bare(statement.child_by_field_name("condition"))
            then, other = statement.child_by_field_name("consequence"), statement.child_by_field_name("alternative")
            if condition is None or then is None:
                return ""
            if _returns(then) and other is None:
                if bound := _bound(condition, names, "||", (">=", "<=")):
                    bounds.append(bound)
                    guarded = True
                if bound or not _touches_memory(kernel, condition):
                    continue
                return ""
            if not guarded and other is None and (bound := _bound(condition, names, "&&", ("<", ">"))):
                bounds.append(bound)
                continue
        if not guarded:
            return ""
    usable = [one for one in bounds if set(re.findall(r"[A-Za-z_]\w*", one)) <= kernel.constants]
    return usable[0] if usable and len(usable) == len(bounds) else ""


def _guarded(kernel: Kernel, axis: str) -> bool:
    """Whether the kernel touches memory only where a coordinate, or one with a constant added, is below a bound that is
    the same for all threads: whatever else it does, a thread beyond the bound has no effect."""
    fixed, below = _same_for_all(kernel), _moved(kernel, axis)

    def keeps(condition: Node | None, joined: str, signs: tuple[str, str]) -> bool:
        """Whether a condition, or a part of it that `joined` combines, compares the coordinate with a bound."""
        condition = bare(condition)
        left, right = (None if condition is None else condition.child_by_field_name(one) for one in ("left", "right"))
        if condition is None or left is None or right is None or condition.type != "binary_expression":
            return False
        if operator(condition) == joined:
            return keeps(left, joined, signs) or (not _acts(kernel, left) and keeps(right, joined, signs))
        one, other = (left, right) if operator(condition) == signs[0] else (right, left)
        return operator(condition) in signs and below(one) and _names(other) <= fixed and not _calls(other)

    for statement in kernel.body.named_children:
        if statement.type == "if_statement":
            condition = statement.child_by_field_name("condition")
            then, other = (statement.child_by_field_name(one) for one in ("consequence", "alternative"))
            if then is not None and _returns(then) and keeps(condition, "||", (">=", "<=")):
                return True
            if (other is None or not _acts(kernel, other)) and keeps(condition, "&&", ("<", ">")):
                continue
        if _acts(kernel, statement):
            return False
    return True


def _moved(kernel: Kernel, axis: str) -> Callable[[Node], bool]:
    """Tells whether an expression is the coordinate along `axis`, or that with a number added to it."""
    known = coordinates(kernel, axis)

    def is_moved(node: Node | None) -> bool:
        node = bare(node)
        if node is None:
            return False
        if global_coordinate(kernel, node) == axis or text(node) in known:
            return True
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if node.type != "binary_expression" or operator(node) != "+" or left is None or right is None:
            return False
        return any(is_moved(one) and other.type == "number_literal" for one, other in ((left, right), (right, left)))

    for name, value in _made_once(kernel):
        if is_moved(value):
            known.add(name)
    return is_moved


def _made_once(kernel: Kernel) -> Iterator[tuple[str, Node]]:
    """Name and value of the variables of the body that nothing changes and whose names no other has, in their order."""
    names = [text(one) for one in kernel.declared_names] + [one.name for one in kernel.parameters]
    for node in walk(kernel.body):
        if node.type == "init_declarator":
            name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
            if name is None or name.type != "identifier" or value is None:
                continue
            if names.count(text(name)) == 1 and text(name) not in kernel.changed:
                yield text(name), value


def _same_for_all(kernel: Kernel) -> set[str]:
    """The names of numbers that all threads have alike: parameters, macros, and values computed from these alone."""
    found = set(kernel.constants | kernel.numbers)
    for name, value in _made_once(kernel):
        if _names(value) <= found and not _calls(value):
            found.add(name)
    return found


def _names(node: Node) -> set[str]:
    return {text(one) for one in walk(node) if one.type == "identifier"}


def _calls(node: Node) -> bool:
    return any(one.type in ("call_expression", "subscript_expression", "pointer_expression") for one in walk(node))


def _acts(kernel: Kernel, node: Node) -> bool:
    """Whether it may have an effect beyond the kernel's own variables, reads memory, or jumps."""
    own = {text(one) for one in kernel.declared_names} | {one.name for one in kernel.parameters}
    return (
        _touches_memory(kernel, node)
        or not {text(one) for one in kernel.changes(node)} <= own
        or any(one.type == "goto_statement" for one in walk(node))
        or any(one.type == "subscript_expression" and not _names(one.children[0]) & own for one in walk(node))
        or (not kernel.keeps_to_itself and any(one.type == "call_expression" for one in walk(node)))
    )


def _returns(node: Node) -> bool:
    inside = node.named_children if node.type == "compound_statement" else [node]
    return len(inside) == 1 and inside[0].type == "return_statement"


def _bound(condition: Node, names: set[str], joined: str, signs: tuple[str, str]) -> str:
    """B of a comparison `name SIGN B` (or turned round) among the conditions that `joined` combines."""
    condition = bare(condition) or condition
    if condition.type != "binary_expression":
        return ""
    left, right = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    if left is None or right is None:
        return ""
    if operator(condition) == joined:
        return _bound(left, names, joined, signs) or _bound(right, names, joined, signs)
    if operator(condition) == signs[0] and text(left) in names:
        return text(right)
    if operator(condition) == signs[1] and text(right) in names:
        return text(left)
    return ""


def keeps_below(kernel: Kernel, statement: Node, bounds: Mapping[str, str], least: int = 0) -> bool:
    """Whether an `if` keeps coordinates below `bounds`, by axis, and does nothing else: coordinates below get on, or
    at least coordinates that are not below `least` either."""
    condition = bare(statement.child_by_field_name("condition"))
    then, other = statement.child_by_field_name("consequence"), statement.child_by_field_name("alternative")
    if condition is None or then is None or other is not None:
        return False
    joined, signs = ("||", (">=", "<=")) if _returns(then) else ("&&", ("<", ">"))
    lower = (("<", ">"), ("<=", ">="), ("==", "==")) if _returns(then) else ((">", "<"), (">=", "<="))

    def fits(part: Node) -> bool:
        part = bare(part) or part
        left, right = part.child_by_field_name("left"), part.child_by_field_name("right")
        if part.type == "binary_expression" and operator(part) == joined and left is not None and right is not None:
            return fits(left) and fits(right)
        for axis, below in bounds.items():
            names = coordinates(kernel, axis)
            low = next((one for signs_ in lower if (one := _bound(part, names, joined, signs_))), "")
            if _bound(part, names, joined, signs) == below or (low.isdigit() and int(low) < least):
                return True
        return False

    return fits(condition)


def _touches_memory(kernel: Kernel, node: Node) -> bool:
    """Whether it reads or writes an array, or names one of those with which the kernel may do anything."""
    inside = (node.start_byte, node.end_byte)
    return any(inside[0] <= one.node.start_byte < inside[1] for one in kernel.accesses) or any(
        one.type == "identifier" and kernel.escapes(text(one)) for one in walk(node)
    )


def _rows(kernel: Kernel) -> Rows | Fixed:
    most = _most_threads(kernel)
    if isinstance(most, Fixed):
        return most
    bodies = (kernel.body, *kernel.functions)
    understood, loops = set[tuple[int, int]](), 0
    for body in bodies:
        for node in walk(body):
            if node.type == "for_statement" and block_stride(kernel, node) is not None:
                inside = node.child_by_field_name("body")
                if inside is not None and re.search(r"\b__(?:sync|shfl)", text(inside)):
                    return Fixed("threads meet inside a loop that steps by the block's size")
                if why := order_matters(kernel, node, body):
                    return Fixed(why)
                loops += 1
                for part in ("initializer", "update"):
                    one = node.child_by_field_name(part)
                    understood |= {_place(inner) for inner in walk(one)} if one is not None else set()
    for use in kernel.builtin_uses():
        name = kernel.builtin(use)
        if _place(use) in understood or name.startswith("blockIdx."):
            continue
        if name.startswith("gridDim.") and name[-1] != "x":
            continue
        if name not in ("threadIdx.x", "blockDim.x") or not _generic(kernel, use, name):
            return Fixed(f"it uses {text(use)} in a way that may depend on the size of a block")
    if not loops:
        return Fixed("it has no loop that steps by the size of a block")
    if counted := _by_every_thread(kernel):
        return Fixed(f"every thread carries out `{counted}`, and how many there are depends on the size of a block")
    return Rows(most)


def _by_every_thread(kernel: Kernel) -> str:
    """An atomic operation outside of the loops over a row that neither adds up the threads' parts of something nor is
    for some threads alone; empty where there is none."""
    loops = [one for one in walk(kernel.body) if one.type == "for_statement" and block_stride(kernel, one) is not None]
    shared_out = {name for loop in loops for name in parts(kernel, loop, kernel.body)}
    made = (one for one in walk(kernel.body) if one.type == "init_declarator" and "threadIdx" in text(one))
    numbers = {"threadIdx"} | {text(name) for one in made for name in named_by(one)}
    for node in walk(kernel.body):
        called = node.child_by_field_name("function") if node.type == "call_expression" else None
        if called is None or not text(called).startswith("atomic"):
            continue
        if {text(one) for one in walk(node) if one.type == "identifier"} & shared_out:
            continue
        above = node.parent
        while above is not None and above not in loops:
            test = above.child_by_field_name("condition") if above.type == "if_statement" else None
            if test is not None and {text(one) for one in walk(test)} & numbers:
                break
            above = above.parent
        if above is None:
            return text(node)
    return ""


def _most_threads(kernel: Kernel) -> int | Fixed:
    """The threads for whose warps the arrays in shared memory have an element each."""
    most = MAX_BLOCK_THREADS
    for body in (kernel.body, *kernel.functions):
        for node in walk(body):
            if (
                node.type != "declaration"
                or "__shared__" not in text(node)
                or "extern" in text(node).split("__shared__")[0]
            ):
                continue
            for declarator in node.children_by_field_name("declarator"):
                size = declarator.child_by_field_name("size")
                if declarator.type != "array_declarator":
                    continue
                if size is None or not text(size).isdigit() or declarator.children[0].type == "array_declarator":
                    return Fixed(f"the size of the shared array `{text(declarator)}` may depend on that of a block")
                most = min(most, WARP * int(text(size)))
    return most


def _shared_arrays(kernel: Kernel) -> set[str]:
    """The arrays in static shared memory, whose sizes `_most_threads` has looked at."""
    return {
        name
        for rest in re.findall(r"(?<!extern )__shared__([^;]*);", kernel.plain)
        for name in re.findall(r"(\w+)\s*\[\s*\d+\s*\]", rest)
    }


def _generic(kernel: Kernel, use: Node, name: str) -> bool:
    """Whether a use of a thread's number, or of the block's size, means the same in blocks of any whole warps."""
    at, above = use, use.parent
    while above is not None and above.type in ("parenthesized_expression", "cast_expression"):
        at, above = above, above.parent
    if above is None:
        return False
    if above.type == "binary_expression":
        left, right = above.child_by_field_name("left"), above.child_by_field_name("right")
        sign, other = operator(above), "" if right is None else text(right)
        if left == at and name == "threadIdx.x" and (sign, other) == ("==", "0"):
            return True
        if left == at and name == "threadIdx.x" and (sign, other) in (("%", "32"), ("&", "31"), ("%", "warpSize")):
            return True
        if left == at and (sign, other) in (("/", "32"), (">>", "5"), ("/", "warpSize")):
            return all(_of_warps(kernel, one, name) for one in _meanings(kernel, above))
    if above.type == "unary_expression" and name == "threadIdx.x":
        return text(above).startswith("!")
    return False


def _meanings(kernel: Kernel, node: Node) -> Iterator[Node]:
    """Where the value of `node` is used: itself, or the uses of the variable that it is the value of."""
    above = node.parent
    while above is not None and above.type in ("parenthesized_expression", "cast_expression"):
        above = above.parent
    if above is None or above.type != "init_declarator":
        yield node
        return
    name = above.child_by_field_name("declarator")
    scope: Node | None = above
    while scope is not None and scope.type != "compound_statement":
        scope = scope.parent
    assert name is not None and scope is not None
    for one in walk(scope):
        if one.type == "identifier" and text(one) == text(name) and _place(one) != _place(name):
            yield one


def _of_warps(kernel: Kernel, use: Node, name: str) -> bool:
    """Whether a warp's number is only an index or compared with 0, or the number of warps only a bound."""
    at, above = use, use.parent
    while above is not None and above.type == "parenthesized_expression":
        at, above = above, above.parent
    if above is None:
        return False
    if name == "threadIdx.x":
        if above.type == "subscript_argument_list":
            array = None if above.parent is None else above.parent.child_by_field_name("argument")
            return array is not None and text(array) in _shared_arrays(kernel)
        return above.type == "binary_expression" and operator(above) in ("==", "!=") and text(above).endswith(" 0")
    right = above.child_by_field_name("right")
    return above.type == "binary_expression" and operator(above) == "<" and right == at
