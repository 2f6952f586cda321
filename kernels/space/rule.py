"""What a feasible point must satisfy, and what is said about one that does not.

Owns `Reason` and `Rule`, and turning an expression of the constraint language into a rule. Which points a set of
rules leaves is the business of `kernels.space.space`; where device limits come from is that of `hw`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.expression import Expression, ExpressionError, parse
from tunesmith.kernels.spec.parameter import Config, assignments

Flags = NDArray[np.bool_]


class SpaceError(TunesmithError):
    """The parameters and rules do not describe a space, or it is too large for what was asked."""


class SpaceTooLarge(SpaceError):
    """More points than may be listed."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one point is not feasible.

    `kind` is the family of the rule ("constraint", "threads_per_block", "unknown_value", ...), `rule` its label and
    `detail` one sentence about this point.
    """

    kind: str
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on some parameters.

    `holds` is given a value for each of `names`: scalars, or one-dimensional arrays of equal length (one element a
    candidate; flags arrive as integers 0 and 1, so that arithmetic on them means what it does in Python), and answers
    with a truth value or a boolean array. Extra names may be present. `explain` says for a point that breaks the rule
    what its numbers are.
    """

    kind: str
    label: str
    names: frozenset[str]
    holds: Callable[[Mapping[str, Any]], Any] = field(repr=False, compare=False)
    explain: Callable[[Config], str] = field(repr=False, compare=False)

    @classmethod
    def from_expression(
        cls,
        expression: Expression,
        constants: Mapping[str, Any] | None = None,
        *,
        because: str = "",
        kind: str = "constraint",
        label: str = "",
    ) -> Rule:
        """The rule that `expression` is true; `constants` are names that are not parameters (sizes, types).

        A point where the expression has no value (a division by zero, say) breaks the rule, and `explain` says why.
        """
        known = dict(constants or {})
        names = frozenset(expression.names - known.keys())
        divisors = _divisors(expression.text)

        def holds(values: Mapping[str, Any]) -> Any:
            if any(isinstance(values[name], np.ndarray) for name in names):
                return _vectorised(expression, divisors, {name: values[name] for name in names}, known)
            return _holds(expression, {**known, **values})

        def explain(config: Config) -> str:
            shown = {name: config[name] for name in sorted(names)}
            shown |= {name: known[name] for name in sorted(expression.names & known.keys())}
            numbers = assignments(shown)
            if (unknown := _no_value(expression, {**known, **config})) is not None:
                return f"{unknown} ({numbers})"
            reason = f" ({because.strip().rstrip('.')})" if because.strip() else ""
            return f"`{expression.text}` does not hold for {numbers}{reason}."

        return cls(kind, label or expression.text, names, holds, explain)

    def flags(self, values: Mapping[str, NDArray[Any]], count: int) -> Flags:
        """The rule on `count` candidates at once; `values` holds an array of length `count` for each name."""
        if not self.names:
            return np.full(count, bool(self.holds({})))
        answer = np.asarray(self.holds(values), dtype=np.bool_)
        return np.broadcast_to(answer, (count,))

    def reason(self, config: Config) -> Reason:
        """The reason to give for a `config` that breaks the rule."""
        return Reason(self.kind, self.label, self.explain(config))


@lru_cache(1024)  # a check in hundreds of steps makes the same rules for each of its sizes
def _divisors(expression: str) -> tuple[Expression, ...]:
    """The subexpressions that must not be zero: right sides of / // %, second arguments of the dividing functions."""
    found: dict[str, Expression] = {}
    for node in ast.walk(ast.parse(expression, mode="eval")):
        divisor: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            divisor = node.right
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("ceil_div", "round_up") and len(node.args) == 2:
                divisor = node.args[1]
            elif node.func.id == "log2":
                divisor = node.args[0]
        if divisor is not None and not (isinstance(divisor, ast.Constant) and divisor.value):
            text = ast.unparse(divisor)
            found[text] = parse(text)
    return tuple(found.values())


def _vectorised(
    expression: Expression, divisors: tuple[Expression, ...], values: Mapping[str, Any], known: Mapping[str, Any]
) -> Flags:
    """`expression` on arrays with the meaning it has on scalars.

    Arrays evaluate both sides of `and`, `or` and `if`, and divide by zero without complaint, where scalars
    short-circuit or raise. So wherever a divisor is zero, or the arrays cannot be evaluated as a whole, the points in
    question are evaluated one at a time. So are values of several types, as an array has one type.
    """
    count = max(len(value) for value in values.values() if isinstance(value, np.ndarray))
    names = {**known, **values}
    doubtful = np.zeros(count, dtype=np.bool_)
    answer = np.zeros(count, dtype=np.bool_)
    if any(isinstance(value, np.ndarray) and value.dtype == object for value in values.values()):
        doubtful[:] = True
    else:
        try:
            for divisor in divisors:
                doubtful |= np.asarray(divisor.evaluate(names) == 0, dtype=np.bool_)
            answer |= np.asarray(expression.evaluate(names), dtype=np.bool_)
        except ExpressionError:
            doubtful[:] = True
    if doubtful.any():
        answer[doubtful] = _one_by_one(expression, values, known, np.flatnonzero(doubtful))
    return answer


def _one_by_one(
    expression: Expression, values: Mapping[str, Any], known: Mapping[str, Any], positions: NDArray[np.intp]
) -> list[bool]:
    """Whether `expression` is true at `positions`. Parameters have few values, and their combinations come again."""
    columns = [
        value[positions].tolist() if isinstance(value, np.ndarray) else [value] * len(positions)
        for value in values.values()
    ]
    seen: dict[tuple[Any, ...], bool] = {}
    found = []
    for point in zip(*columns, strict=True):
        # 1, 1.0 and True are one key, and are not the same to an expression.
        key = (point, tuple(map(type, point)))
        if key not in seen:
            seen[key] = _holds(expression, {**known, **dict(zip(values, point, strict=True))})
        found.append(seen[key])
    return found


def _holds(expression: Expression, names: Mapping[str, Any]) -> bool:
    """Whether the expression is true; where it has no value it is not."""
    try:
        return bool(expression.evaluate(names))
    except ExpressionError:
        return False


def _no_value(expression: Expression, names: Mapping[str, Any]) -> str | None:
    """Why the expression has no value, or None."""
    try:
        expression.evaluate(names)
    except ExpressionError as error:
        return str(error).rstrip(".")
    return None
