"""The use of a Triton kernel's arguments: its loads and stores, what indices are multiplied by and below which bounds
they keep, and the tiles it multiplies.

The kernel's statements are followed once, helpers included. Owns no shape: how far an array is reached is what runs
show (`tunesmith.kernels.triton.shapes`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunesmith.kernels.build.python_source import constexprs_of, parameters_of
from tunesmith.kernels.triton.source import called_name

_SAME = ("multiple_of", "max_contiguous", "max_constancy", "broadcast_to", "assume", "to", "cast", "advance", "load")
_MADE = {"make_block_ptr": ("offsets", "block_shape", "order"), "make_tensor_descriptor": ("block_shape",)}
"""Functions that make a pointer with a shape and strides, and what they take beside these."""
_FIRST = ("base", "pointer", "axis")
_NUMBERS = (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div)
_WHOLE, _EQUAL = (ast.FloorDiv, ast.Mod), (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
MAX_DEPTH = 8
Functions = Mapping[str, ast.FunctionDef]
Known = Callable[[ast.expr], bool | None]


@dataclass(frozen=True, slots=True)
class Value:
    """roots: arguments of which it is a pointer; loaded: arrays whose elements it is, or is offset by; bits: those of
    which it has the bits, perhaps moved; tile: its shape, if known; text: of a name or number; items: of a tuple;
    staged: the array and the loop in which it was loaded; names: of the numbers that alone make it, or from which it
    counts down; steps: the names in what parts of it are multiplied by; counting: whether it is 0, 1, 2, ... along its
    tile; below: the names in bounds of indices, each with the tile that counts up to it, or nothing."""

    roots: tuple[str, ...] = ()
    loaded: frozenset[str] = frozenset()
    bits: frozenset[str] = frozenset()
    tile: tuple[str, ...] | None = None
    text: str = ""
    items: tuple[Value, ...] = ()
    staged: tuple[str, int] | None = None
    names: frozenset[str] = frozenset()
    steps: frozenset[frozenset[str]] = frozenset()
    counting: bool = False
    below: frozenset[tuple[str, str]] = frozenset()

    @property
    def plain(self) -> bool:
        """Whether it is the same in all programs."""
        return bool(self.names) or self.text.isdigit()


@dataclass(slots=True)
class Loop:
    """A loop with products. operands: arrays and shapes of tiles that each turn loads for them; rows: of the products;
    own: it says its stages itself, or its products do not use tensor cores."""

    operands: dict[tuple[str, tuple[str, ...]], None] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)
    own: bool = False


class Reading:
    """A kernel as it is read. parameters: its arguments in order; known: whether a condition holds, if it is known.
    covers: by constexpr, the argument up to which a block of its size reads at once; bounds: arguments below which
    indices keep, or tiles; spans, turns: by which tiles, and turns of loops, are computed; steps: by array,
    as of a value; axes: of the grid, at least; compares: whether it compares elements of two arrays; indices: arrays
    of whole numbers; descriptors: arguments that are no pointers, but descriptors of tensors."""

    def __init__(self, kernel: ast.FunctionDef, functions: Functions, parameters: Sequence[str], known: Known) -> None:
        self.reads, self.writes, self.atomics = set[str](), set[str](), set[str]()
        self.used, self.covers, self.descriptors = set[str](), dict[str, str](), dict[str, None]()
        self.bounds, self.spans, self.turns = set[str](), set[str](), set[str]()
        self.steps = dict[str, set[frozenset[str]]]()
        self.indices, self.tiles, self.products = set[str](), dict[str, None](), dict[tuple[str, str, str], None]()
        self.loops, self.sums = list[Loop](), dict[tuple[str, str], None]()
        self._functions, self._known = functions, known
        self.numbers = _numbers(kernel.body, _NUMBERS, (ast.Is,)) & set(parameters)
        self.whole = _numbers(kernel.body, _WHOLE, (ast.Is,)) & self.numbers
        self.counted = _numbers(kernel.body, _WHOLE, _EQUAL) & self.numbers
        self._constants, self._parameters = {*constexprs_of(kernel)}, set(parameters)
        self._inside, self.axes, self.compares = list[Loop](), 1, False
        self._depth = 0
        self._run(kernel, {one: self._argument(one) for one in parameters})

    def _argument(self, name: str) -> Value:
        is_number = name in self.numbers or name in self._constants
        names = frozenset([name] if is_number else [])
        return Value((name,) if name not in self.numbers else (), text=name, names=names)

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
                    self._bind(target, self._value(value, env), env)
                case ast.AugAssign(target=ast.Name(id=name)):
                    whole = ast.BinOp(ast.Name(name, ast.Load()), one.op, one.value)
                    env[name] = self._value(whole, env)
                case ast.If():
                    holds = self._known(one.test) if self._depth == 0 else None
                    self._value(one.test, env)
                    ways = [one.body, one.orelse] if holds is None else [one.body if holds else one.orelse]
                    ends = [dict(env) for _ in ways]
                    for way, end in zip(ways, ends, strict=True):
                        self._body(way, end, returned)
                    for end in reversed(ends):
                        env |= {name: v for name, v in end.items() if v.roots or v.tile or not env.get(name, v).roots}
                    for name, v in env.items():
                        # It may be a pointer of either way.
                        roots = dict.fromkeys(root for end in ends if name in end for root in end[name].roots)
                        env[name] = replace(v, roots=tuple(roots)) if v.roots else v
                case ast.For():
                    self._value(one.iter, env)
                    self._bind(one.target, Value(), env)
                    own = "num_stages" in ast.unparse(one.iter)
                    self._loop(Loop(own=own), one.body, env, returned)
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
        for one in (node for part in body for node in ast.walk(part) if isinstance(node, ast.AugAssign)):
            if isinstance(one.target, ast.Name) and one.target.id in env:
                env[one.target.id] = replace(env[one.target.id], counting=False)
        self._body(body, env, returned)
        self._body(body, env, returned)
        self._inside.pop()
        if loop.operands:
            self.loops.append(loop)

    def _bind(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        if isinstance(target, ast.Tuple):
            for one, part in zip(target.elts, value.items or (Value(),) * len(target.elts), strict=False):
                self._bind(one, part, env)
        elif isinstance(target, ast.Name):
            env[target.id] = replace(value, text=value.text if value.text in env or value.text.isdigit() else "")

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
                return self._computed(self._value(left, env), op, self._value(right, env))
            case ast.UnaryOp(operand=operand):
                return replace(self._value(operand, env), roots=(), text="")
            case ast.Compare() | ast.BoolOp():
                parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else node.values
                values = [self._value(one, env) for one in parts]
                if isinstance(node, ast.Compare):
                    self.compares |= len(frozenset[str]().union(*(one.loaded for one in values))) > 1
                below = frozenset[tuple[str, str]]().union(*(one.below for one in values))
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Gt):
                    below |= _below(*(values if isinstance(node.ops[0], ast.Lt) else values[::-1])[:2])
                return Value(tile=_broadcast(*(one.tile for one in values)), below=below)
            case ast.IfExp(body=body, orelse=orelse):
                if self._depth == 0 and (holds := self._known(node.test)) is not None:
                    return self._value(body if holds else orelse, env)
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

    def _computed(self, a: Value, op: ast.operator, b: Value) -> Value:
        found = Value(loaded=a.loaded | b.loaded, tile=_broadcast(a.tile, b.tile), below=a.below | b.below)
        if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.LShift | ast.RShift):
            found = replace(found, bits=a.bits | b.bits)
            self.indices |= found.bits
        if a.plain and b.plain:
            found = replace(found, names=a.names | b.names)
        elif isinstance(op, ast.Sub):
            found = replace(found, names=a.names)
        if isinstance(op, ast.Mult):
            return replace(found, steps=_multiplied(a, b.names) | _multiplied(b, a.names))
        if isinstance(op, ast.Mod):
            return replace(found, below=found.below | _below(Value(), b))
        sums = isinstance(op, ast.Add | ast.Sub)
        return replace(found, roots=a.roots or b.roots, steps=a.steps | b.steps) if sums else found

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        name = called_name(node)
        itself = self._value(node.func.value, env) if isinstance(node.func, ast.Attribute) else Value()
        # Of a module nothing is known but its name.
        bound = itself != Value(text=itself.text)
        given = [self._value(one, env) for one in node.args]
        named = {str(one.arg): self._value(one.value, env) for one in node.keywords}
        first = (
            itself if bound else given[0] if given else next((named[one] for one in _FIRST if one in named), Value())
        )
        if bound and itself.text in self._parameters and (name in ("load", "store") or name.startswith("atomic")):
            self.descriptors[itself.text] = None
        if name in self._functions and not bound and self._depth < MAX_DEPTH:
            self._depth += 1
            names = [one.arg for one in parameters_of(self._functions[name])]
            found = self._run(self._functions[name], {**dict(zip(names, given, strict=False)), **named})
            self._depth -= 1
            return found
        if name == "program_id" and first.text.isdigit():
            self.axes = max(self.axes, int(first.text) + 1)
        if name in ("load", "gather") and first.roots:
            self._access(self.reads, first, named.get("mask", given[1] if len(given) > 1 and not bound else Value()))
            inside = (first.roots[0], id(self._inside[-1])) if self._inside else None
            roots = frozenset(first.roots)
            return Value(loaded=roots, bits=roots, tile=first.tile, staged=inside)
        if (name == "store" or name.startswith("atomic")) and first.roots:
            kind = self.writes if name == "store" else self.atomics
            self.indices |= {*first.roots} if name == "atomic_cas" else set()
            self._access(kind, first, named.get("mask", given[2] if len(given) > 2 else Value()))
            return Value()
        if name == "arange" and len(given) == 2:
            self.tiles |= dict.fromkeys(one for one in (given[1].text,) if one in self._parameters)
            self.spans |= given[1].names
            from_zero = given[0].text == "0" and given[1].text != ""
            return Value(tile=(given[1].text,) if from_zero else None, counting=from_zero)
        if name in ("zeros", "full") and (given or named):
            shape = (given or [named.get("shape", Value())])[0]
            return Value(tile=_texts(shape))
        if name in _MADE:
            listed = dict(zip(("base", "shape", "strides", *_MADE[name]), given, strict=False)) | named
            shape, strides, block = (listed.get(one, Value()) for one in ("shape", "strides", "block_shape"))
            self.bounds |= {name for one in shape.items for name in one.names}
            self.tiles |= dict.fromkeys(one for one in _texts(block) or () if one in self._parameters)
            steps = frozenset(one.names for one in strides.items if one.names)
            return Value(first.roots, tile=_texts(block), steps=first.steps | steps, below=first.below)
        if name in ("dot", "dot_scaled") and len(given) > 1:
            found = self._product(given[0], given[1], ieee="ieee" in ast.unparse(node) or "allow_tf32" in named)
            sums = found.tile or (given[2] if len(given) > 2 else named.get("acc", Value())).tile or ()
            if len(sums) == 2 and "out_dtype" not in named:
                self.sums[sums[0], sums[1]] = None
            return replace(found, tile=sums or None)
        if name in ("trans", "permute") and first.tile and len(first.tile) == 2:
            return replace(first, tile=first.tile[::-1])
        if name == "cdiv" and given:
            self.bounds |= given[0].names
        if name in ("range", "static_range"):
            self.turns |= {one for value in given for one in value.names}
            self.indices |= {one for value in given for one in value.loaded}
        if name == "to" and any(re.search(r"\bu?int\d", ast.unparse(one)) for one in node.args):
            # As an index is converted, not a result that is rounded.
            self.indices |= first.bits
        if name in _SAME:
            return replace(first, text="", bits=frozenset() if name in ("to", "cast") else first.bits)
        if name in ("where", "select"):
            return next((one for one in given[1:] if one.roots), Value(tile=_broadcast(*(one.tile for one in given))))
        tiles = [one.tile for one in (*given, *([itself] if bound else ()))]
        elementwise = name not in ("sum", "max", "min", "argmax", "argmin", "reduce", "reshape", "view", "cumsum")
        return Value(loaded=first.loaded, tile=_broadcast(*tiles) if elementwise else None)

    def _access(self, kind: set[str], pointer: Value, mask: Value) -> None:
        kind |= set(pointer.roots)
        self.indices |= pointer.loaded
        for root in pointer.roots:
            self.steps.setdefault(root, set()).update(pointer.steps)
        below = sorted(pointer.below | mask.below)
        self.bounds |= {name for _, name in below}
        self.covers |= {tile: name for tile, name in below if tile and tile not in self.covers}

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


def _below(index: Value, bound: Value) -> frozenset[tuple[str, str]]:
    """A comparison of an index with its bound."""
    tiles = [one for one in index.tile or () if one != "1"] if index.counting and bound.text in bound.names else []
    return frozenset((tile, name) for tile in tiles or [""] for name in bound.names)


def _multiplied(value: Value, names: frozenset[str]) -> frozenset[frozenset[str]]:
    """The steps of a value that is multiplied by `names`."""
    return frozenset([names, *(one | names for one in value.steps)]) if names else value.steps


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
