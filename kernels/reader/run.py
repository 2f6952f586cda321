"""Runs the index arithmetic of a kernel, for all threads of a small launch at once.

Owns what each statement does to variables and to arrays. The contents of arrays are unknown; where a branch depends on
them, both sides are run, and what is assigned on one side only has bounds instead of a value. What is not understood is
noted with the arrays that it could touch, never passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunesmith.kernels.reader.parse import body, kind
from tunesmith.kernels.reader.spans import (
    ANY,
    NOWHERE,
    Span,
    absent,
    arithmetic,
    blend,
    choose,
    compare,
    everywhere,
    fitted,
    hull,
    number,
    of_kind,
)
from tunesmith.kernels.reader.tree import LONG, UINT, Kind, Node, bytes_of, key, lower, step_of

MAX_WORK = 40_000_000
"""Expressions and statements of a run, each times the threads and what it costs without any."""
STEP_COST = 1000
MAX_TURNS = 600
"""Turns of a loop, after which its variables may have any value."""
MAX_ELEMENTS = 1 << 22
MAX_DEPTH = 24
_VOID = Kind("void", 0, "void")
_AXES = "xyz"
_BUILTINS = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "size", "gridDim": "grid"}
_WORK_ITEMS = {
    **{"get_local_id": "thread", "get_group_id": "block", "get_local_size": "size", "get_num_groups": "grid"},
    **{"get_global_id": "global", "get_global_size": "threads", "get_global_offset": "offset"},
}
_READS = frozenset({"__ldg", "__ldcs", "__ldca", "__ldcg", "__ldcv", "__ldlu"})
_NOTHING = ("sync", "barrier", "fence", "printf", "pipeline_commit", "pipeline_wait", "prefetch", "nanosleep", "assume")
_SAME = frozenset({"abs", "labs", "fabs", "fabsf", "llabs"})


class Stopped(Exception):
    """The run is longer than it may be."""


@dataclass(slots=True)
class Array:
    """What a run did to an array. element: bytes of one; reach: elements from its begin, as far as they are known;
    open: whether an index is not known; negative: whether one may be; read, written: at all; early: read before it was
    written for certain; collides: whether two threads write an element; assigned: by element, whether one did; lost:
    why the run does not know what happens."""

    element: int
    reach: int = 0
    open: bool = False
    negative: bool = False
    read: bool = False
    written: bool = False
    early: bool = False
    lost: str = ""
    assigned: Any = field(default_factory=lambda: np.zeros(0, bool))
    strides: set[frozenset[str]] = field(default_factory=set)
    threads: Any = None
    collides: bool = False

    def covered(self, count: int) -> bool:
        """Whether each of `count` elements was written for certain."""
        return len(self.assigned) >= count and bool(self.assigned[:count].all())


@dataclass(slots=True)
class Pointer:
    """Where a pointer may point to: by array, or variable, the distance from its begin in bytes."""

    targets: dict[Any, Span]


@dataclass(slots=True)
class Fields:
    """A structure's members that are known."""

    members: dict[str, Any]


@dataclass(slots=True)
class Closure:
    node: Node


@dataclass(slots=True)
class Frame:
    """A function or a loop that statements may leave. sure, may: the threads that left it; snapshots: of variables, for
    threads that may have."""

    kinds: tuple[str, ...]
    sure: Any
    may: Any
    snapshots: list[tuple[Any, dict[Any, Any]]] = field(default_factory=list)


class Run:
    """One launch. arguments: values of the kernel's scalars by name, others are unknown; grid, block: by axis."""

    def __init__(
        self,
        function: Any,
        arguments: Mapping[str, int],
        grid: Sequence[int],
        block: Sequence[int],
        limit: int = MAX_WORK,
    ) -> None:
        self.limit = limit
        self.grid, self.block = [*grid, 1, 1][:3], [*block, 1, 1][:3]
        count = int(np.prod(self.grid)) * int(np.prod(self.block))
        at, place = np.arange(count, dtype=np.int64), []
        for extent in (*self.block, *self.grid):
            place.append(at % extent if extent > 1 else 0)
            at = at // extent
        self.thread, self.in_grid = place[:3], place[3:]
        self.count, self.steps, self.depth = count, 0, 0
        self.sure = self.may = np.ones(count, bool)
        self.env: dict[Any, Any] = {}
        self.alias: dict[Any, Any] = {}
        self.contents: dict[Any, Span] = {}
        self.arrays: dict[str, Array] = {}
        self.shared: dict[str, Node] = {}
        self.frames: list[Frame] = []
        self.used: set[tuple[str, str]] = set()
        self.steering: set[str] = set()
        self.stopped = False
        self.functions: dict[str, tuple[list[Node], Node | None]] = {}
        parameters, statements = self._function(function)
        for one in parameters:
            if one.kind.what in ("pointer", "array"):
                self.arrays[one.name] = Array(step_of(one.kind))
                self.env[one.target,] = Pointer({one.name: number(0)})
            elif one.name in arguments:
                self.env[one.target,] = number(arguments[one.name], one.name)
            else:
                self.env[one.target,] = self._unknown(one.kind)
        try:
            if statements is not None:
                self._framed(("RETURN_STMT",), lambda: self.statement(statements))
        except Stopped:
            self.stopped = True

    @property
    def work(self) -> int:
        return self.steps * (self.count + STEP_COST)

    # Functions and calls.

    def _function(self, function: Any) -> tuple[list[Node], Node | None]:
        name = function.get_usr() + key(function)
        if name not in self.functions:
            inside = body(function)
            parameters = [lower(one) for one in function.get_arguments() if one is not None]
            self.functions[name] = parameters, None if inside is None else lower(inside)
        return self.functions[name]

    def call(
        self, parameters: Sequence[Node], statements: Node, given: Sequence[Node], result: Kind, this: Any = None
    ) -> Any:
        """The value of a call of a function with a body."""
        if self.depth >= MAX_DEPTH:
            raise Stopped
        passed = []
        for one, argument in zip(parameters, given, strict=False):
            by_name = one.kind.reference
            passed.append((one, self.place(argument) if by_name else self.value(argument)))
        for one, value in passed:
            if one.kind.reference:
                self.alias[one.target] = value
            else:
                self.alias.pop(one.target, None)
                self._set((one.target,), value if not isinstance(value, Span) else fitted(value, one.kind), True)
        before, self.depth = self.env.pop(("result",), None), self.depth + 1
        outer = self.alias.get("this")
        if this is not None:
            self.alias["this"] = this
        self._framed(("RETURN_STMT",), lambda: self.statement(statements))
        self.depth -= 1
        self.alias["this"] = outer
        found = self.env.pop(("result",), None)
        if before is not None:
            self.env["result",] = before
        return self._unknown(result) if found is None else found

    def _framed(self, kinds: tuple[str, ...], action: Callable[[], None]) -> None:
        """Runs what statements of some kinds leave, and brings the threads that left back behind it."""
        sure, may = self.sure, self.may
        self.frames.append(Frame(kinds, np.zeros(self.count, bool), np.zeros(self.count, bool)))
        action()
        frame = self.frames.pop()
        for mask, env in frame.snapshots:
            self._join(mask, env)
        outer_sure = np.zeros(self.count, bool)
        outer_may = np.zeros(self.count, bool)
        for other in self.frames:
            outer_sure, outer_may = outer_sure | other.sure, outer_may | other.may
        self.sure, self.may = sure & ~outer_may, may & ~outer_sure

    def _join(self, mask: Any, env: Mapping[Any, Any]) -> None:
        """Variables may also have the values of `env` for the threads of the mask."""
        for name, value in env.items():
            now = self.env.get(name)
            if now is not value and now is not None:
                self.env[name] = _merged(mask, now, value)

    # Statements.

    def statement(self, node: Node) -> None:
        if not self.may.any():
            return
        self._step()
        what = node.what
        if what == "COMPOUND_STMT":
            for one in node.kids:
                self.statement(one)
        elif what == "DECL_STMT":
            for one in node.kids:
                if one.what == "VAR_DECL":
                    self._declare(one)
        elif what == "IF_STMT":
            self._if(node)
        elif what in ("FOR_STMT", "WHILE_STMT", "DO_STMT", "CXX_FOR_RANGE_STMT"):
            self._loop(node)
        elif what in ("RETURN_STMT", "BREAK_STMT", "CONTINUE_STMT"):
            if node.kids:
                self._set(("result",), self.value(node.kids[0]))
            self._leave(what)
        elif what == "SWITCH_STMT":
            self._switch(node)
        elif what in ("CASE_STMT", "DEFAULT_STMT", "LABEL_STMT"):
            self.statement(node.kids[-1])
        elif what in ("GOTO_STMT", "ASM_STMT", "GCC_ASM_STMT", "MS_ASM_STMT", "CXX_TRY_STMT"):
            self._lose(node, "inline assembly" if "ASM" in what else "a jump")
        elif what != "NULL_STMT":
            self.value(node)

    def _step(self) -> None:
        self.steps += 1
        if self.work > self.limit:
            raise Stopped

    def _leave(self, what: str) -> None:
        frame = next((one for one in reversed(self.frames) if what in one.kinds), None)
        if frame is None:
            return
        unsure = self.may & ~self.sure
        if unsure.any():
            frame.snapshots.append((unsure, dict(self.env)))
        frame.sure, frame.may = frame.sure | self.sure, frame.may | self.may
        self.sure = self.may = np.zeros(self.count, bool)

    def _declare(self, node: Node) -> None:
        if any(kind(one) == "CUDASHARED_ATTR" for one in node.cursor.get_children()) or node.kind.spelling.startswith(
            "__local "
        ):
            self.shared[node.target] = node
            self.contents.setdefault(node.target, Span(np.inf, -np.inf))
            return
        if node.kind.reference and node.kids:
            self.alias[node.target] = self.place(node.kids[0])
            return
        self.alias.pop(node.target, None)
        if node.kind.what == "array":
            given = [self.value(one) for one in _leaves(node.kids[0])] if node.kids else []
            self.contents[node.target] = Span(0.0, 0.0) if given else Span(np.inf, -np.inf)
            for value in given:
                self._keep(node.target, value if isinstance(value, Span) else ANY)
            return
        value = self.value(node.kids[0], node.kind) if node.kids else None
        if value is None:
            value = number(0) if node.kind.what in ("number", "float") else Fields({})
        self._set((node.target,), fitted(value, node.kind) if isinstance(value, Span) else value, True)

    def _if(self, node: Node) -> None:
        kids = node.kids
        while kids and kids[0].what in ("VAR_DECL", "DECL_STMT") and len(kids) > 2:
            self._declare(kids[0]) if kids[0].what == "VAR_DECL" else self.statement(kids[0])
            kids = kids[1:]
        then, other = kids[1], kids[2] if len(kids) > 2 else None
        self.branch(self.truth(kids[0]), lambda: self.statement(then), lambda: self.statement(other) if other else None)

    def branch(self, test: tuple[Any, Any], then: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
        """Runs both sides of a branch, each for the threads that may take it."""
        true, maybe = (np.broadcast_to(one, self.count) for one in test)
        sure, may = self.sure, self.may
        unsure = (maybe & ~true & may).any()
        before = dict(self.env) if unsure else None
        self.sure, self.may = sure & true, may & maybe
        first = then() if self.may.any() else None
        after, at = self.env, (self.sure, self.may)
        if before is not None:
            # Threads that take the first side for certain keep what it did.
            self.env = before
        self.sure, self.may = sure & ~maybe, may & ~true
        second = other() if self.may.any() else None
        if before is not None:
            reached = np.broadcast_to(at[1], self.count)
            stayed = np.broadcast_to(self.may, self.count)
            for name in after.keys() | self.env.keys():
                one, two = after.get(name), self.env.get(name)
                if one is two:
                    continue
                if one is None or two is None:
                    self.env[name] = one if two is None else two
                else:
                    both = reached & stayed
                    self.env[name] = _merged(both, _chosen(reached, one, two), two)
        self.sure, self.may = self.sure | at[0], self.may | at[1]
        if before is not None:
            # A thread that may have taken either side is behind both for certain, if neither leaves.
            gone = np.zeros(self.count, bool)
            for frame in self.frames:
                gone = gone | frame.may
            self.sure = self.sure | (sure & self.may & ~gone)
        return first, second

    def _loop(self, node: Node) -> None:
        what = node.what
        start, test, step, inside = None, None, None, node.kids[-1]
        if what == "FOR_STMT":
            start, test, step, inside = node.kids
        elif what == "WHILE_STMT":
            test = node.kids[0]
        elif what == "DO_STMT":
            inside, test = node.kids
        else:
            self.statement(node.kids[0]) if node.kids[0].what != "VAR_DECL" else self._declare(node.kids[0])
            self._widen(node)
        if start is not None:
            self.statement(start)
        if test is not None and test.what == "NULL_STMT":
            test = None
        self._framed(("BREAK_STMT",), lambda: self._turns(what, test, step, inside, node))

    def _turns(self, what: str, test: Node | None, step: Node | None, inside: Node, node: Node) -> None:
        left: list[tuple[Any, dict[Any, Any]]] = []
        turns, widened = 0, False
        while self.may.any():
            true = maybe = np.ones(self.count, bool)
            if test is not None and (what != "DO_STMT" or turns):
                true, maybe = (np.broadcast_to(one, self.count) for one in self.truth(test))
            elif what == "CXX_FOR_RANGE_STMT":
                true = np.zeros(self.count, bool)
            if (unsure := maybe & ~true & self.may).any():
                left.append((unsure, dict(self.env)))
            self.sure, self.may = self.sure & true, self.may & maybe
            if not self.may.any() or widened:
                break
            turns += 1
            if turns > MAX_TURNS or not (true & self.may).any():
                self._widen(node)
                if test is not None:
                    self.truth(test)
                widened = True
            self._framed(("CONTINUE_STMT",), lambda: self.statement(inside))
            if step is not None and step.what != "NULL_STMT" and self.may.any():
                self.value(step)
        for mask, env in left:
            self._join(mask, env)

    def _widen(self, node: Node) -> None:
        """Variables that a loop assigns to may have any value."""
        if node.assigned is None:
            node.assigned = set(_assigned(node))
        for name in list(self.env):
            if name[0] in node.assigned:
                value = self.env[name]
                if isinstance(value, Span):
                    self.env[name] = choose(self.may, ANY, value)
                elif isinstance(value, Pointer):
                    self.env[name] = Pointer({root: ANY for root in value.targets})

    def _switch(self, node: Node) -> None:
        value, inside = self.value(node.kids[0]), node.kids[-1]
        if not isinstance(value, Span):
            value = ANY
        sure, may = self.sure, self.may
        labels: list[tuple[Node, list[Node | None]]] = []
        for one in inside.kids:
            names: list[Node | None] = []
            while one.what in ("CASE_STMT", "DEFAULT_STMT"):
                names.append(one.kids[0] if one.what == "CASE_STMT" else None)
                one = one.kids[-1]
            labels.append((one, names))
        cases = [compare("==", value, self.number(name)) for _, names in labels for name in names if name is not None]
        none_may = none_sure = np.ones(self.count, bool)
        for true, maybe in cases:
            none_sure, none_may = none_sure & ~maybe, none_may & ~true

        def run() -> None:
            self.sure = self.may = np.zeros(self.count, bool)
            frame = self.frames[-1]
            for one, names in labels:
                for name in names:
                    at = (none_sure, none_may) if name is None else compare("==", value, self.number(name))
                    self.sure = self.sure | (sure & at[0])
                    self.may = self.may | (may & at[1] & ~frame.sure)
                self.statement(one)

        before = dict(self.env)
        self._framed(("BREAK_STMT",), run)
        if (unsure := none_may & ~none_sure & may).any():
            self._join(unsure, before)

    # Expressions.

    def number(self, node: Node) -> Span:
        """The value of an expression that is a number."""
        found = self.value(node)
        return found if isinstance(found, Span) else ANY

    def value(self, node: Node, wanted: Kind | None = None) -> Any:
        """A `Span`, a `Pointer`, `Fields` or a `Closure`."""
        self._step()
        what = node.what
        if node.value is not None:
            return number(node.value)
        method = getattr(self, "_" + what.lower(), None)
        if method is not None:
            return method(node)
        if what in ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "ARRAY_SUBSCRIPT_EXPR", "CXX_THIS_EXPR"):
            return self._load(node)
        if what == "INIT_LIST_EXPR":
            return self._list(node, wanted or node.kind)
        if len(node.kids) == 1 and (what == "UNEXPOSED_EXPR" or what.endswith("CAST_EXPR")):
            return self._cast(node)
        if what == "COMPOUND_LITERAL_EXPR" and node.kids:
            return self.value(node.kids[-1], node.kind)
        found = [self.value(one) for one in node.kids]
        if any(isinstance(one, Pointer) for one in found):
            self._lose(node, f"`{node.cursor.spelling or what.lower()}`")
        return self._unknown(node.kind)

    def _list(self, node: Node, kind_: Kind) -> Any:
        if kind_.what == "record":
            names = [one.spelling for one in node.cursor.type.get_canonical().get_fields()] or list("xyzw")
            return Fields({name: self.value(one) for name, one in zip(names, node.kids, strict=False)})
        return self.value(node.kids[0]) if node.kids else number(0)

    def _cast(self, node: Node) -> Any:
        inner = node.kids[0]
        if node.kind.what == "array" or inner.kind.what == "array":
            return self._address(inner)
        if inner.kind.what == "record" and inner.kind.element is not None and node.kind.what != "record":
            return self._load(node)
        value = self.value(inner)
        if isinstance(value, Span):
            if node.kind.what == "pointer":
                return Pointer({})
            return fitted(value, node.kind) if node.kind.what in ("number", "float") else self._unknown(node.kind)
        if isinstance(value, Pointer) and node.kind.what in ("number", "float"):
            return Span(0.0, 1.0) if node.kind.size == 1 else self._unknown(node.kind)
        return value

    def _lambda_expr(self, node: Node) -> Closure:
        return Closure(node)

    def _unary_operator(self, node: Node) -> Any:
        inner, op = node.kids[0], node.op
        if op == "&":
            return self._address(inner)
        if op == "*":
            return self._load(node)
        if op.startswith("++") or op.startswith("--"):
            before = self.value(inner)
            after = self._moved(before, op[0], number(1), inner.kind)
            self.store(inner, after)
            return after if op.endswith("x") else before
        if op == "!":
            true, maybe = self.truth(inner)
            return _flag(~maybe, ~true)
        value = self.number(inner)
        if op == "-":
            return arithmetic("-", number(0), value, node.kind)
        if op == "~":
            return arithmetic("-", number(-1), value, node.kind)
        return value

    def _moved(self, value: Any, op: str, by: Span, kind_: Kind) -> Any:
        if isinstance(value, Pointer):
            distance = arithmetic("*", by, number(step_of(kind_)), LONG)
            return Pointer({root: arithmetic(op, at, distance, LONG) for root, at in value.targets.items()})
        return arithmetic(op, value if isinstance(value, Span) else ANY, by, kind_)

    def _binary_operator(self, node: Node) -> Any:
        op = node.op
        left, right = node.kids[0], node.kids[-1]
        if op == "=":
            value = self.value(right, left.kind)
            self.store(left, value)
            return value
        if op == ",":
            self.value(left)
            return self.value(right)
        if op in ("&&", "||", "<", ">", "<=", ">=", "==", "!="):
            return _flag(*self.truth(node))
        a, b = self.value(left), self.value(right)
        if isinstance(a, Pointer) and isinstance(b, Pointer):
            distances = [one for one in a.targets if one in b.targets]
            if op != "-" or len(a.targets) != 1 or not distances:
                return ANY
            apart = arithmetic("-", a.targets[distances[0]], b.targets[distances[0]], LONG)
            return arithmetic("/", apart, number(step_of(left.kind)), node.kind)
        if isinstance(b, Pointer):
            a, b, left = b, a, right
        if isinstance(a, Pointer):
            return self._moved(a, op, b if isinstance(b, Span) else ANY, left.kind)
        if not isinstance(a, Span) or not isinstance(b, Span) or op not in "*/%+-<<>>&^|":
            return self._unknown(node.kind)
        return arithmetic(op, a, b, node.kind)

    def _compound_assignment_operator(self, node: Node) -> Any:
        target, op = node.kids[0], node.op.removesuffix("=")
        before, by = self.value(target), self.value(node.kids[1])
        if isinstance(before, Fields):
            after: Any = Fields({})
        else:
            after = self._moved(before, op, by if isinstance(by, Span) else ANY, target.kind)
        self.store(target, after)
        return after

    def _conditional_operator(self, node: Node) -> Any:
        test, then, other = node.kids
        held = true, maybe = self.truth(test)
        one, two = self.branch(held, lambda: self.value(then), lambda: self.value(other))
        if one is None or two is None:
            return two if one is None else one
        true, maybe = (np.broadcast_to(part, self.count) for part in held)
        return _merged(maybe & ~true, _chosen(true, one, two), one)

    def truth(self, node: Node) -> tuple[Any, Any]:
        """For which threads a condition holds for certain, and for which it may hold."""
        self._step()
        if node.what == "UNARY_OPERATOR" and node.op == "!":
            true, maybe = self.truth(node.kids[0])
            return ~np.asarray(maybe), ~np.asarray(true)
        if node.what != "BINARY_OPERATOR":
            return self._nonzero(node)
        left, right = node.kids[0], node.kids[-1]
        if node.op in ("&&", "||"):
            first = self.truth(left)
            one = np.broadcast_to(first[0], self.count), np.broadcast_to(first[1], self.count)
            sure, may = self.sure, self.may
            if node.op == "&&":
                self.sure, self.may = sure & one[0], may & one[1]
            else:
                self.sure, self.may = sure & ~one[1], may & ~one[0]
            two = self.truth(right) if self.may.any() else (node.op == "||", node.op == "||")
            self.sure, self.may = sure, may
            if node.op == "&&":
                return one[0] & two[0], one[1] & two[1]
            if not (may & ~one[0]).any():
                return one
            return one[0] | two[0], one[1] | two[1]
        if node.op in ("<", ">", "<=", ">=", "==", "!="):
            a, b = self.value(left), self.value(right)
            if isinstance(a, Span) and isinstance(b, Span):
                if right.value is None and left.value is None:
                    self.steering |= a.names | b.names
                return compare(node.op, a, b)
            if isinstance(a, Pointer) != isinstance(b, Pointer):
                # A pointer and null: arguments are arrays.
                return (node.op == "!=",) * 2
            return False, True
        return self._nonzero(node)

    def _nonzero(self, node: Node) -> tuple[Any, Any]:
        value = self.value(node)
        if isinstance(value, Pointer):
            return True, True
        return compare("!=", value, number(0)) if isinstance(value, Span) else (False, True)

    # Places.

    def place(self, node: Node) -> Any:
        """Where an expression's value lies: a `Pointer`, or the key of a variable or a member of one."""
        if node.what == "DECL_REF_EXPR":
            if node.target in self.alias:
                return self.alias[node.target]
            if node.kind.what == "array" or node.target in self.shared or node.target in self.contents:
                return Pointer({node.target: number(0)})
            if (node.target,) not in self.env:
                self._global(node)
            return (node.target,)
        if node.what == "ARRAY_SUBSCRIPT_EXPR":
            base, index = self.value(node.kids[0]), self.value(node.kids[1])
            if isinstance(index, Pointer):
                base, index = index, base
            by = index if isinstance(index, Span) else ANY
            return self._moved(base, "+", by, node.kids[0].kind) if isinstance(base, Pointer) else None
        if node.what == "UNARY_OPERATOR" and node.op == "*":
            found = self.value(node.kids[0])
            return found if isinstance(found, Pointer) else None
        if node.what == "MEMBER_REF_EXPR":
            base = self.alias.get("this") if not node.kids else None
            if node.kids:
                base = self.value(node.kids[0]) if node.kids[0].kind.what == "pointer" else self.place(node.kids[0])
            if isinstance(base, tuple):
                return (*base, node.name)
            if isinstance(base, Pointer):
                offset = max(node.cursor.referenced.get_field_offsetof() // 8, 0) if node.cursor.referenced else 0
                variable = _variable(base)
                return (*variable, node.name) if variable else self._moved(base, "+", number(offset), _VOID)
            return None
        if node.what == "CXX_THIS_EXPR":
            return self.alias.get("this")
        converts = node.what in ("UNEXPOSED_EXPR", "MATERIALIZE_TEMPORARY_EXPR") or node.what.endswith("CAST_EXPR")
        if converts and node.kids and node.kids[0].kind.what != "void":
            inner = self.place(node.kids[0])
            component = node.kids[0].kind.what == "record" and node.kind.what != "record"
            return (*inner, "*") if component and isinstance(inner, tuple) else inner
        if node.op.endswith("=") or node.op.startswith(("++", "--")):
            self.value(node)
            return self.place(node.kids[0])
        value = self.value(node)
        name = (f"temporary {self.steps}",)
        self.env[name] = value
        return name

    def _address(self, node: Node) -> Pointer:
        place = self.place(node)
        if isinstance(place, Pointer):
            return place
        return Pointer({place: number(0)} if place is not None else {})

    def _global(self, node: Node) -> None:
        """A variable outside of functions, or one of the builtin ones."""
        declared = node.cursor.referenced
        value: Any = None
        if declared is not None and kind(declared) == "VAR_DECL" and declared.type.is_const_qualified():
            made = lower(declared)
            if made.kids and made.kind.what in ("number", "float"):
                value = fitted(self.number(made.kids[0]), made.kind)
        if declared is not None and kind(declared) in ("FUNCTION_DECL", "CXX_METHOD"):
            value = Fields({})
        self.env[node.target,] = self._unknown(node.kind) if value is None else value

    def _load(self, node: Node) -> Any:
        inner = node.kids[0] if node.what == "MEMBER_REF_EXPR" and node.kids else node
        if inner.what == "DECL_REF_EXPR" and (inner.name, node.name) == ("warpSize", "warpSize"):
            return number(32)
        if inner.what == "DECL_REF_EXPR" and inner.name in _BUILTINS and node.name in _AXES:
            return self._builtin(_BUILTINS[inner.name], _AXES.index(node.name))
        place = self.place(node)
        if isinstance(place, Pointer):
            return place if node.kind.what == "array" else self.access(place, node.kind, reads=True)
        return self._unknown(node.kind) if place is None else self._get(place, node.kind)

    def _builtin(self, what: str, at: int) -> Span:
        """An index of threads or blocks along an axis, or how many there are."""
        axis, block, grid = _AXES[at], self.block[at], self.grid[at]
        asked = {"global": ("block", "thread"), "threads": ("grid",)}.get(what, (what,))
        self.used |= {(one, axis) for one in asked}
        if what == "global":
            return number(np.asarray(self.in_grid[at]) * block + self.thread[at])
        if what in ("grid", "threads"):
            return number(grid * (block if what == "threads" else 1), f"gridDim.{axis}")
        return number({"thread": self.thread[at], "block": self.in_grid[at], "size": block}.get(what, 0))

    def _get(self, place: Any, kind_: Kind) -> Any:
        if place in self.env:
            return self.env[place]
        for upto in range(len(place) - 1, 0, -1):
            above = self.env.get(place[:upto])
            if isinstance(above, Fields) and place[upto] in above.members and upto == len(place) - 1:
                return above.members[place[upto]]
        members = {
            name[len(place)]: value
            for name, value in self.env.items()
            if len(name) == len(place) + 1 and name[: len(place)] == place
        }
        if kind_.what == "record" and members:
            return Fields(members)
        return self._unknown(kind_)

    def _set(self, place: Any, value: Any, fresh: bool = False) -> None:
        """Assigns for the threads that may be here; fresh: a new variable, which others do not have."""
        if isinstance(value, Fields):
            for name, one in value.members.items():
                self._set((*place, name), one)
            if not value.members:
                for name in [one for one in self.env if len(one) > len(place) and one[: len(place)] == place]:
                    del self.env[name]
            self.env[place] = Fields({})
            return
        before = self.env.get(place)
        if place[-1:] == ("*",):
            # Some component of a vector.
            for name in [one for one in self.env if one[: len(place) - 1] == place[:-1] and len(one) >= len(place)]:
                del self.env[name]
            return
        self.env[place] = value if fresh or before is None or self.may.all() else _chosen(self.may, value, before)

    def store(self, node: Node, value: Any) -> None:
        place = self.place(node)
        if isinstance(place, Pointer):
            self.access(place, node.kind, writes=True, value=value)
        elif place is not None:
            self._set(place, fitted(value, node.kind) if isinstance(value, Span) else value)

    def _keep(self, root: Any, value: Span) -> None:
        whole = everywhere(
            Span(np.broadcast_to(value.low, self.count)[self.may], np.broadcast_to(value.high, self.count)[self.may])
        )
        now = self.contents.get(root, Span(np.inf, -np.inf))
        self.contents[root] = Span(min(now.low, whole.low), max(now.high, whole.high))

    def access(
        self,
        pointer: Pointer,
        kind_: Kind,
        *,
        reads: bool = False,
        writes: bool = False,
        certain: bool = True,
        value: Any = None,
    ) -> Any:
        """Reads or writes what a pointer points to; the value that is read."""
        found: Any = None
        for root, offset in pointer.targets.items():
            if isinstance(root, tuple):
                if writes:
                    self._set(root, value if value is not None else self._unknown(kind_))
                found = self._get(root, kind_)
            elif root in self.arrays:
                self._touch(self.arrays[root], offset, max(kind_.size, 1), reads, writes, certain)
            else:
                if root in self.shared:
                    made = self.arrays.setdefault(f"shared {root}", Array(step_of(self.shared[root].kind)))
                    self._touch(made, offset, max(kind_.size, 1), reads, writes, False)
                if writes:
                    self._keep(root, value if isinstance(value, Span) else of_kind(kind_))
                elif root in self.contents and kind_.what == "number" and self.contents[root].bounded and certain:
                    found = fitted(self.contents[root], kind_)
        return self._unknown(kind_) if found is None or len(pointer.targets) > 1 else found

    def _touch(self, array: Array, offset: Span, size: int, reads: bool, writes: bool, certain: bool) -> None:
        if not self.may.any():
            return
        here = self.may & ~absent(offset)
        if not here.any():
            return
        low, high = (np.broadcast_to(one, self.count)[here] for one in (offset.low, offset.high))
        array.read, array.written = array.read or reads, array.written or writes
        array.strides |= offset.strides
        first, last = float(low.min()), float(high.max()) + size
        if not np.isfinite(last) or not np.isfinite(first) or last > MAX_ELEMENTS * array.element:
            array.open = True
            array.early |= reads
            return
        array.negative |= first < 0
        array.reach = max(array.reach, int(-(-last // array.element)))
        if array.threads is None:
            array.threads = np.zeros(self.count, bool)
        array.threads = array.threads | here
        if len(array.assigned) < array.reach:
            array.assigned = np.concatenate([array.assigned, np.zeros(array.reach - len(array.assigned), bool)])
        width = max(1, size // array.element)
        if reads and not array.early:
            places = (low // array.element).astype(np.int64).clip(0)
            array.early = not offset.known or not all(array.assigned[places + at].all() for at in range(width))
        if writes and certain and offset.known:
            exact = np.broadcast_to(offset.low, self.count)[self.sure & here] // array.element
            array.collides |= len(np.unique(exact)) < len(exact)
            for at in range(width):
                chosen = exact + at
                array.assigned[chosen[(chosen >= 0) & (chosen < len(array.assigned))]] = True

    def _unknown(self, kind_: Kind) -> Any:
        if kind_.what in ("number", "float"):
            return of_kind(kind_)
        return Pointer({}) if kind_.what in ("pointer", "array") else Fields({})

    def _lose(self, node: Node, why: str) -> None:
        """Whatever the part of the source does to arrays is not known."""
        line = node.cursor.location.line
        for one in _all(node):
            value = self.env.get((one.target,)) if one.what == "DECL_REF_EXPR" else None
            for root in value.targets if isinstance(value, Pointer) else ():
                if root in self.arrays:
                    self.arrays[root].lost = f"{why} in line {line}"

    # Calls.

    def _call_expr(self, node: Node) -> Any:
        target = node.cursor.referenced
        name = node.name or (target.spelling if target is not None else "")
        if target is None:
            return self._strange(node, name, [self.value(one) for one in node.kids])
        method = kind(target) in ("CXX_METHOD", "CONSTRUCTOR", "CONVERSION_FUNCTION")
        if kind(target) == "CONSTRUCTOR":
            return self._construct(node, target)
        given = [one for one in node.kids if not _names(one, node.target)]
        if name == "operator()" and given:
            made = self.value(given[0])
            if isinstance(made, Closure):
                inside = made.node
                parameters = [one for one in inside.kids if one.what == "PARM_DECL"]
                return self.call(parameters, inside.kids[-1], given[1:], node.kind)
        this = None
        if method:
            member = next(
                (one for one in node.kids if _names(one, node.target) and one.what == "MEMBER_REF_EXPR"), None
            )
            if member is not None:
                this = self.alias.get("this") if not member.kids else None
                if member.kids:
                    at = member.kids[0]
                    this = self.value(at) if at.kind.what == "pointer" else self.place(at)
                    this = _variable(this) or this
            elif name == "operator=" and len(given) == 2:
                value = self.value(given[1])
                self.store(given[0], value)
                return value
            elif given:
                this, given = self.place(given[0]), given[1:]
        definition = target.get_definition() or target
        if body(definition) is not None:
            parameters, statements = self._function(definition)
            if statements is not None:
                return self.call(parameters, statements, given, node.kind, this)
        return self._known(node, name, given)

    def _construct(self, node: Node, target: Any) -> Any:
        values = [self.value(one) for one in node.kids]
        if node.kind.what in ("number", "float") and values:
            return values[0] if isinstance(values[0], Span) else self._unknown(node.kind)
        if len(values) == 1 and isinstance(values[0], Fields):
            return values[0]
        if any(isinstance(one, Pointer) for one in values):
            self._lose(node, f"`{target.spelling}`")
        if target.spelling == "dim3":
            return Fields({name: value for name, value in zip("xyz", values, strict=False)})
        return Fields({})

    def _known(self, node: Node, name: str, given: Sequence[Node]) -> Any:
        """A call of a function without a body: one of the language, or a stranger."""
        short = name.removeprefix("native_").removeprefix("half_")
        if name in _WORK_ITEMS and given:
            axis = self.number(given[0])
            fixed = axis.known and axis.uniform and 0 <= int(axis.low) < 3
            return self._builtin(_WORK_ITEMS[name], int(axis.low)) if fixed else of_kind(UINT)
        values = [self.value(one) for one in given]
        numbers = [one if isinstance(one, Span) else ANY for one in values]
        pointers = [one for one in values if isinstance(one, Pointer)]
        if any(part in name for part in _NOTHING) and "memcpy" not in name:
            return self._unknown(node.kind)
        if short in ("min", "max", "fmin", "fmax", "fminf", "fmaxf", "umin", "umax") and len(values) == 2:
            return arithmetic("min" if "min" in short else "max", numbers[0], numbers[1], node.kind)
        if short == "clamp" and len(values) == 3:
            return arithmetic("min", arithmetic("max", numbers[0], numbers[1], node.kind), numbers[2], node.kind)
        if short in ("mul24", "__mul24", "__umul24"):
            return arithmetic("*", numbers[0], numbers[1], node.kind)
        if short in ("mad24", "mad", "fma") and node.kind.what == "number":
            return arithmetic("+", arithmetic("*", numbers[0], numbers[1], node.kind), numbers[2], node.kind)
        if short in _SAME and numbers[0].known:
            found = np.abs(numbers[0].low)
            return Span(found, found)
        if short in ("ceil", "floor", "ceilf", "floorf") and numbers[0].known:
            found = (np.ceil if short.startswith("ceil") else np.floor)(np.float64(numbers[0].low))
            return Span(found, found)
        if "shfl" in name or "broadcast" in name:
            return everywhere(numbers[1 if name.endswith("_sync") else 0]) if not pointers else self._unknown(node.kind)
        if name.startswith(("make_", "convert_", "as_")) and not pointers:
            if name.startswith("make_"):
                return Fields(dict(zip("xyzw", values, strict=False)))
            converts = "convert" in name and node.kind.what == "number"
            return fitted(numbers[0], node.kind) if converts else self._unknown(node.kind)
        if pointers:
            return self._with_pointers(node, name, given, values)
        return self._unknown(node.kind)

    def _with_pointers(self, node: Node, name: str, given: Sequence[Node], values: Sequence[Any]) -> Any:
        elements = [one.kind.element or _VOID for one in given]
        first = values[0]
        if "atom" in name and isinstance(first, Pointer):
            self.access(first, elements[0], reads=True, writes=True, certain=False)
            for one in values[1:]:
                if isinstance(one, Pointer):
                    self._lose(node, f"`{name}`")
            return self._unknown(node.kind)
        if name in _READS and isinstance(first, Pointer):
            return self.access(first, node.kind, reads=True)
        if name.startswith("__st") and isinstance(first, Pointer):
            return self.access(first, elements[0], writes=True, value=values[1])
        if (vector := re.fullmatch(r"v(load|store)(?:a?_half)?(\d*)(?:_rt\w)?", name)) is not None:
            index, pointer = values[-2:]
            wide = bytes_of(elements[-1].size * int(vector[2] or 1))
            if isinstance(pointer, Pointer) and isinstance(index, Span):
                at = self._moved(pointer, "+", index, Kind("pointer", 8, "", element=wide))
                self.access(at, wide, reads=vector[1] == "load", writes=vector[1] == "store")
            return self._unknown(node.kind)
        if "memcpy" in name and len(values) >= 3 and isinstance(values[1], Pointer):
            size = values[2] if isinstance(values[2], Span) else ANY
            bytes_ = bytes_of(int(size.high) if size.known and size.uniform else 1)
            if not size.known:
                self._lose(node, f"`{name}`")
            self.access(values[1], bytes_, reads=True)
            if isinstance(first, Pointer):
                self.access(first, bytes_, writes=True)
            return first
        return self._strange(node, name, values)

    def _strange(self, node: Node, name: str, values: Sequence[Any]) -> Any:
        """A function whose body is not there may do anything with what it is given a pointer to."""
        for one in values:
            for root in one.targets if isinstance(one, Pointer) else ():
                if root in self.arrays:
                    self.arrays[root].lost = f"`{name or 'a call'}` in line {node.cursor.location.line}"
                elif isinstance(root, tuple):
                    self._set(root, ANY)
                elif root in self.contents:
                    self.contents[root] = ANY
        return self._unknown(node.kind)


def _flag(true: Any, maybe: Any) -> Span:
    low, high = np.asarray(true).astype(np.int64), np.asarray(maybe).astype(np.int64)
    return Span(low, low) if np.array_equal(low, high) else Span(low.astype(float), high.astype(float))


def _chosen(mask: Any, one: Any, other: Any) -> Any:
    """`one` for the threads of the mask."""
    if isinstance(one, Span) and isinstance(other, Span):
        return choose(mask, one, other)
    if isinstance(one, Pointer) and isinstance(other, Pointer):
        roots = {**one.targets, **other.targets}
        return Pointer({at: choose(mask, one.targets.get(at, NOWHERE), other.targets.get(at, NOWHERE)) for at in roots})
    return one


def _merged(mask: Any, one: Any, other: Any) -> Any:
    """`one`, and for the threads of the mask `other` as well."""
    if isinstance(one, Span) and isinstance(other, Span):
        return choose(mask, hull(one, other), one) if np.any(mask) else one
    if isinstance(one, Pointer) and isinstance(other, Pointer):
        roots = {**one.targets, **other.targets}
        pairs = {at: (one.targets.get(at, NOWHERE), other.targets.get(at, NOWHERE)) for at in roots}
        return Pointer(
            {at: choose(mask, blend(*pair), pair[0]) if np.any(mask) else pair[0] for at, pair in pairs.items()}
        )
    return one


def _all(node: Node) -> Iterator[Node]:
    yield node
    for one in node.kids:
        yield from _all(one)


def _assigned(node: Node) -> Iterator[str]:
    """The variables that a part of the source may change."""
    for one in _all(node):
        changes = one.what == "COMPOUND_ASSIGNMENT_OPERATOR" or (
            one.what in ("BINARY_OPERATOR", "UNARY_OPERATOR")
            and (one.op == "=" or one.op.startswith(("++", "--")) or one.op == "&")
        )
        if changes or one.what == "CALL_EXPR":
            for target in one.kids[:1] if changes else one.kids:
                yield from (inner.target for inner in _all(target) if inner.what == "DECL_REF_EXPR")
        elif one.what == "VAR_DECL":
            yield one.target


def _leaves(node: Node) -> Iterator[Node]:
    if node.what == "INIT_LIST_EXPR":
        for one in node.kids:
            yield from _leaves(one)
    else:
        yield node


def _variable(pointer: Any) -> Any:
    """The variable that a pointer points to; None for others."""
    roots = list(pointer.targets) if isinstance(pointer, Pointer) else []
    return roots[0] if len(roots) == 1 and isinstance(roots[0], tuple) else None


def _names(node: Node, target: str) -> bool:
    """Whether an argument of a call is the name of what is called."""
    while node.what == "UNEXPOSED_EXPR" and len(node.kids) == 1:
        node = node.kids[0]
    return node.what in ("DECL_REF_EXPR", "MEMBER_REF_EXPR") and node.target == target
