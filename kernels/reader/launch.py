"""The launch with which host code starts a kernel, as expressions of the task's sizes.

Owns reading `kernel<<<grid, block, bytes>>>(...)` (CUDA C++ Programming Guide, "Execution Configuration") and
`cudaLaunchKernel`: locals and constants of the host are followed to their origins. An argument of the kernel
has its parameter's name, and a parameter of the host's function is a size of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from tunesmith.kernels.reader.parse import UNKNOWN_NAMES, Entry, Unit, body, constant, kind, split, uncommented, walk
from tunesmith.kernels.reader.syntax import NOTHING, Lowering, Node, Symbol
from tunesmith.kernels.spec.expression import FUNCTIONS as TASK_FUNCTIONS
from tunesmith.kernels.spec.expression import ExpressionError, parse

Dims = tuple[str | None, ...]
Extent = TypeVar("Extent", str, str | None)
MAX_DEPTH = 12
"""Variables and functions of the host that an expression may go through."""
_LAUNCH = re.compile(
    r"\b((?:\w+::)*(\w+)\s*(?:<(?:[^;<>{}]|<[^;<>{}]*>)*>\s*)?)"
    r"<<[ \t]*<([^;{}#\\]*?)>>[ \t]*>\s*\(([^;{}#\\]*)\)\s*;"
)
"""Groups: the whole name, the bare name, the configuration, the arguments. Formatters write spaces into `<<<`."""
_REMAINS = r"\(*\1 % \2\)?(?: (?:>|!=) 0\))?"
_ROUNDED_UP = (
    re.compile(rf"(.+) // (\w+) \+ (?:\(1 if )?{_REMAINS}(?: else 0\))?"),
    re.compile(rf"\((.+) // (\w+) \+ 1 if {_REMAINS} else \1 // \2\)"),
)
"""n / BLOCK + (n % BLOCK > 0), also as a choice between 1 and 0, or between both quotients."""
CALL = "tunesmith_launch"
_COMPARISONS = frozenset(["<", ">", "<=", ">=", "==", "!="])
_OPERATORS = _COMPARISONS | {"+", "-", "*", "/", "%", "<<", ">>"}


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """grid, block: by axis, None where an extent cannot be said in sizes; shared: bytes of dynamic shared memory;
    written: as the source has it; sizes: what no parameter of the kernel says, with the text that the host computes it
    from, empty where it is given; values: of the kernel's parameters that the host computes from others."""

    grid: Dims
    block: Dims
    shared: str | None
    written: str
    sizes: Mapping[str, str]
    values: Mapping[str, str]


def launches(unit: Unit, entry: Entry) -> list[HostLaunch]:
    """Each different launch of the kernel in the source."""
    found: dict[tuple[Dims, Dims, str | None], HostLaunch] = {}
    lowering = Lowering(unit)
    for name in (entry.name, f'"{entry.name}"'):
        for function in _functions(unit) if not found else ():
            for call, (grid, block, shared), given in _calls(function, name, lowering):
                if name == entry.name and len(given) not in (0, len([*entry.function.get_arguments()])):
                    # Of structures the calls in front of launches have the members.
                    continue
                host = _Host(function, entry, given, lowering)
                values = host.values()
                one = host.dims(grid), host.dims(block), "0" if shared is None else host.text(shared)
                found.setdefault(one, HostLaunch(*one, _configuration(unit, call), host.sizes, values))
    return list(found.values())


def _functions(unit: Unit) -> Iterator[Any]:
    """The declarations of a source, with the methods of a class in its place."""
    for one in unit.declarations():
        inside = walk(one) if kind(one) in ("STRUCT_DECL", "CLASS_DECL", "CLASS_TEMPLATE") else ()
        yield from [at for at in inside if kind(at).startswith(("CXX_METHOD", "CONSTRUCTOR")) and body(at)] or [one]


def _configuration(unit: Unit, call: Any) -> str:
    """The grid and the block of a launch as the source has them."""
    behind = unit.text(str(call.location.file))[call.location.offset :].decode(errors="replace")
    written = re.match(r"[^;]*?<<[ \t]*<(.*?)>>[ \t]*>", behind, re.DOTALL)
    parts = split(written[1])[:2] if written is not None else split(unit.written(call).partition("(")[2])[1:3]
    return ", ".join(parts)


def marked(code: str) -> str:
    """The source with a call in front of each launch that has its name, grid, block, bytes and arguments, 0 for those
    that are no names: it is understood even where the launch is not, as with a type of a header that is not here."""

    def with_call(launch: re.Match[str]) -> str:
        configuration, given = map(uncommented, launch.group(3, 4))
        depths = [*accumulate((one == "(") - (one == ")") for one in given)] or [0]
        if min(depths) < 0 or depths[-1]:
            # Of a macro, which ends without a semicolon, they would go on behind it.
            return launch[0]
        names = [re.sub(r"^\(\w+\) ?", "", one) for one in split(given)]
        passed = [*split(configuration), "0"][:3] + [one if one.isidentifier() else "0" for one in names]
        call = f'{CALL}("{launch[2]}", {", ".join(passed)})'
        return f"{{ {call}; {launch[1]}<<<{launch[3]}>>>({launch[4]}); }}"

    return _LAUNCH.sub(with_call, code)


def _calls(
    function: Any, name: str, lowering: Lowering
) -> Iterator[tuple[Any, tuple[Node, Node, Node | None], list[Node]]]:
    """The launches of a kernel in a function: the call, its grid, block and bytes of shared memory where there are any,
    its arguments. name: of the kernel, in quotes for the calls in front of launches that are not understood."""
    for call in walk(function):
        kids = list(call.get_children()) if kind(call) == "CALL_EXPR" else []
        by_function = call.spelling == "cudaLaunchKernel" and len(kids) > 4
        by_mark = len(kids) > 1 and kids[1].spelling in ("cudaConfigureCall", "__cudaPushCallConfiguration")
        if not (by_function or by_mark or (name.startswith('"') and len(kids) > 4)):
            continue
        if name not in {one.spelling for at in kids[:2] for one in walk(at) if kind(one) != "CALL_EXPR"}:
            continue
        if by_function:
            grid, block, given, *more = kids[2:]
            arguments = _pointed(given, lowering)
        elif by_mark:
            grid, block, *more = kids[1].get_arguments()
            arguments = [lowering.node(one) for one in kids[2:]]
        else:
            grid, block, *more = kids[2:5]
            arguments = [lowering.node(one) for one in kids[5:]]
        shared = next((one for one in more[:1] if one.extent.start.offset and constant(one) != 0), None)
        bytes_ = None if shared is None else lowering.node(shared)
        yield call, (lowering.node(grid), lowering.node(block), bytes_), arguments


def _pointed(cursor: Any, lowering: Lowering) -> list[Node]:
    """The arguments in an array of pointers to them."""
    for one in walk(cursor):
        declared = one.referenced if kind(one) == "DECL_REF_EXPR" else None
        made = walk(declared) if declared is not None and kind(declared) == "VAR_DECL" else ()
        if lists := [at for at in made if kind(at) == "INIT_LIST_EXPR"]:
            return [_unwrapped(lowering.node(at)) for at in lists[0].get_children()]
    return []


def _unwrapped(node: Node) -> Node:
    """An expression without casts, and without the operator that takes its address."""
    while len(node.kids) == 1 and node.what in ("cast", "address"):
        node = node.kids[0]
    return node


def _place(node: Node) -> tuple[Symbol, str]:
    """The variable that an expression is, or is a member of, and this member."""
    node, member = _unwrapped(node), ""
    while node.what == "member" and node.kids:
        node, member = _unwrapped(node.kids[0]), f".{node.op}{member}"
    return (node.symbol if node.what == "name" else NOTHING), member


class _Host:
    """A function of the host that launches the kernel with some arguments."""

    def __init__(self, function: Any, entry: Entry, given: list[Node], lowering: Lowering) -> None:
        self.sizes: dict[str, str] = {}
        self._passed: list[tuple[tuple[Symbol, str], Node]] = []
        self._lowering, self._entry = lowering, entry
        self._set: dict[Symbol, list[Node]] = {}
        self._axes: dict[tuple[Symbol, str], list[Node]] = {}
        self._lent = {NOTHING}
        self._own: dict[tuple[Symbol, str], str] = {}
        taken = [lowering.symbol(one) for one in entry.function.get_arguments()]
        self._taken = {one.name for one in taken}
        for parameter, argument in zip(taken, given, strict=False):
            place = _place(argument)
            if place[0] is not NOTHING and parameter.type.what == "number":
                self._own.setdefault(place, parameter.name)
                self._passed.append((place, argument))
        inside = body(function)
        for node in lowering.node(inside).walk() if inside is not None else ():
            if node.what == "variable":
                self._set.setdefault(node.symbol, []).extend(node.kids)
            elif node.what in ("assign", "count"):
                self._assigned(node)
            elif node.what == "call" or any(one.type.spelling.startswith("<overloaded") for one in node.kids[:1]):
                if node.kids and node.kids[0].symbol.name == CALL:
                    continue
                # What a function may set has no value that is known here. In a template clang may not know which it is.
                called = node.cursor.referenced
                own = called is not None and lowering.unit.own(called)
                unknown = called is None or (not own and str(called.location.file) == UNKNOWN_NAMES)
                for at, one in enumerate(node.kids[1:]):
                    by_name = unknown and _unwrapped(one).type.spelling.endswith("dim3")
                    if one.what == "address" or by_name or (own and at in node.symbol.references):
                        self._lent.add(_unwrapped(one).symbol)

    def values(self) -> dict[str, str]:
        """The kernel's parameters that the function computes from others of them."""
        computed = dict[str, Node]()
        for place, argument in self._passed:
            name = self._own.pop(place, "")
            names = parse(self.text(argument) or "1").names
            if name and names and names <= {*self._own.values()}:
                computed[name] = argument
            elif name:
                self._own[place] = name
        found = {name: self.text(argument) or name for name, argument in computed.items()}
        self.sizes.clear()
        return found

    def _assigned(self, node: Node) -> None:
        target = _unwrapped(node.kids[0])
        value = node.kids[-1] if node.op == "=" else node
        inner = _unwrapped(target.kids[0]) if target.what == "member" and target.kids else target
        if inner is not target and inner.symbol is not NOTHING:
            self._axes.setdefault((inner.symbol, target.op), []).append(value)
        elif target.what == "name" and target.symbol is not NOTHING:
            self._set.setdefault(target.symbol, []).append(value)

    def dims(self, node: Node, depth: int = 0) -> Dims:
        """The extents of a grid or a block."""
        node = _unwrapped(node)
        if not node.type.spelling.endswith("dim3") or depth > MAX_DEPTH:
            return (self.text(node),)
        if node.what == "name" and node.symbol is not NOTHING:
            made = self._set.get(node.symbol) or self._outside(node)
            if node.symbol in self._lent or (not made and node.symbol.what == "parameter"):
                return (None,)
            extents = [*(self.dims(made[0], depth + 1) if len(made) == 1 else ["1"]), "1", "1"][:3]
            for at, axis in enumerate("xyz"):
                if changed := self._axes.get((node.symbol, axis)):
                    extents[at] = self.text(changed[0]) if len(changed) == 1 else None
            return trimmed(extents) if len(made) < 2 else (None,)
        return trimmed([self.text(one) for one in node.kids if one.start or one.kids] or ["1"])

    def _outside(self, node: Node) -> list[Node]:
        """The value with which a variable outside of the function begins."""
        declared = node.cursor.referenced
        return self._lowering.node(declared).kids if declared is not None and kind(declared) == "VAR_DECL" else []

    def text(self, node: Node, depth: int = 0, names: Mapping[Symbol, Node] | None = None) -> str | None:
        """An expression of sizes; None where there is none."""
        found = self._text(_unwrapped(node), depth, names or {})
        if found is None:
            return None
        try:
            read = parse(found)
            return found if read.names else str(int(read.evaluate({})))
        except (ExpressionError, ValueError, OverflowError):
            return None

    def _text(self, node: Node, depth: int, names: Mapping[Symbol, Node]) -> str | None:
        if depth > MAX_DEPTH:
            return None
        if node.value is not None:
            return repr(node.value) if isinstance(node.value, float) else str(int(node.value))
        if (own := self._own.get(_place(node))) is not None:
            return own
        if node.what == "name" and node.symbol is not NOTHING:
            return self._named(node, node.symbol, depth, names)
        if node.what == "member" and node.kids and node.op in ("x", "y", "z"):
            owner, extents = _unwrapped(node.kids[0]).symbol, self.dims(node.kids[0], depth + 1)
            if extents == (None,) and owner.what == "parameter" and owner not in self._lent:
                return self._size(f"{owner.name}_{node.op}", "")
            return dict(zip("xyz", (*extents, "1", "1"), strict=False))[node.op] if extents != (None,) else None
        if node.what == "binary" and node.op in _OPERATORS:
            left, right = (self.text(one, depth + 1, names) for one in node.kids)
            return None if left is None or right is None else self._operation(node, left, right)
        if node.what == "choice":
            parts = [self.text(one, depth + 1, names) for one in node.kids]
            return None if None in parts else _rounded_up(f"({parts[1]} if {parts[0]} else {parts[2]})")
        if node.what == "unary" and node.op == "-":
            inner = self.text(node.kids[0], depth + 1, names)
            return None if inner is None else f"(-{inner})"
        if node.what == "call":
            return self._called(node, depth, names)
        value = constant(node.cursor)
        return str(int(value)) if value is not None and value == int(value) else None

    @staticmethod
    def _operation(node: Node, left: str, right: str) -> str:
        a, b = (f"({one})" if " " in one and not re.fullmatch(r"\w+\([^()]*\)", one) else one for one in (left, right))
        if node.op in _COMPARISONS:
            return f"({a} {node.op} {b})"
        if node.op in ("<<", ">>"):
            return f"{a} * 2**{b}" if node.op == "<<" else f"{a} // 2**{b}"
        if node.op == "/" and node.type.what != "float":
            # (n + BLOCK - 1) / BLOCK, however it is written.
            base = _less(left, int(right) - 1 if right.isdigit() else -1, "" if right.isdigit() else right)
            return f"ceil_div({base}, {right})" if base else f"{a} // {b}"
        if node.op == "+" and right == "1" and (found := re.fullmatch(r"\((.+)\) // (\w+)", left)):
            base = _less(found[1], -1, "")
            return f"ceil_div({base}, {found[2]})" if base else f"{left} + 1"
        return _rounded_up(f"{left if node.op in '+-' else a} {node.op} {right if node.op == '+' else b}")

    def _named(self, node: Node, symbol: Symbol, depth: int, names: Mapping[Symbol, Node]) -> str | None:
        if symbol in names:
            return self.text(names[symbol], depth + 1)
        declared = node.cursor.referenced
        of_template = declared is not None and kind(declared) == "TEMPLATE_NON_TYPE_PARAMETER"
        if of_template and (value := self._bound(symbol.name, node.cursor.location.offset)).isdigit():
            return value
        made, given = [] if symbol in self._lent else self._set.get(symbol), symbol.what == "parameter"
        if made is None and not given:
            made = self._outside(node)
            if made and declared is not None and not declared.type.is_const_qualified():
                made = []
        if made and len(made) == 1:
            found = self.text(made[0], depth + 1)
            if found is not None:
                return found
        if node.type.what == "number" and (given or (made is not None and len(made) <= 1)):
            return self._size(symbol.name, self._lowering.unit.written(made[0].cursor) if made and not given else "")
        return None

    def _size(self, name: str, text: str) -> str:
        """The name of a size that the host computes from `text`, or is given."""
        name += "_" * (name in self._taken or name in TASK_FUNCTIONS)
        self.sizes[name] = " ".join(re.sub(r'[\\"]', " ", text).split())
        return name

    def _bound(self, name: str, at: int) -> str:
        """The value of a parameter of the host's template: the kernel's that it is, else by the host's instances."""
        unit, entry = self._lowering.unit, self._entry
        of_kernel = [one.spelling for one in entry.declared.get_children() if kind(one).startswith("TEMPLATE_")]
        for given in re.findall(rf"\b{entry.name}\s*<([^;{{}}()]*?)>\s*<<<", unit.code):
            passed = dict(zip(split(given), of_kernel, strict=False))
            if name in passed:
                return entry.values.get(passed[name], "")
        return unit.value_of(name, at)

    def _called(self, node: Node, depth: int, names: Mapping[Symbol, Node]) -> str | None:
        given, symbol = [one for one in node.kids[1:] if _unwrapped(one).type.what != "void"], node.symbol
        parts = [text for one in given if (text := self.text(one, depth + 1, names)) is not None]
        if len(parts) < len(given):
            return None
        name = node.op.removesuffix("f")
        if name in ("min", "max"):
            return f"{name}({', '.join(parts)})"
        if name in ("ceil", "floor") and len(parts) == 1:
            # Of a quotient, which is one of whole numbers then.
            numerator, _, divisor = parts[0].rpartition(" / ")
            divisor = divisor.removesuffix(".0")
            base = numerator[1:-1] if numerator.startswith("(") and numerator.count("(") == 1 else numerator
            quotient = f"ceil_div({base}, {divisor})" if name == "ceil" else f"{numerator} // {divisor}"
            return quotient if base else f"{name}({parts[0]})"
        if symbol.definition is None:
            return None
        statements = self._lowering.body(symbol).kids
        if len(statements) != 1 or statements[0].what != "return" or not statements[0].kids:
            return None
        return self.text(statements[0].kids[0], depth + 1, dict(zip(symbol.arguments, given, strict=False)))


def _rounded_up(text: str) -> str:
    """A quotient that is rounded up where something remains, however it is written."""
    found = next(filter(None, (one.fullmatch(text) for one in _ROUNDED_UP)), None)
    if found is None:
        return text
    return f"ceil_div({found[1][1:-1] if found[1].startswith('(') else found[1]}, {found[2]})"


def trimmed(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """Without the axes at the end that have one block or thread."""
    return tuple(extents[: max((at for at, one in enumerate(extents, 1) if one != "1"), default=1)])


def _less(text: str, number: int, name: str) -> str:
    """A sum without a number and a name among its terms; empty where they are not there."""
    terms, depth = [""], 0
    for part in re.split(r"( [-+] )", text):
        if depth == 0 and part in (" + ", " - "):
            terms.append("-" if part == " - " else "")
        else:
            terms[-1] += part
            depth += part.count("(") - part.count(")")
    numbers = [one for one in terms if re.fullmatch(r"-?\d+", one)]
    rest = [one for one in terms if one not in numbers]
    more = sum(map(int, numbers)) - number
    if not 0 <= more <= 8 or (name and (more or name not in rest)):
        return ""
    if name:
        rest.remove(name)
    return " + ".join([*rest, *([str(more)] if more else [])]).replace("+ -", "- ")
