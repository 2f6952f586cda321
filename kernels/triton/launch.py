"""How a file launches its kernel: the grid, and what the kernel's arguments are there, in terms of sizes.

Owns which of the host's variables become sizes of the task: variables that come from shapes or from the caller.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunesmith.kernels.triton.source import Kernel, Module, Unknown, called_name, defaults_of, names_in

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_SHAPED = re.compile(r"\.shape(\[-?\d+\])+$|\.size\(-?\d+\)$|\.numel\(\)$|\.shape$|^len\(\w+\)$")


@dataclass(slots=True)
class Launch:
    """A call of the kernel. given: expressions of the host by argument or option; definitions: of the host's variables
    (a variable that is assigned in several ways has the last); defaults: of the host's own arguments; sizes: further
    ones, by name with the host's expression; names: of sizes, by the host's expressions for them; open: whether the
    call passes more by `**`."""

    module: Module
    grid: ast.expr | None = None
    given: dict[str, ast.expr] = field(default_factory=dict)
    definitions: dict[str, ast.expr] = field(default_factory=dict)
    defaults: dict[str, ast.expr | None] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    open: bool = False

    def name(self, argument: str) -> None:
        """What the call passes for `argument` is a size of this name from now on."""
        for text in (self.given[argument], self._followed(self.given[argument])) if argument in self.given else ():
            if not isinstance(text, ast.Constant):
                self.names.setdefault(ast.unparse(text), argument)

    def _followed(self, node: ast.expr) -> ast.expr:
        seen = set[str]()
        while isinstance(node, ast.Name) and node.id in self.definitions and node.id not in seen:
            seen.add(node.id)
            node = self.definitions[node.id]
        return node

    def expression(self, node: ast.expr, meta: str = "") -> str:
        """The host's expression as one of the task; meta: the name of a grid's parameter. Raises `Unknown`."""
        text = ast.unparse(node)
        if text in self.names:
            return self.names[text]
        match node:
            case ast.Constant(value=int() as value):
                return str(value)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)) if name == meta:
                return key
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
                sign = ast.unparse(ast.BinOp(ast.Name("a"), op, ast.Name("b")))[1:-1]
                return f"({self.expression(left, meta)}{sign}{self.expression(right, meta)})"
            case ast.Call(args=args) if called_name(node) in ("cdiv", "ceil_div") and len(args) == 2:
                return f"ceil_div({self.expression(args[0], meta)}, {self.expression(args[1], meta)})"
            case ast.Call(args=args) if called_name(node) in ("max", "min") and len(args) > 1:
                return f"{called_name(node)}({', '.join(self.expression(one, meta) for one in args)})"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.expression(body if self.evaluate(test, {}) else orelse, meta)
            case ast.Call(args=[one]) if called_name(node) == "int":
                return self.expression(one, meta)
            case ast.Name(id=name):
                inner = self._followed(node)
                shaped = isinstance(inner, ast.Subscript | ast.Call) and _SHAPED.search(ast.unparse(inner))
                if name in self.definitions and not shaped:
                    return self._within(name, inner, meta)
                if name in self.definitions or name in self.defaults:
                    return self._size(name, text)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant()):
                return self._size(f"{name}_{ast.literal_eval(node.slice)}", text)
            case ast.Attribute() | ast.Subscript() | ast.Call():
                constant = self.evaluate(node, {})
                if isinstance(constant, int):
                    return str(constant)
        raise Unknown(f"`{text}` is not known")

    def shaped(self, argument: str) -> bool:
        """Whether what the call passes is a size: a dimension of an array, or a number of elements."""
        found = self._followed(self.given.get(argument, ast.Constant(None)))
        if isinstance(found, ast.Subscript):
            found = ast.Subscript(self._followed(found.value), found.slice, ast.Load())
        return isinstance(found, ast.Subscript | ast.Call) and _SHAPED.search(ast.unparse(found)) is not None

    def _within(self, name: str, node: ast.expr, meta: str) -> str:
        """The expression of a variable's definition, in which the variable itself has none."""
        own = self.definitions.pop(name)
        try:
            return self.expression(node, meta)
        finally:
            self.definitions[name] = own

    def _size(self, name: str, text: str) -> str:
        self.sizes[name] = text
        self.names[text] = name
        return name

    def dimensions(self) -> tuple[tuple[str, ...], str]:
        """The grid, and why it is not known, else nothing."""
        node, meta = self.grid, ""
        if isinstance(node, ast.Name):
            node = self._followed(node)
        if isinstance(node, ast.Lambda):
            meta = node.args.args[0].arg if node.args.args else ""
            node = node.body
        if not isinstance(node, ast.Tuple | ast.List):
            node = ast.Tuple([node]) if node is not None else None
        if node is None:
            return (), "no launch in the file tells it"
        try:
            found = [self.expression(one, meta) for one in node.elts]
        except Unknown as error:
            return (), str(error)
        while len(found) > 1 and found[-1] == "1":
            found.pop()
        return tuple(ast.unparse(ast.parse(one, mode="eval")) for one in found), ""

    def stride(self, argument: str) -> tuple[str, int] | None:
        """The array and the dimension whose stride the call passes for `argument`."""
        node = self.given.get(argument)
        node = node.body if isinstance(node, ast.IfExp) else self._followed(node) if node is not None else None
        if (
            isinstance(node, ast.Call)
            and called_name(node) == "stride"
            and isinstance(node.func, ast.Attribute)
            and node.args
        ):
            arrays = {ast.unparse(one): name for name, one in self.given.items()}
            array, axis = arrays.get(ast.unparse(node.func.value)), ast.unparse(node.args[0])
            return (array, int(axis)) if array and axis.lstrip("-").isdigit() else None
        return None

    def evaluate(self, node: ast.expr, sizes: Mapping[str, int]) -> Any:
        """The value of a host's expression where sizes, and arguments that became sizes, are `sizes`."""
        return self.module.evaluate(_Resolved(self, sizes).visit(copy.deepcopy(node)))


class _Resolved(ast.NodeTransformer):
    """Replaces what has a name as a size by its value, and the host's variables by their definitions."""

    def __init__(self, launch: Launch, sizes: Mapping[str, int], depth: int = 0) -> None:
        self._launch, self._sizes, self._depth = launch, sizes, depth

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            name = self._launch.names.get(ast.unparse(node), "")
            if name in self._sizes:
                return ast.copy_location(ast.Constant(self._sizes[name]), node)
            if called_name(node) == "element_size":
                return ast.Constant(4)
        if isinstance(node, ast.Name) and self._depth < 6:
            found = self._launch.definitions.get(node.id) or self._launch.defaults.get(node.id)
            if found is not None:
                return _Resolved(self._launch, self._sizes, self._depth + 1).visit(copy.deepcopy(found))
        return self.generic_visit(node)


def find_launch(kernel: Kernel) -> Launch:
    """The first call of the kernel in its file; an empty one where there is none."""
    module = kernel.module
    functions = [one for one in ast.walk(module.tree) if isinstance(one, ast.FunctionDef)]
    hosts: list[ast.FunctionDef | ast.Module] = [*reversed(functions), module.tree]
    for host in hosts:
        for node in ast.walk(host):
            grid = _grid_of(node, kernel.name)
            if grid is None or not isinstance(node, ast.Call):
                continue
            given = dict(zip((one.arg for one in kernel.parameters), node.args, strict=False))
            given |= {word.arg: word.value for word in node.keywords if word.arg and word.arg != "grid"}
            launch = Launch(module, None if isinstance(grid, ast.Constant) else grid, given)
            launch.open = any(word.arg is None for word in node.keywords)
            if isinstance(host, ast.FunctionDef):
                named = [one.arg for one in ast.walk(host.args) if isinstance(one, ast.arg)]
                launch.defaults = {**dict.fromkeys(named), **defaults_of(host.args)}
            _define(launch, host.body)
            return launch
    return Launch(module)


def _grid_of(node: ast.AST, name: str) -> ast.expr | None:
    """The grid of a call `name[grid](...)`; a constant for `name.warmup(...)`, whose own tells nothing."""
    match node:
        case ast.Call(func=ast.Subscript(value=ast.Name(id=called), slice=grid)) if called == name:
            return grid
        case ast.Call(func=ast.Attribute(value=ast.Name(id=called), attr="warmup")) if called == name:
            return ast.Constant(None)
    return None


def _define(launch: Launch, body: list[ast.stmt]) -> None:
    for one in body:
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name not in names_in(value):
                    launch.definitions[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                parts = _parts(value, len(targets))
                for target, part in zip(targets, parts, strict=True):
                    if isinstance(target, ast.Name):
                        launch.definitions[target.id] = part
            case ast.FunctionDef(name=name, args=args, body=[*_, ast.Return(value=ast.expr() as value)]):
                launch.definitions[name] = ast.Lambda(args, value)
            case ast.If(test=test, body=inside, orelse=other):
                try:
                    _define(launch, inside if launch.evaluate(test, {}) else other)
                except Unknown:
                    _define(launch, other)
                    _define(launch, inside)
            case ast.With(body=inside) | ast.Try(body=inside):
                _define(launch, inside)


def _parts(value: ast.expr, count: int) -> list[ast.expr]:
    """What each of `count` variables gets of a value; of `*x.shape` among others what is left."""
    listed = value.elts if isinstance(value, ast.Tuple) else [ast.Starred(value)]
    found = list[ast.expr]()
    for one in listed:
        if isinstance(one, ast.Starred):
            more = range(count - len(listed) + 1)
            found += [ast.Subscript(one.value, ast.Constant(at), ast.Load()) for at in more]
        else:
            found.append(one)
    return found[:count] + [ast.Constant(None)] * (count - len(found))
