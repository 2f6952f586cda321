"""The form of a pass: its need of a kernel, and its change, which `composition` puts together with the others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tunesmith.kernels.reader.syntax import LAMBDA, LEFT, QUALIFIERS, WORK_ITEM, Node, Symbol, builtin
from tunesmith.kernels.rewrite.edits import Edit, Span
from tunesmith.kernels.rewrite.facts import AXES, Facts
from tunesmith.kernels.rewrite.forms import Form
from tunesmith.kernels.rewrite.sharing import Work, reads_thread
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import BackendName, LaunchGeometry, Parameter

T = TypeVar("T")
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/"}
"""Of numbers that are not negative, as sizes are."""

BOTH: tuple[BackendName, ...] = ("cuda", "opencl")
"""The languages of passes that also rewrite OpenCL C."""
ALONE = "A tile has a launch of its own."
"""Why passes exclude each other."""
NO_GUARD = "The kernel has no guard against more threads than it came with."
"""Why a configuration fits only some shapes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Code around the kernel's body, in which threads have other coordinates along an axis. on: for the preprocessor,
    when; opens, closes: the code, in which a statement of the kernel may end an element early where `loops`; at: the
    coordinate inside, in C."""

    on: str
    opens: str
    closes: str
    axis: str = ""
    at: str = ""
    loops: bool = False


@dataclass(slots=True, kw_only=True)
class Change:
    """The contribution of a pass. off: when it does nothing, as an expression, where more than its first parameter must
    have its first value; header: lines before the source; kit: names of building blocks; constraints: because of what
    each expression has to hold; block, grid: extents of the launch, by axis; share: elements of a thread along an axis;
    threads: factors of a block's threads in C, the first 0 where the block is the task's; instead: a parameter that,
    where it is not 0, has a launch of its own; static_shared, shared: bytes that it adds; fast_math: the parameter that
    asks for it; loads, stores: by array, the parameter that says how it is read and written; writes: what a builtin,
    such as blockIdx.x, is from now on; extends: further values of a parameter of another pass, where that applies."""

    parameters: list[Parameter] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    off: str = ""
    header: list[str] = field(default_factory=list)
    kit: tuple[str, ...] = ()
    constraints: dict[str, str] = field(default_factory=dict)
    block: dict[str, str] = field(default_factory=dict)
    grid: dict[str, str] = field(default_factory=dict)
    share: dict[str, str] = field(default_factory=dict)
    threads: tuple[str, ...] = ()
    instead: tuple[str, LaunchGeometry] | None = None
    static_shared: str = ""
    shared: str = ""
    fast_math: str = ""
    loads: dict[str, str] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    extends: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def parameter(self, name: str, values: tuple[int, ...], doc: str, *, launch_only: bool = False) -> None:
        """Adds a parameter, whose first value leaves the kernel as it came."""
        self.parameters.append(Parameter(name=name, values=values, doc=doc, launch_only=launch_only))

    def alternative(self, subject: Subject, name: str, parts: Sequence[str | Span], launch: LaunchGeometry) -> None:
        """Adds other code for the kernel's body, with a launch of its own, where the parameter `name` is not 0."""
        body = subject.inside
        whole = (f"\n#if {name} > 0\n", *parts, "#else\n", body, "\n#endif\n")
        self.edits.append(Edit(body.start, body.end, whole))
        self.instead = name, launch


class Refused(Exception):
    """A pass does not apply. Says why: a clause that names the code, without the beginning that `Pass.why` has."""


def require(holds: object, why: str = "") -> None:
    """Raises `Refused` unless something holds."""
    if not holds:
        raise Refused(why)


def required(value: T | None, why: str = "") -> T:
    """A value that is there and not empty. Raises `Refused` for another."""
    if not value:
        raise Refused(why)
    return value


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a pass. launch: as the task says it; work: how threads share it; name: gives a parameter or a
    macro a name that the source and the task do not use; lengths: elements of arrays, as the task says them, by
    parameter; sizes: by size of the task, the kernel's parameter that holds it; changes: of the earlier passes."""

    facts: Facts
    launch: LaunchGeometry
    work: Work
    name: Callable[[str], str]
    task: Task
    backend: BackendName = "cuda"
    lengths: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)

    @property
    def index_type(self) -> str:
        """The C type of coordinates."""
        if self.backend == "opencl":
            return "size_t"
        wide = any(one.type.size == 8 for axis in self.work.axes for one in axis.nodes)
        return "unsigned long long" if wide else "unsigned int"

    @property
    def wide(self) -> str:
        """A whole number of 64 bits."""
        return "long long" if self.backend == "cuda" else "long"

    def extent(self, axis: str) -> str:
        """The block's extent along an axis, as the task says it."""
        return (*self.launch.block, "1", "1")[AXES.index(axis)]

    def grid(self, axis: str) -> str:
        """The grid's extent along an axis, as the task says it."""
        return (*self.launch.grid, "1", "1")[AXES.index(axis)]

    def threads(self, axis: str) -> str:
        """The threads along an axis, as the task says them."""
        return f"({self.grid(axis)}) * ({self.extent(axis)})"

    def in_kernel(self, text: str) -> str | None:
        """A text of the task in its sizes, in C by the kernel's parameters; None where the kernel does not know it."""
        try:
            return self._in_c(ast.parse(text, mode="eval").body)
        except SyntaxError:
            return None

    def _in_c(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=int() as number):
                return str(number)
            case ast.Name(id=name) if name in self.sizes:
                return f"({self.wide}){self.sizes[name]}"
            case ast.BinOp(left, op, right) if (sign := _SIGNS.get(type(op))) is not None:
                parts = self._in_c(left), self._in_c(right)
                return None if None in parts else f"({parts[0]} {sign} {parts[1]})"
            case ast.Call(ast.Name("ceil_div"), [whole, by]):
                parts = self._in_c(whole), self._in_c(by)
                return None if None in parts else f"(({parts[0]} + {parts[1]} - 1) / {parts[1]})"
        return None

    def so_far(self, what: str) -> dict[str, str]:
        """A mapping of `Change`, of all changes so far."""
        return {key: value for change in self.changes.values() for key, value in getattr(change, what).items()}

    def builtin(self, name: str) -> str:
        """`threadIdx.x` and the like, in C."""
        return self.so_far("writes").get(name) or builtin(name, self.backend)

    def at(self, axis: str) -> str:
        """The coordinate of an element along an axis, in C."""
        made = {layer.axis: layer.at for change in self.changes.values() for layer in change.layers}
        index, width, thread = (self.builtin(f"{word}.{axis}") for word in ("blockIdx", "blockDim", "threadIdx"))
        return made.get(axis, f"({index} * {width} + {thread})")

    def block(self, axis: str) -> str:
        """The block's extent along an axis, as an expression."""
        return self.so_far("block").get(axis, f"({self.extent(axis)})")

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors of a block's threads, as `Change.threads`."""
        return tuple(one for change in self.changes.values() for one in change.threads)

    @property
    def thread(self) -> tuple[str, str]:
        """The number of a thread in its block, and the number of threads in the block, in C."""
        at, count = self.builtin("threadIdx.x"), self.builtin("blockDim.x")
        for axis in "yz":
            if self.block(axis) not in ("1", "(1)"):
                index, width = self.builtin(f"threadIdx.{axis}"), self.builtin(f"blockDim.{axis}")
                at, count = f"({at} + {count} * {index})", f"{count} * {width}"
        return at, count

    def hint(self, array: Symbol, *, stored: bool = False) -> str:
        """The parameter that says how an array is read or written, or 0."""
        return self.so_far("stores" if stored else "loads").get(array.name, "0")

    def written(self, form: Form, place: Node | None = None, given: Mapping[str, str] | None = None) -> str | None:
        """A form in C, ahead of the statement `place` (None: at the beginning of the kernel's body), with some atoms as
        given; None where something in it is not known there."""
        known = given or {}

        def text(atom: str) -> str | None:
            if atom in known:
                return known[atom]
            if atom.startswith("@"):
                return self.at(atom[1])
            if "." in atom and atom.split(".")[0] in WORK_ITEM.values():
                return self.builtin(atom)
            found = self.facts.atoms.get(atom)
            if found is None:
                return None
            if found.op in ("/", "%", ">>", "&", "[]", "min", "max"):
                # A lone number has the width that it came with.
                alone = {Form.atom(atom) for form in found.parts for atom in form.atoms}
                parts = [form.written(text, "" if form in alone else self.wide) for form in found.parts]
                if None in parts:
                    return None
                if found.op in ("min", "max"):
                    return f"{found.op}({', '.join(f'({self.wide})({part})' for part in parts)})"
                one = f"{found.symbol.name}[{parts[0]}]"
                return one if found.op == "[]" else f"(({parts[0]}) {found.op} ({parts[1]}))"
            return found.symbol.name if self.facts.is_known(found.symbol, place) else None

        return form.written(text, self.wide)

    def dtype(self, array: Symbol) -> str:
        """The data type of an array's elements, or the task's name for it; empty for a type that tasks do not know."""
        element, types = array.element, self.task.types.keys() | DTYPES.keys()
        found = element if element in self.task.types else C_TYPES.get(element, element)
        if found not in types and array.type.element is not None:
            found = C_TYPES.get(QUALIFIERS.sub("", array.type.element.spelling).strip(), "")
        return found if found in types else ""

    @property
    def axes(self) -> list[str]:
        """The axes with global coordinates."""
        return [one.name for one in self.work.axes]

    @property
    def bounds(self) -> dict[str, Form]:
        """The bounds of all coordinates; empty where one has none, or is stepped through by the grid's size."""
        found = {one.name: one.bound for one in self.work.axes if one.bound is not None and not one.strided}
        return found if len(found) == len(self.work.axes) else {}

    @property
    def unmovable(self) -> str:
        """Why a thread keeps its coordinates, as a clause; empty where it need not."""
        if self.work.kind != "cells":
            return self.work.why or "a block already takes turns on its row"
        if changed := [one.name for one in self.facts.parameters if one in self.facts.changed]:
            return f"the kernel changes its parameter {changed[0]}"
        nodes = [node for axis in self.work.axes for node in axis.nodes]
        if any(node.fixed or node.inside(LAMBDA) for node in nodes):
            return "a macro or a lambda computes its coordinates"
        if self.backend == "opencl" and any(one.inside(LEFT) or one.fixed for one in self.returns):
            return "the kernel returns from inside a loop or a macro"
        return ""

    @property
    def bounded(self) -> str:
        """Why a launch of another block is not possible, as a clause; empty where the rule for launch bounds says them
        anew."""
        free = not self.facts.launch_bounds or all(one.isdigit() for one in self.launch.block)
        return "" if free else "the kernel has launch bounds, and a block that depends on the workload"

    @property
    def inside(self) -> Span:
        """The statements of the kernel's body."""
        return Span(self.facts.body.start + 1, self.facts.body.end - 1)

    @property
    def returns(self) -> list[Node]:
        """Where the kernel ends a thread early."""
        return [one for one in self.facts.body.walk() if one.what == "return" and not one.inside(LAMBDA)]

    @property
    def by_warps(self) -> bool:
        """Whether the kernel asks for a thread's number in its warp, for that of its warp, or how many warps there
        are."""
        facts, asks = self.facts, {"%": 32, "/": 32, "&": 31, ">>": 5}
        pairs = [one for one in facts.syntax.everything() if one.what == "binary" and one.op in asks]
        of = [one.kids[0] for one in pairs if facts.form(one.kids[1]).constant == asks[one.op]]
        return any(reads_thread(facts, one) or one.op == "blockDim.x" for one in of)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass. needs: its findings in the subject as it came; change: the contribution made from these findings, where
    the changes so far allow it; both raise `Refused`. why: what begins all its reasons; excludes: the passes that it
    cannot be combined with, each with the reason; after: the passes whose changes it has to know."""

    name: str
    needs: Callable[[Subject], Any]
    change: Callable[[Subject, Any], Change]
    why: str = ""
    excludes: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    languages: tuple[BackendName, ...] = ("cuda",)
