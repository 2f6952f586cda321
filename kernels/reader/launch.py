"""The launch with which host code starts a kernel, as expressions of the task's sizes.

Owns reading `kernel<<<grid, block, bytes>>>(...)` (CUDA C++ Programming Guide, "Execution Configuration") and
`cudaLaunchKernel`: locals and constants of the host are followed to what they are computed from. What the kernel takes as a
parameter has the parameter's name, and a parameter of the host's function is a size of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.kernels.reader.parse import FUNCTIONS, Entry, Unit, body, constant, kind, walk
from tunesmith.kernels.reader.tree import Node, key, lower
from tunesmith.kernels.spec.expression import FUNCTIONS as TASK_FUNCTIONS
from tunesmith.kernels.spec.expression import ExpressionError, parse

Dims = tuple[str | None, ...]
MAX_DEPTH = 12
"""Variables and functions of the host that an expression may go through."""


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """grid, block: by axis, None where an extent cannot be said in sizes; shared: bytes of dynamic shared memory; sizes:
    what no parameter of the kernel says; written: as the source has it."""

    grid: Dims
    block: Dims
    shared: str | None
    sizes: tuple[str, ...]
    written: str


def launches(unit: Unit, entry: Entry) -> list[HostLaunch]:
    """Each different launch of the kernel in the source."""
    found: dict[tuple[Dims, Dims, str | None], HostLaunch] = {}
    for function in unit.declarations():
        if kind(function) in FUNCTIONS or kind(function) in ("CLASS_DECL", "STRUCT_DECL", "CXX_METHOD"):
            for call, grid, block, shared, given in _calls(function, entry):
                host = _Host(function, entry, given)
                one = HostLaunch(
                    host.dims(grid),
                    host.dims(block),
                    "0" if shared is None else host.text(shared),
                    (),
                    unit.written(call),
                )
                written = ", ".join(unit.written(at.cursor) for at in (grid, block))
                found.setdefault(
                    (one.grid, one.block, one.shared),
                    HostLaunch(one.grid, one.block, one.shared, tuple(host.sizes), " ".join(written.split())),
                )
    return list(found.values())


def _calls(function: Any, entry: Entry) -> Iterator[tuple[Any, Node, Node, Node | None, list[Node]]]:
    """The launches in a function: the call, grid, block, bytes of shared memory, arguments."""
    place = entry.declared.location
    for call in walk(function):
        if kind(call) != "CALL_EXPR":
            continue
        kids = list(call.get_children())
        if call.spelling == "cudaLaunchKernel" and len(kids) > 4:
            if any(one.referenced is not None and one.referenced.location == place for one in walk(kids[1])):
                shared = kids[5] if len(kids) > 5 and constant(kids[5]) != 0 else None
                yield call, lower(kids[2]), lower(kids[3]), None if shared is None else lower(shared), _pointed(kids[4])
        elif (
            len(kids) > 1
            and kind(kids[1]) == "CALL_EXPR"
            and kids[1].spelling in ("cudaConfigureCall", "__cudaPushCallConfiguration")
        ):
            target = kids[0].referenced
            named = (
                target is not None
                and target.spelling == entry.name
                and (kind(target) == "OVERLOADED_DECL_REF" or target.location == place)
            )
            if named or call.spelling == entry.name or entry.name in {one.spelling for one in walk(kids[0])}:
                grid, block, *more = (lower(one) for one in kids[1].get_arguments())
                shared_ = (
                    more[0] if more and constant(more[0].cursor) != 0 and more[0].cursor.extent.start.offset else None
                )
                yield call, grid, block, shared_, [lower(one) for one in kids[2:]]


def _pointed(cursor: Any) -> list[Node]:
    """The arguments in an array of pointers to them."""
    for one in walk(cursor):
        declared = one.referenced if kind(one) == "DECL_REF_EXPR" else None
        if declared is not None and kind(declared) == "VAR_DECL":
            lists = [at for at in walk(declared) if kind(at) == "INIT_LIST_EXPR"]
            if lists:
                return [_unwrapped(lower(at)) for at in lists[0].get_children()]
    return []


def _unwrapped(node: Node) -> Node:
    while len(node.kids) == 1 and (node.what == "UNEXPOSED_EXPR" or node.what.endswith("CAST_EXPR") or node.op == "&"):
        node = node.kids[0]
    return node


class _Host:
    """A function of the host that launches the kernel with some arguments."""

    def __init__(self, function: Any, entry: Entry, given: list[Node]) -> None:
        self.sizes: list[str] = []
        self._set: dict[str, list[Node]] = {}
        self._axes: dict[tuple[str, str], list[Node]] = {}
        self._own: dict[str, str] = {}
        self._parameters = {key(one): one.spelling for one in function.get_arguments() or ()}
        if kind(function) == "FUNCTION_TEMPLATE":
            self._parameters = {key(one): one.spelling for one in function.get_children() if kind(one) == "PARM_DECL"}
        self._taken = {one.spelling for one in entry.function.get_arguments()}
        for parameter, argument in zip(entry.function.get_arguments(), given, strict=False):
            inner = _unwrapped(argument)
            if inner.what == "DECL_REF_EXPR" and parameter.type.get_canonical().kind.name in (
                "INT",
                "UINT",
                "LONG",
                "ULONG",
                "LONGLONG",
                "ULONGLONG",
                "SHORT",
                "USHORT",
            ):
                self._own.setdefault(inner.target, parameter.spelling)
        inside = body(function)
        for one in walk(inside) if inside is not None else ():
            if kind(one) == "VAR_DECL":
                made = lower(one)
                self._set.setdefault(made.target, []).extend(made.kids)
            elif kind(one) in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR", "UNARY_OPERATOR"):
                self._assigned(lower(one))

    def _assigned(self, node: Node) -> None:
        if not (node.op.endswith("=") and node.op not in ("==", "!=", "<=", ">=")) and not node.op.startswith(
            ("++", "--")
        ):
            return
        target = _unwrapped(node.kids[0])
        value = node.kids[-1] if node.op == "=" else node
        if target.what == "MEMBER_REF_EXPR" and target.kids:
            inner = _unwrapped(target.kids[0])
            self._axes.setdefault((inner.target, target.name), []).append(value)
        elif target.what == "DECL_REF_EXPR":
            self._set.setdefault(target.target, []).append(value)

    def dims(self, node: Node, depth: int = 0) -> Dims:
        """The extents of a grid or a block."""
        node = _unwrapped(node)
        while (
            node.what == "CALL_EXPR"
            and node.kind.spelling.endswith("dim3")
            and len(node.kids) == 1
            and _unwrapped(node.kids[0]).kind.spelling.endswith("dim3")
        ):
            node = _unwrapped(node.kids[0])
        if node.what in ("CALL_EXPR", "INIT_LIST_EXPR") and node.kind.spelling.endswith("dim3"):
            given = [one for one in node.kids if one.cursor.extent.start.offset or one.kids]
            found = [self.text(one) for one in given]
            while len(found) > 1 and found[-1] == "1":
                found.pop()
            return tuple(found) or ("1",)
        if node.what == "DECL_REF_EXPR" and node.kind.spelling.endswith("dim3") and depth < MAX_DEPTH:
            made = self._set.get(node.target) or self._outside(node)
            single = self.dims(made[0], depth + 1) if len(made) == 1 else ((None,) if made else ("1",))
            extents = [*single, "1", "1"][:3]
            for at, axis in enumerate("xyz"):
                changed = self._axes.get((node.target, axis))
                if changed:
                    extents[at] = self.text(changed[0]) if len(changed) == 1 else None
            while len(extents) > 1 and extents[-1] == "1":
                extents.pop()
            return tuple(extents)
        return (self.text(node),)

    @staticmethod
    def _outside(node: Node) -> list[Node]:
        declared = node.cursor.referenced
        return lower(declared).kids if declared is not None and kind(declared) == "VAR_DECL" else []

    def text(self, node: Node, depth: int = 0, names: Mapping[str, Node] | None = None) -> str | None:
        """An expression of sizes; None where there is none."""
        found = self._text(_unwrapped(node), depth, names or {})
        if found is None:
            return None
        try:
            read = parse(found)
            return found if read.names else str(int(read.evaluate({})))
        except (ExpressionError, ValueError, OverflowError):
            return None

    def _text(self, node: Node, depth: int, names: Mapping[str, Node]) -> str | None:
        if depth > MAX_DEPTH:
            return None
        if node.value is not None:
            return repr(node.value) if isinstance(node.value, float) else str(int(node.value))
        if node.what == "DECL_REF_EXPR":
            return self._named(node, depth, names)
        if node.what == "MEMBER_REF_EXPR" and node.kids and node.name in ("x", "y", "z"):
            extents = self.dims(node.kids[0], depth + 1)
            at = "xyz".index(node.name)
            return extents[at] if at < len(extents) else "1"
        if node.what == "BINARY_OPERATOR" and node.op in (
            "+",
            "-",
            "*",
            "/",
            "%",
            "<<",
            ">>",
            "<",
            ">",
            "<=",
            ">=",
            "==",
            "!=",
        ):
            left, right = (self.text(one, depth + 1, names) for one in (node.kids[0], node.kids[-1]))
            return None if left is None or right is None else self._operation(node, left, right)
        if node.what == "CONDITIONAL_OPERATOR":
            parts = [self.text(one, depth + 1, names) for one in node.kids]
            return None if None in parts else f"({parts[1]} if {parts[0]} else {parts[2]})"
        if node.what == "UNARY_OPERATOR" and node.op == "-":
            inner = self.text(node.kids[0], depth + 1, names)
            return None if inner is None else f"(-{inner})"
        if node.what == "CALL_EXPR" or (node.what == "UNEXPOSED_EXPR" and len(node.kids) > 1):
            return self._called(node, depth, names)
        value = constant(node.cursor)
        return str(int(value)) if value is not None and value == int(value) else None

    @staticmethod
    def _operation(node: Node, left: str, right: str) -> str:
        a, b = (f"({one})" if " " in one and not one.startswith("ceil_div") else one for one in (left, right))
        if node.op != "/":
            text = {"<<": f"{a} * 2**{b}", ">>": f"{a} // 2**{b}"}.get(node.op)
            if text is None:
                text = f"{left if node.op in '+-' else a} {node.op} {b if node.op not in '+' else right}"
            return text
        if node.kind.what == "float":
            return f"{a} / {b}"
        # (n + BLOCK - 1) / BLOCK, however it is written: for two numerators it is what `ceil_div` is.
        for base in _bases(left, right):
            return f"ceil_div({base}, {right})"
        return f"{a} // {b}"

    def _named(self, node: Node, depth: int, names: Mapping[str, Node]) -> str | None:
        if node.target in names:
            return self.text(names[node.target], depth + 1)
        if node.target in self._own:
            return self._own[node.target]
        made = self._set.get(node.target)
        if made is None and node.target not in self._parameters:
            made = self._outside(node)
            declared = node.cursor.referenced
            if made and declared is not None and not declared.type.is_const_qualified():
                made = []
        if made and len(made) == 1:
            found = self.text(made[0], depth + 1)
            if found is not None:
                return found
        if node.kind.what == "number" and (node.target in self._parameters or (made is not None and len(made) <= 1)):
            name = node.name if node.name not in self._taken and node.name not in TASK_FUNCTIONS else f"{node.name}_"
            if name not in self.sizes:
                self.sizes.append(name)
            return name
        return None

    def _called(self, node: Node, depth: int, names: Mapping[str, Node]) -> str | None:
        target = node.cursor.referenced
        given = [
            one
            for one in node.kids
            if not (
                (_unwrapped(one).what == "DECL_REF_EXPR"
                and _unwrapped(one).kind.what == "void")
                or _unwrapped(one).target == node.target
            )
        ]
        parts = [self.text(one, depth + 1, names) for one in given]
        name = node.name or (target.spelling if target is not None else "")
        if name in ("min", "max") and len(parts) == 2 and None not in parts:
            return f"{name}({parts[0]}, {parts[1]})"
        if name in ("ceil", "ceilf", "floor", "floorf") and len(parts) == 1 and parts[0]:
            inner = _unwrapped(given[0])
            if inner.op == "/":
                a, b = (self.text(one, depth + 1, names) for one in (inner.kids[0], inner.kids[-1]))
                b = str(int(float(b))) if b and b.replace(".", "").isdigit() and float(b) == int(float(b)) else b
                if a and b:
                    return f"ceil_div({a}, {b})" if name.startswith("ceil") else f"({a}) // {b}"
            return f"{name[:4] if name.startswith('ceil') else 'floor'}({parts[0]})"
        definition = target.get_definition() if target is not None else None
        inside = body(definition) if definition is not None and kind(definition) in FUNCTIONS else None
        statements = [] if inside is None else list(inside.get_children())
        if len(statements) == 1 and kind(statements[0]) == "RETURN_STMT":
            passed = {key(one): argument for one, argument in zip(definition.get_arguments(), given, strict=False)}
            replaced = {
                name: _Text(text, argument) for (name, argument), text in zip(passed.items(), parts, strict=False)
            }
            inner = lower(statements[0]).kids
            return self.text(inner[0], depth + 1, replaced) if inner and None not in parts else None
        return None


def _Text(text: str | None, argument: Node) -> Node:
    return argument


def _bases(numerator: str, divisor: str) -> Iterator[str]:
    """What `numerator` is one less than `divisor` more than."""
    try:
        for less in (f"{divisor} - 1", str(int(parse(divisor).evaluate({})) - 1) if divisor.isdigit() else ""):
            for end in (f" + {less}", f" + ({less})"):
                if less and numerator.endswith(end):
                    yield numerator.removesuffix(end)
        if numerator.endswith(f" + {divisor} - 1"):
            yield numerator.removesuffix(f" + {divisor} - 1")
        if numerator.endswith(" - 1") and divisor.isdigit() and numerator.endswith(f" + {divisor} - 1"):
            yield numerator.removesuffix(f" + {divisor} - 1")
        for begin in (f"{divisor} + ", f"({divisor} - 1) + ", f"{divisor} - 1 + "):
            if numerator.startswith(begin) and (begin != f"{divisor} + " or numerator.endswith(" - 1")):
                yield numerator.removeprefix(begin).removesuffix(" - 1" if begin == f"{divisor} + " else "")
        if numerator.startswith("(") and numerator.endswith(") + " + divisor):
            yield numerator[1:].removesuffix(f" - 1) + {divisor}")
    except (ExpressionError, ValueError):
        return
