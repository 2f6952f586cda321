"""The use of a Triton kernel's arguments: its loads and stores, how far they reach, and the tiles it multiplies.

The kernel's statements are followed once, helpers included. Owns no dimension that the code does not show: an offset
`row * stride + column` with `column < n` makes a column of n, and a dimension that is not seen stays unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunesmith.kernels.triton.source import called_name

_SAME = ("multiple_of", "max_contiguous", "max_constancy", "broadcast_to", "assume", "to", "cast", "advance", "load")
_MADE = ("make_block_ptr", "make_tensor_descriptor")
_PLACES = (("shape", 1), ("strides", 2))
_NUMBERS = (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)
_WHOLE, _EQUAL = (ast.FloorDiv, ast.Mod), (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Value:
    """roots: arguments of which it is a pointer; loaded: arrays whose elements it is, or is offset by; tile: its shape,
    if known; text: of a name or number; items: of a tuple; staged: the array and the loop in which it was loaded."""

    roots: tuple[str, ...] = ()
    loaded: frozenset[str] = frozenset()
    tile: tuple[str, ...] | None = None
    text: str = ""
    items: tuple[Value, ...] = ()
    staged: tuple[str, int] | None = None


@dataclass(slots=True)
class Loop:
    """A loop with products. operands: arrays and shapes of tiles that each turn loads for them; rows: of the products;
    own: it says its stages itself, or its products do not use tensor cores; turns: the constants `a, b` of a loop over
    `cdiv(a, b)`, which is left out where the quotient is one."""

    operands: dict[tuple[str, tuple[str, ...]], None] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)
    own: bool = False
    turns: tuple[str, ...] = ()


Dims = dict[str, str | None]
"""The dimensions of an array: extents by stride, "1" where elements lie side by side; None is not known."""


class Reading:
    """A kernel as it is read. parameters: its arguments in order; constexprs: among them; known: whether a condition
    holds, where that is known. covers: by constexpr, the argument up to which a block of its size reads at once."""

    def __init__(
        self,
        kernel: ast.FunctionDef,
        functions: Mapping[str, ast.FunctionDef],
        parameters: Sequence[str],
        known: Callable[[ast.expr], bool | None],
    ) -> None:
        self.reads, self.writes, self.atomics = set[str](), set[str](), set[str]()
        self.used, self.covers = set[str](), dict[str, str]()
        self.indices, self.tiles, self.products = set[str](), dict[str, None](), dict[tuple[str, str, str], None]()
        self.loops, self.sums = list[Loop](), dict[tuple[str, str], None]()
        self._functions, self._known = functions, known
        self.numbers = _numbers(kernel.body, _NUMBERS, (ast.Is,)) & set(parameters)
        self.whole = _numbers(kernel.body, _WHOLE, (ast.Is,)) & self.numbers
        self.counted = _numbers(kernel.body, _WHOLE, _EQUAL) & self.numbers
        given = [one for one in ast.walk(kernel.args) if isinstance(one, ast.arg)]
        self._constants = {one.arg for one in given if "constexpr" in ast.unparse(one)}
        self._parameters = set(parameters)
        self._accesses = list[tuple[str, ast.expr, ast.expr | None, dict[str, ast.expr]]]()
        self._definitions, self._inside = dict[str, ast.expr](), list[Loop]()
        self._made, self._passed = dict[str, Dims](), dict[str, ast.expr]()
        self.asserts = dict[str, None]()
        self._depth = 0
        self._run(kernel, {one: Value((one,) if one not in self.numbers else (), text=one) for one in parameters})

    @property
    def pointers(self) -> set[str]:
        return self.reads | self.writes | self.atomics

    def role(self, name: str) -> str:
        written = name in self.writes
        return "inout" if name in self.atomics or (written and name in self.reads) else "out" if written else "in"

    def _run(self, function: ast.FunctionDef, env: dict[str, Value]) -> Value:
        returned = list[Value]()
        self._body(function.body, env, returned)
        known = sorted(returned, key=lambda one: (bool(one.tile or one.items), bool(one.roots)))
        return known[-1] if known else Value()

    def _body(self, body: Sequence[ast.stmt], env: dict[str, Value], returned: list[Value]) -> None:
        for one in body:
            match one:
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self._bind(target, value, self._value(value, env), env)
                case ast.AugAssign(target=ast.Name(id=name)):
                    whole = ast.BinOp(ast.Name(name, ast.Load()), one.op, one.value)
                    env[name] = self._value(whole, env)
                    if self._depth == 0 and not self._inside and name in self._definitions | dict.fromkeys(env):
                        earlier = self._definitions.get(name, ast.Name(name, ast.Load()))
                        self._definitions[name] = ast.BinOp(earlier, one.op, one.value)
                case ast.If():
                    holds = self._known(one.test) if self._depth == 0 else None
                    self._value(one.test, env)
                    ways = [one.body, one.orelse] if holds is None else [one.body if holds else one.orelse]
                    ends = [dict(env) for _ in ways]
                    for way, end in zip(ways, ends, strict=True):
                        self._body(way, end, returned)
                    for end in reversed(ends):
                        env |= {name: v for name, v in end.items() if v.roots or v.tile or not env.get(name, v).roots}
                case ast.For():
                    self._value(one.iter, env)
                    self._bind(one.target, one.iter, Value(), env)
                    own = "num_stages" in ast.unparse(one.iter)
                    last = one.iter.args[-1] if isinstance(one.iter, ast.Call) and one.iter.args else one.iter
                    turns = tuple(map(ast.unparse, last.args)) if isinstance(last, ast.Call) else ()
                    known = called_name(last) == "cdiv" and self._depth == 0 and set(turns) <= self._constants
                    self._loop(Loop(own=own, turns=turns if known else ()), one.body, env, returned)
                case ast.While():
                    self._value(one.test, env)
                    self._loop(Loop(), one.body, env, returned)
                case ast.With():
                    self._body(one.body, env, returned)
                case ast.Return(value=ast.expr() as value):
                    returned.append(self._value(value, env))
                case ast.Expr(value=value):
                    self._value(value, env)

    def _loop(self, loop: Loop, body: Sequence[ast.stmt], env: dict[str, Value], returned: list[Value]) -> None:
        self._inside.append(loop)
        # A turn's values are read in the next turn.
        self._body(body, env, returned)
        self._body(body, env, returned)
        self._inside.pop()
        if loop.operands:
            self.loops.append(loop)

    def _bind(self, target: ast.expr, node: ast.expr, value: Value, env: dict[str, Value]) -> None:
        if isinstance(target, ast.Tuple):
            values = value.items or (Value(),) * len(target.elts)
            nodes = node.elts if isinstance(node, ast.Tuple) else [node] * len(target.elts)
            for one, its, part in zip(target.elts, nodes, values, strict=False):
                self._bind(one, its, part, env)
        elif isinstance(target, ast.Name):
            env[target.id] = replace(value, text=value.text if value.text in env or value.text.isdigit() else "")
            if self._depth == 0:
                self._definitions[target.id] = node

    def _value(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Name(id=name):
                found = env.get(name, Value(text=name))
                self.used |= {name} if self._depth == 0 and name in (found.text, *found.roots) else set()
                return found
            case ast.Constant(value=value):
                return Value(text=repr(value))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return Value(items=tuple(self._value(one, env) for one in elements))
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._value(left, env), self._value(right, env)
                roots = (a.roots or b.roots) if isinstance(op, ast.Add | ast.Sub) else ()
                return Value(roots, a.loaded | b.loaded, _broadcast(a.tile, b.tile))
            case ast.UnaryOp(operand=operand):
                return replace(self._value(operand, env), roots=(), text="")
            case ast.Compare() | ast.BoolOp():
                parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else node.values
                values = [self._value(one, env) for one in parts]
                return Value(tile=_broadcast(*(one.tile for one in values)))
            case ast.IfExp(body=body, orelse=orelse):
                a, b = self._value(body, env), self._value(orelse, env)
                return a if a.roots or a.tile else b
            case ast.Subscript(value=inner, slice=index):
                found = self._value(inner, env)
                return replace(found, tile=_indexed(found.tile, index), text="", staged=None)
            case ast.Attribute(value=inner, attr=attribute):
                found = self._value(inner, env)
                if attribute == "T":
                    return replace(found, tile=found.tile[::-1] if found.tile else None)
                return Value()
            case ast.Call():
                return self._call(node, env)
        return Value()

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        name = called_name(node)
        method = isinstance(node.func, ast.Attribute)
        itself = self._value(node.func.value, env) if isinstance(node.func, ast.Attribute) else Value()
        bound = method and not (isinstance(node.func.value, ast.Name) and itself == Value(text=node.func.value.id))  # type: ignore[attr-defined]
        given = [self._value(one, env) for one in node.args]
        named = {str(one.arg): self._value(one.value, env) for one in node.keywords}
        nodes = {str(one.arg): one.value for one in node.keywords}
        first = itself if bound else given[0] if given else named.get("base", named.get("pointer", Value()))
        at = node.args[0] if node.args and not bound else nodes.get("pointer")
        if name in self._functions and not bound and self._depth < MAX_DEPTH:
            return self._inlined(self._functions[name], node, given, named)
        if name in ("load", "gather") and first.roots:
            mask = nodes.get("mask") or (node.args[1] if len(node.args) > 1 and not bound else None)
            self._access(self.reads, first, at, mask)
            inside = (first.roots[0], id(self._inside[-1])) if self._inside else None
            return Value((), frozenset(first.roots), first.tile, staged=inside)
        if (name == "store" or name.startswith("atomic")) and first.roots:
            mask = nodes.get("mask") or (node.args[2] if len(node.args) > 2 and name == "store" else None)
            self._access(self.writes if name == "store" else self.atomics, first, at, mask)
            return Value()
        if name == "arange" and len(given) == 2:
            self.tiles |= dict.fromkeys(one for one in (given[1].text,) if one in self._parameters)
            return Value(tile=(given[1].text,) if given[0].text == "0" and given[1].text else None)
        if name in ("zeros", "full") and (given or named):
            shape = (given or [named.get("shape", Value())])[0]
            return Value(tile=_texts(shape))
        if name in _MADE:
            listed = [nodes.get(key) or (node.args[at] if len(node.args) > at else None) for key, at in _PLACES]
            self._block(first, listed[0], listed[1])
            block = named.get("block_shape") or (given[5 if name == _MADE[0] else 3] if len(given) > 3 else Value())
            self.tiles |= dict.fromkeys(one for one in _texts(block) or () if one in self._parameters)
            return Value(first.roots, tile=_texts(block))
        if name == "static_assert" and self._depth == 0:
            self.asserts[ast.unparse(node.args[0])] = None
        if name in ("dot", "dot_scaled") and len(given) > 1:
            found = self._product(given[0], given[1], ieee="ieee" in ast.unparse(node) or "allow_tf32" in nodes)
            sums = found.tile or (given[2] if len(given) > 2 else named.get("acc", Value())).tile or ()
            if len(sums) == 2 and "out_dtype" not in nodes:
                self.sums[sums[0], sums[1]] = None
            return replace(found, tile=sums or None)
        if name in ("trans", "permute") and first.tile and len(first.tile) == 2:
            return replace(first, tile=first.tile[::-1])
        if name in ("range", "static_range"):
            self.indices |= {one for value in given for one in value.loaded}
        if name == "to" and "int" in ast.unparse(node):
            self.indices |= first.loaded
        if name in _SAME:
            return replace(first, text="")
        if name in ("where", "select"):
            return next((one for one in given[1:] if one.roots), Value(tile=_broadcast(*(one.tile for one in given))))
        tiles = [one.tile for one in (*given, *([itself] if bound else ()))]
        elementwise = name not in ("sum", "max", "min", "argmax", "argmin", "reduce", "reshape", "view", "cumsum")
        return Value(loaded=first.loaded, tile=_broadcast(*tiles) if elementwise else None)

    def _inlined(
        self, function: ast.FunctionDef, node: ast.Call, given: Sequence[Value], named: Mapping[str, Value]
    ) -> Value:
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        outer, self._passed = self._passed, dict(zip(names, node.args, strict=False))
        self._passed |= {str(one.arg): one.value for one in node.keywords}
        self._depth += 1
        found = self._run(function, {**dict(zip(names, given, strict=False)), **named})
        self._depth -= 1
        self._passed = outer
        return found

    def _access(self, kind: set[str], pointer: Value, node: ast.expr | None, mask: ast.expr | None) -> None:
        kind |= set(pointer.roots)
        self.indices |= pointer.loaded
        if node is not None and self._depth == 0:
            self._accesses.append((pointer.roots[0], node, mask, dict(self._definitions)))

    def _block(self, base: Value, shape: ast.expr | None, strides: ast.expr | None) -> None:
        passed = [self._passed.get(one.id, one) if isinstance(one, ast.Name) else one for one in (shape, strides)]
        match passed:
            case [ast.Tuple(elts=extents) | ast.List(elts=extents), ast.Tuple(elts=steps) | ast.List(elts=steps)]:
                dims = self._made.setdefault(base.roots[0], {}) if base.roots else {}
                for extent, step in zip(extents, steps, strict=False):
                    dims.setdefault(ast.unparse(step), self._head(extent, self._definitions))

    def _product(self, a: Value, b: Value, *, ieee: bool) -> Value:
        if not a.tile or not b.tile or len(a.tile) != 2 or len(b.tile) != 2:
            return Value()
        if b.tile[0] != a.tile[1] == b.tile[1]:
            # Of two ways in which it is loaded, it was read in the other one.
            b = replace(b, tile=b.tile[::-1])
        assert b.tile is not None
        self.products[a.tile[0], b.tile[1], a.tile[1]] = None
        if self._inside:
            loop = self._inside[-1]
            loop.own |= ieee
            loop.rows[a.tile[0]] = None
            for one in (a, b):
                if one.staged and one.staged[1] == id(loop) and one.tile:
                    loop.operands[one.staged[0], tuple(sorted(one.tile))] = None
        return Value(tile=(a.tile[0], b.tile[1]))

    def dims(self, root: str) -> Dims:
        """The dimensions of an array that its accesses show."""
        found = dict(self._made.get(root, {}))
        for one, pointer, mask, definitions in self._accesses:
            for index, stride in self._terms(pointer, definitions, frozenset()) if one == root else ():
                if stride not in self.tiles:
                    found[stride] = found.get(stride) or self._extent(index, mask, definitions)
        return found

    def _terms(
        self, node: ast.expr, definitions: Mapping[str, ast.expr], seen: frozenset[str]
    ) -> list[tuple[ast.expr, str]]:
        """Indices with their strides in a sum that begins at a pointer."""
        node = _stripped(node)
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self._terms(left, definitions, seen), *self._terms(right, definitions, seen)]
            case ast.Name(id=name):
                inner = definitions.get(name) if name not in seen else None
                plain = _stripped(inner)
                summed = isinstance(plain, ast.BinOp) and "arange" not in ast.unparse(plain)
                if inner is not None and (summed or name in self._parameters or isinstance(plain, ast.Name)):
                    return self._terms(inner, definitions, seen | {name})
                if name in self._parameters:
                    return []
        factors = _factors(node)
        strides = [one for one in factors if _names(one) <= self._parameters]
        if strides and len(factors) == len(strides) + 1:
            index = next(one for one in factors if one not in strides)
            return [(index, " * ".join(map(ast.unparse, strides)))]
        if len(factors) > 1:
            return [(node, "?")]
        return [] if isinstance(node, ast.Constant) else [(node, "1")]

    def _extent(self, index: ast.expr, mask: ast.expr | None, definitions: Mapping[str, ast.expr]) -> str | None:
        index = _stripped(index)
        made = definitions.get(index.id) if isinstance(index, ast.Name) else index
        for bound in _bounds(mask, definitions, ast.unparse(index)):
            if head := self._head(bound, definitions):
                if isinstance(made, ast.Call) and called_name(made) == "arange" and isinstance(bound, ast.Name):
                    self.covers.setdefault(ast.unparse(made.args[1]), head)
                return head
        node, count = index, 0
        while isinstance(node, ast.Name) and node.id in definitions and count < MAX_DEPTH:
            node, count = _stripped(definitions[node.id]), count + 1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._head(node.right, definitions)
        if isinstance(node, ast.BinOp) and "arange" in ast.unparse(node):
            # A block of its own for each program: as far as the grid reaches.
            nodes = [definitions.get(one.id, one) if isinstance(one, ast.Name) else one for one in ast.walk(node)]
            node = next((one for one in map(_stripped, nodes) if called_name(one) == "program_id"), node)
        match node:
            case ast.Call(args=[at]) | ast.Call(keywords=[ast.keyword(value=at)]) if called_name(node) == "program_id":
                return f"@{ast.unparse(at)}"
            case ast.Call(args=[end]) | ast.Call(args=[_, end, *_]) if called_name(node).endswith("range"):
                return self._head(end, definitions)
        return None

    def _head(self, node: ast.expr, definitions: Mapping[str, ast.expr]) -> str | None:
        """The argument from which a bound such as `K - k * BLOCK` counts down, or a product of arguments."""
        for _ in range(MAX_DEPTH):
            while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                node = node.left
            if isinstance(node, ast.Name) and node.id not in self._parameters and node.id in definitions:
                node = definitions[node.id]
        names, kinds = _names(node), ast.BinOp | ast.Name | ast.Constant | ast.operator | ast.expr_context
        plain = all(isinstance(one, kinds) for one in ast.walk(node))
        return ast.unparse(node) if plain and names and names <= self._parameters else None


def _numbers(
    body: list[ast.stmt], operators: tuple[type[ast.operator], ...], but: tuple[type[ast.cmpop], ...]
) -> set[str]:
    """Names that statements have as operands of `operators`, compare with no fraction and not by `but`, or count
    with."""
    found = set[str]()
    for node in ast.walk(ast.Module(body, [])):
        parts: Sequence[ast.AST] = ()
        if isinstance(node, ast.BinOp) and isinstance(node.op, operators):
            parts = (node.left, node.right)
        elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.IsNot, *but)):
            parts = (node.left, *node.comparators)
            if any(isinstance(one, ast.Constant) and isinstance(one.value, float) for one in parts):
                parts = ()
        elif called_name(node) in ("range", "cdiv", "minimum", "maximum", "min", "max", "rand"):
            parts = node.args  # type: ignore[attr-defined]
        found |= {one.id for one in parts if isinstance(one, ast.Name)}
    return found


def _names(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _stripped(node: Any) -> Any:
    """An index without added axes, conversions and hints."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif called_name(node) == "to" and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif called_name(node) in ("multiple_of", "max_contiguous") and node.args:
            node = node.args[0]
        else:
            return node


def _bounds(mask: ast.expr | None, definitions: Mapping[str, ast.expr], index: str, depth: int = 0) -> list[ast.expr]:
    """The bounds below which a mask keeps an index."""
    if mask is None or depth > MAX_DEPTH:
        return []
    mask = _stripped(mask)
    match mask:
        case ast.Name(id=name) if name in definitions:
            return _bounds(definitions[name], definitions, index, depth + 1)
        case ast.BinOp(left=left, right=right):
            return [*_bounds(left, definitions, index, depth + 1), *_bounds(right, definitions, index, depth + 1)]
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            small, large = (left, right) if isinstance(op, ast.Lt) else (right, left)
            if isinstance(op, ast.Lt | ast.Gt) and ast.unparse(_stripped(small)) == index:
                return [large]
    return []


def _texts(shape: Value) -> tuple[str, ...] | None:
    texts = tuple(one.text for one in shape.items)
    return texts if texts and all(texts) else None


def _indexed(tile: tuple[str, ...] | None, index: ast.expr) -> tuple[str, ...] | None:
    if tile is None:
        return None
    left, made = list(tile), list[str]()
    for one in index.elts if isinstance(index, ast.Tuple) else [index]:
        if isinstance(one, ast.Constant) and one.value is None:
            made.append("1")
        elif isinstance(one, ast.Slice) and left:
            made.append(left.pop(0))
        else:
            return None
    return (*made, *left)


def _broadcast(*tiles: tuple[str, ...] | None) -> tuple[str, ...] | None:
    known = [one for one in tiles if one]
    if len({len(one) for one in known}) != 1:
        return None
    return tuple(next((at for at in dims if at != "1"), "1") for dims in zip(*known, strict=True))
