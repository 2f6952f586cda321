"""How a file launches its kernel: the grid, and what the kernel's arguments are there, in terms of sizes.

The host's function is followed with symbols for its arrays and numbers. Owns which of these become sizes of the task:
dimensions of arrays, and numbers that the caller gives.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.triton.source import (
    Kernel,
    Module,
    Symbol,
    Unknown,
    called_name,
    defaults_of,
    is_jit,
    names_in,
    symbolic,
    unknown,
)

_SHAPED = re.compile(r"\.shape(\[-?\d+\])+$|\.numel\(\)$|^len\(\w+\)$")
_STRIDE = re.compile(r"(.+)\.stride\((-?\d+)\)")
_MADE = re.compile(r"(?:new_)?(?:empty|zeros|ones|full)|\w+_like")
"""Functions that make an array."""
_BUILT_IN = {name: symbolic(name, getattr(builtins, name)) for name in ("min", "max", "len")}
_EQUAL: dict[type, ast.cmpop] = {ast.Is: ast.Eq(), ast.IsNot: ast.NotEq()}


class Launch:
    """The first call of a kernel in its file, if there is one. nodes: expressions by argument or option; given: their
    values, as far as the host tells them without sizes; names: of sizes, by the host's expressions for them; sizes: of
    these the sizes that are not arguments of the kernel, with these expressions."""

    def __init__(self, kernel: Kernel) -> None:
        self.names, self.sizes, self._doubtful = dict[str, str](), dict[str, str](), set[str]()
        self._variables, self._dtypes = dict[str, str](), dict[str, str]()
        self._module, call, self._grid, host = _call_of(kernel)
        self._way = {one for one in ast.walk(host) if isinstance(one, ast.stmt) and call in ast.walk(one)}
        self.nodes = dict(zip(kernel.parameters, _unpacked(call.args), strict=False))
        self.nodes |= {word.arg: word.value for word in call.keywords if word.arg and word.arg != "grid"}
        self._body, self._passed = host.body, dict[str, ast.expr | None]()
        if isinstance(host, ast.FunctionDef):
            for one in ast.walk(host):
                if isinstance(one, ast.Compare):
                    # Whether a caller passes an argument is unknown, as its value is.
                    one.ops = [_EQUAL.get(type(sign), sign) for sign in one.ops]
            named = [one.arg for one in ast.walk(host.args) if isinstance(one, ast.arg)]
            self._passed = {**dict.fromkeys(named), **defaults_of(host.args)}
        self.given = self._values(self._scope({}))
        # Where a caller may pass nothing in place of an array, it has strides if something is passed.
        scope = self._scope({name: Symbol(name) for name in self._passed})
        self._strides = {name: self._value(node, scope, None) for name, node in self.nodes.items()}

    def _scope(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """The host's variables where it calls the kernel; of several possible assignments the last counts. known:
        values by expression."""
        scope: dict[str, Any] = {**_BUILT_IN, **known}
        for name, default in self._passed.items():
            symbol = Symbol(name, known)
            scope[name] = known.get(name, symbol if default is None else self._value(default, {}, symbol))
        self._follow(self._body, scope, known)
        return scope

    def _follow(self, body: Sequence[ast.stmt], scope: dict[str, Any], known: Mapping[str, Any]) -> None:
        bound: list[tuple[str, ast.expr]]
        for one in body:
            bound = []
            match one:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    is_array = name in names_in(value) and isinstance(scope.get(name), Symbol)
                    bound = [] if is_array else [(name, value)]
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    parts = zip(targets, _parts(value, targets), strict=True)
                    bound = [(target.id, part) for target, part in parts if isinstance(target, ast.Name)]
                case ast.FunctionDef():
                    self._value(one, scope, None)
                case ast.If(test=test, body=inside, orelse=other):
                    try:
                        decided = [inside if self._module.evaluate(test, scope) else other]
                    except Unknown:
                        decided = []
                    ways, before = self._towards([inside, other]) or decided or [other, inside], dict(scope)
                    for way in ways:
                        self._follow(way, scope, known)
                    if len(ways) > 1:
                        changed = {name for name, value in scope.items() if before.get(name) is not value}
                        self._doubtful |= {name for name in changed if isinstance(scope[name], int | float)}
                case ast.Try(body=inside, handlers=handlers):
                    self._follow(inside, scope, known)
                    for way in self._towards([handler.body for handler in handlers]):
                        self._follow(way, scope, known)
                case ast.With(body=inside):
                    self._follow(inside, scope, known)
            for name, value in bound:
                found = self._value(value, scope, Symbol(name, known))
                if isinstance(value, ast.Call) and _MADE.fullmatch(called_name(value)):
                    # Arrays that are made alike are several.
                    found = Symbol(name, known)
                    for word in (one for one in value.keywords if one.arg == "dtype"):
                        self._dtypes[name] = str(self._value(word.value, scope, ""))
                scope[name] = known.get(name, found)
                if isinstance(found, Symbol) and found.name != name:
                    self._variables[found.name] = name
            if one in self._way:
                return

    def _towards(self, ways: Sequence[list[ast.stmt]]) -> list[list[ast.stmt]]:
        """The one of `ways` on which the call lies, if it lies on one."""
        return [way for way in ways if not self._way.isdisjoint(way)]

    def _value(self, node: ast.expr | ast.FunctionDef, scope: dict[str, Any], otherwise: Any) -> Any:
        try:
            return self._module.evaluate(node, scope)
        except Unknown:
            # Of two ways the first one counts that is a size, as of statements.
            first = self._value(node.body, scope, None) if isinstance(node, ast.IfExp) else None
            return first if isinstance(first, Symbol) else otherwise

    def _values(self, scope: dict[str, Any]) -> dict[str, Any]:
        found = {name: self._value(node, scope, Symbol("")) for name, node in self.nodes.items()}
        return {name: value.value if isinstance(value, Enum) else value for name, value in found.items()}

    def at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The known values that the call passes, where sizes and arguments that became sizes are `sizes`."""
        known = {text: sizes[name] for text, name in self.names.items() if name in sizes}
        found = self._values(self._scope(known))
        return {name: value for name, value in found.items() if not unknown(value)}

    def name(self, argument: str) -> None:
        """The value that the call passes for `argument` is a size of this name from now on."""
        node, value = self.nodes.get(argument), self.given.get(argument)
        for text in (node.id if isinstance(node, ast.Name) else "", value.name if isinstance(value, Symbol) else ""):
            if text:
                self.names.setdefault(text, argument)

    def doubts(self, argument: str) -> bool:
        """Whether the value that the call passes is a variable's that has it under a condition that is not known."""
        return argument in self.nodes and not self._doubtful.isdisjoint(names_in(self.nodes[argument]))

    def shaped(self, argument: str) -> bool:
        """Whether the value that the call passes is a size: a dimension of an array, or a number of elements."""
        value = self.given.get(argument)
        return isinstance(value, Symbol) and _SHAPED.search(value.name) is not None

    def expression(self, argument: str) -> str | None:
        """The value that the call passes, in terms of sizes, also of new sizes; None where it is not known."""
        try:
            return ast.unparse(self._in_sizes([self.given[argument]])[0])
        except Unknown:
            return None

    def stride(self, argument: str) -> tuple[str, int] | None:
        """The array and the dimension whose stride the call passes for `argument`."""
        found = _STRIDE.fullmatch(str(self._strides.get(argument)))
        arrays = {str(value): name for name, value in self._strides.items()}
        return (arrays[found[1]], int(found[2])) if found and found[1] in arrays else None

    def dtype(self, argument: str) -> str | None:
        """The type, as PyTorch names it, with which the host makes the array that the call passes, where it says so."""
        found = self._dtypes.get(str(self._strides.get(argument)), "")
        return found.removeprefix("tl.").replace("e4m3fn", "e4m3") or None

    def dimensions(self) -> tuple[str, ...]:
        """The grid. Raises `Unknown`."""
        if self._grid is None:
            raise Unknown("no launch in the file tells it")
        # A block's size has a name in the grid, whatever the host makes of it.
        scope = self._scope({name: Symbol(name) for name in self.names if name.isidentifier()})
        found = self._module.evaluate(self._grid, scope)
        if callable(found) and not isinstance(found, Symbol):
            call = ast.Call(self._grid, [ast.Name("META", ast.Load())], [])
            found = self._module.evaluate(call, {**scope, "META": Symbol("META")})
        return tuple(map(ast.unparse, self._in_sizes(axes_of(found))))

    def _in_sizes(self, values: Sequence[Any]) -> list[Any]:
        """Expressions of the host in terms of sizes. Raises `Unknown`."""
        names = {ast.unparse(ast.parse(text)): name for text, name in self.names.items()}
        return [self._named(ast.parse(str(one), mode="eval").body, names) for one in values]

    def _named(self, node: Any, names: dict[str, str]) -> Any:
        """An expression of the host in terms of sizes, of which it may make new ones. Raises `Unknown`."""
        text = ast.unparse(node)
        match node:
            case ast.Subscript(value=ast.Name("META"), slice=ast.Constant(str() as key)):
                return ast.Name(key)
            case ast.expr() if text in names:
                return ast.Name(names[text])
            case ast.BinOp(left, operator, right):
                return ast.BinOp(self._named(left, names), operator, self._named(right, names))
            case ast.Call(ast.Name("ceil_div" | "min" | "max" | "ceil") as function, given):
                return ast.Call(function, [self._named(one, names) for one in given], [])
            case ast.UnaryOp(operator, operand):
                return ast.UnaryOp(operator, self._named(operand, names))
            case ast.Constant():
                return node
            case ast.Name() | ast.Subscript() | ast.Call() if text in self._passed or _SHAPED.search(text):
                called = self._variables.get(text, text)
                called = text if called == "_" else called
                names[text] = re.sub(r"\W+", "_", called.replace(".shape", "")).strip("_")
                self.sizes[names[text]], self.names[text] = called, names[text]
                return ast.Name(names[text])
        raise Unknown(f"`{text}` is not known")


def _unpacked(arguments: Sequence[ast.expr]) -> list[ast.expr]:
    """The arguments of a call one by one, of a tuple too; where it is passed in one case alone, those of this case."""
    found = list[ast.expr]()
    for one in arguments:
        inner = one.value.body if isinstance(one, ast.Starred) and isinstance(one.value, ast.IfExp) else one
        inner = inner.value if isinstance(inner, ast.Starred) else inner
        if isinstance(one, ast.Starred) and not isinstance(inner, ast.Tuple):
            break  # of any length
        found += inner.elts if isinstance(one, ast.Starred) and isinstance(inner, ast.Tuple) else [one]
    return found


def axes_of(grid: Any) -> list[str]:
    """The extents of a grid as expressions; trailing extents of 1 are left out. Raises `Unknown`."""
    axes = list(grid) if isinstance(grid, tuple | list) else [grid]
    if wrong := [one for one in axes if not isinstance(one, int | str | Symbol)]:
        raise Unknown(f"`{wrong[0]}` is not a number of blocks")
    texts = list(map(str, axes))
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    return texts


def _call_of(kernel: Kernel) -> tuple[Module, ast.Call, ast.expr | None, ast.FunctionDef | ast.Module]:
    """The first call of the kernel in its file, else in another that imports it; its grid, and the function around it;
    an empty one where there is none. Raises `SourceError` where kernels call it and nothing launches it."""
    callers = dict[str, None]()
    for module in itertools.chain([kernel.module], kernel.module.users(kernel.name)):
        functions = [one for one in ast.walk(module.tree) if isinstance(one, ast.FunctionDef)]
        hosts: list[ast.FunctionDef | ast.Module] = [*reversed(functions), module.tree]
        for host in hosts:
            # `launched = one_kernel if flag else another` is the kernel too.
            names = {kernel.name}
            for node in ast.walk(host):
                match node:
                    case ast.Assign([ast.Name(name)], ast.Name() | ast.IfExp() as value):
                        names |= {name} if kernel.name in names_in(value) else set()
            for node in ast.walk(host):
                match node:
                    case ast.Call(func=ast.Subscript(value=ast.Name(id=called), slice=grid)) if called in names:
                        return module, node, grid, host
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=called), attr="warmup")) if called in names:
                        # Its own grid tells nothing.
                        return module, node, None, host
                    case ast.Call(func=ast.Name(id=called)) if called in names and isinstance(host, ast.FunctionDef):
                        callers |= {host.name: None} if any(map(is_jit, host.decorator_list)) else {}
    if callers:
        why = f"a part of {', '.join(callers)}, and nothing launches it"
        raise SourceError(f"{kernel.module.path}: {kernel.name} is {why}: draft the kernel that has it.")
    return kernel.module, ast.Call(ast.Name(kernel.name), [], []), None, ast.Module([], [])


def _parts(value: ast.expr, targets: Sequence[ast.expr]) -> list[ast.expr]:
    """The part of a value that each variable of a tuple gets; behind one that takes the rest, counted from the end."""
    if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
        return value.elts
    rest = next((at for at, one in enumerate(targets) if isinstance(one, ast.Starred)), len(targets))
    places = [at if at < rest else at - len(targets) for at in range(len(targets))]
    return [ast.Subscript(value, ast.Constant(at), ast.Load()) for at in places]
