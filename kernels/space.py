"""Which points of a template are feasible, and why the others are not. Nothing is compiled or measured.

Owns the rules (`SpaceRule`) that parameters, constraints and device limits become, the product of the parameters as
numbers (`Domain`), and the listed feasible points (`Space`): which of them a search may ask, who their neighbours are,
and the reason why another point is not one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits, occupancy
from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.spec.expression import MAX_INTEGER, Expression, ExpressionError, parse
from tunesmith.kernels.spec.task import Geometry, Workload
from tunesmith.kernels.spec.template import BACKENDS, Config, Parameter, Template, assignments
from tunesmith.kernels.spec.validation import MAX_BLOCKS

Flags = NDArray[np.bool_]


@dataclass(eq=False)
class SpaceRule:
    """A condition on some parameters: `expression` is true, where `constants` are names that are not parameters (sizes,
    types). A point where the expression has no value (a division by zero, say) breaks the rule.

    because: of the condition, for people. quantity: for the explanation, the bounded quantity: its name, its value,
    and its bound in words.
    """

    expression: Expression
    constants: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    kind: str = "constraint"
    label: str = ""
    quantity: tuple[str, Expression, str] | None = None

    def __post_init__(self) -> None:
        self.label = self.label or self.expression.text
        self.names = self.expression.names - self.constants.keys()

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Whether a point keeps the rule. config: a value for each of `names`, at least."""
        try:
            return bool(self.expression.evaluate({**self.constants, **config}))
        except ExpressionError:
            return False

    def flags(self, values: Mapping[str, NDArray[Any]], count: int) -> Flags:
        """The rule on `count` candidates at once; `values` holds an array of length `count` for each of `names`, in
        which flags are integers 0 and 1, so that arithmetic on them means what it does in Python.

        Where arrays have no value, as they hold several types or evaluate both sides of a condition, each combination
        of values is evaluated by itself.
        """
        if not self.names:
            return np.full(count, self.holds({}))
        arrays = {name: values[name] for name in self.names}
        if all(array.dtype != object for array in arrays.values()):
            try:
                answer = self.expression.evaluate({**self.constants, **arrays})
                return np.broadcast_to(np.asarray(answer, dtype=np.bool_), (count,))
            except ExpressionError:
                pass
        # 1, 1.0 and True are equal, and are not the same to an expression.
        points = list(
            zip(*([(type(value), value) for value in array.tolist()] for array in arrays.values()), strict=True)
        )
        answers = {
            point: self.holds({name: value for name, (_, value) in zip(arrays, point, strict=True)})
            for point in set(points)
        }
        return np.array([answers[point] for point in points], dtype=np.bool_)

    def explain(self, config: Config) -> str:
        """For a point that breaks the rule, what its numbers are."""
        names = {**self.constants, **config}
        shown = [*sorted(self.names), *sorted(self.expression.names & self.constants.keys())]
        what, value, wanted = self.quantity or ("", self.expression, "")
        numbers = assignments({name: names[name] for name in shown})
        try:
            got = value.evaluate(names)
        except ExpressionError as error:
            return f"{what} has no value: {error}" if what else f"{str(error).rstrip('.')} ({numbers})"
        if what:
            return f"{what} is {got}; it must be {wanted}."
        reason = f" ({because})" if (because := self.because.strip().rstrip(".")) else ""
        return f"`{self.expression.text}` does not hold for {numbers}{reason}."


Codes = NDArray[np.uint16]
"""Rows of positions: element (i, j) is the position of point i's value among the values of parameter j."""


def _value_array(values: Sequence[Any]) -> NDArray[Any]:
    """One parameter's values as rules see them: integers (flags too), floats, text, or objects when mixed, as a whole
    number that became a float would mean something else in `&`, and beyond 2^53 be another."""
    if all(isinstance(value, int) and abs(value) < 1 << 62 for value in values):
        return np.array([int(value) for value in values], dtype=np.int64)
    same = next((kind for kind in (float, str) if all(isinstance(value, kind) for value in values)), object)
    return np.array(values, dtype=same)


class Domain:
    """Parameters with their values numbered from 0; a point is a row of positions or one whole number, its key.

    sizes: the number of values of each parameter; values: these as arrays; column: the place of each parameter by name;
    cartesian: points of the full product; ordered: whether a parameter's values are numbers; order: positions of its
    values from the smallest up, or as they are listed.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in self.parameters)
        if repeated := sorted(name for name in self.names if self.names.count(name) > 1):
            raise TunesmithError(f"The parameter {repeated[0]} is declared twice; give each name once.")
        self.sizes = tuple(len(parameter.values) for parameter in self.parameters)
        self.cartesian = math.prod(self.sizes)
        self.values = tuple(_value_array(parameter.values) for parameter in self.parameters)
        self.column = {name: position for position, name in enumerate(self.names)}
        # Beyond 63 bits no space is listed, and no key is asked for.
        steps = [math.prod(self.sizes[column + 1 :]) for column in range(len(self.sizes))]
        self._strides = np.array([min(step, np.iinfo(np.int64).max) for step in steps], dtype=np.int64)
        self.ordered = tuple(parameter.ordered for parameter in self.parameters)
        # Of an ordered parameter from the smallest value up: `values` need not be listed in rising order.
        self.order = [
            (np.argsort(values, kind="stable") if ordered else np.arange(len(values))).tolist()
            for values, ordered in zip(self.values, self.ordered, strict=True)
        ]
        self._positions = [{value: at for at, value in enumerate(parameter.values)} for parameter in self.parameters]

    def rank(self, column: int) -> NDArray[np.intp]:
        """For each value of parameter `column` its place in rising order (as listed when it is not ordered)."""
        return np.argsort(self.order[column], kind="stable")

    def config(self, row: Sequence[int] | NDArray[Any]) -> Config:
        """The configuration of a row of positions."""
        return {one.name: one.values[int(code)] for one, code in zip(self.parameters, row, strict=True)}

    def encode(self, config: Config) -> tuple[int, ...] | Rejected:
        """The row of positions of `config`, or the reason why it is not even in the product. Text formats lose the
        difference between 1 and 1.0, so that equal numbers are the same value; a flag is not a number."""
        if odd := sorted(config.keys() ^ self.column.keys()):
            return Rejected("unknown_parameter", odd[0], f"{odd[0]} is not a parameter of this space, or has no value.")
        row = []
        for parameter, positions in zip(self.parameters, self._positions, strict=True):
            name, value = parameter.name, config[parameter.name]
            code = positions.get(value)
            if code is None or isinstance(parameter.values[code], bool) != isinstance(value, bool):
                count = len(parameter.values)
                return Rejected("unknown_value", name, f"{name}={value!r} is not among its {count} values.")
            row.append(code)
        return tuple(row)

    def keys(self, codes: Codes) -> NDArray[np.int64]:
        """The places of rows, shape (points, parameters), in the full product, the last parameter running fastest."""
        return codes.astype(np.int64) @ self._strides


MAX_POINTS = 5_000_000
"""Feasible points that are listed at most."""
MAX_PARTIAL = 100_000_000
"""Partial points that are looked at on the way, at most: about twenty seconds."""
MAX_PRODUCT = 1 << 62
"""Points of the full product, so that each has a number of 64 bits."""
_CHUNK = 1 << 18


class Space:
    """The feasible points of some parameters: point i is row i of `codes`, in the order of the full product.

    cartesian: points of the full product. rejected: the number of points refused by each rule (by its label); a point
    counts for the first rule that refuses it, and `reject` names the same one.
    """

    def __init__(self, domain: Domain, rules: Sequence[SpaceRule], codes: Codes, rejected: Mapping[str, int]) -> None:
        self.domain, self.rules, self.codes, self.rejected = domain, tuple(rules), codes, rejected
        self.parameters, self.cartesian, self._keys = domain.parameters, domain.cartesian, domain.keys(codes)

    @classmethod
    def build(cls, parameters: Sequence[Parameter], rules: Sequence[SpaceRule]) -> Space:
        """Lists the feasible points of `parameters` under `rules`; an empty space is legal.

        Raises `TunesmithError` where there are too many, and for a rule that reads an unknown parameter.
        """
        domain = Domain(parameters)
        if domain.cartesian > MAX_PRODUCT:
            raise TunesmithError(
                f"The parameters have {domain.cartesian} combinations, more than {MAX_PRODUCT}: restrict their values."
            )
        rejected = {rule.label: 0 for rule in rules}
        parts = [np.empty((0, len(domain.sizes)), dtype=np.uint16), *_listed(domain, rules, rejected)]
        return cls(domain, rules, np.concatenate(parts), rejected)

    @classmethod
    def from_codes(cls, parameters: Sequence[Parameter], codes: NDArray[Any], label: str) -> Space:
        """The space of exactly these rows of positions, such as a table of measurements; `label` names the source."""
        domain = Domain(parameters)
        rows = np.unique(np.asarray(codes, dtype=np.uint16).reshape(-1, len(domain.sizes)), axis=0)
        return cls(domain, (), rows, {label: domain.cartesian - len(rows)})

    def __len__(self) -> int:
        """How many feasible points there are."""
        return len(self.codes)

    def codes_of(self, points: Sequence[int] | NDArray[np.int64]) -> Codes:
        """Positions of the values of `points`, shape (points, parameters)."""
        return self.codes[np.asarray(points, dtype=np.int64)]

    def points_of(self, codes: Codes) -> list[int | None]:
        """The points with these positions of values, shape (points, parameters); None where one is not feasible."""
        keys = self.domain.keys(codes)
        # Rows are in the order of the product, so point i has the i-th smallest key.
        places = np.searchsorted(self._keys, keys)
        there = places < len(self._keys)
        there[there] = self._keys[places[there]] == keys[there]
        return [place if good else None for place, good in zip(places.tolist(), there.tolist(), strict=True)]

    def config(self, point: int) -> Config:
        """The configuration of `point`."""
        return self.domain.config(self.codes[point])

    def index(self, config: Config) -> int | None:
        """The point of `config`, or None when it is not feasible."""
        row = self.domain.encode(config)
        return None if isinstance(row, Rejected) else self.points_of(np.array([row], dtype=np.uint16))[0]

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """Up to `count` different feasible points drawn at random, fewer only where there are fewer."""
        if count * 3 > len(self):
            return [int(point) for point in rng.choice(len(self), size=min(count, len(self)), replace=False)]
        found: dict[int, None] = {}
        # Not rng.choice: it would shuffle all points to draw a few.
        while len(found) < count:
            found.update(dict.fromkeys(rng.integers(len(self), size=count).tolist()))
        return list(found)[:count]

    def neighbours(self, point: int, *, adjacent: bool = True) -> list[int]:
        """Feasible points that differ from `point` in one parameter.

        With `adjacent`, an ordered (numeric) parameter moves to the nearest feasible value above and below only;
        without it, and for the others, to every feasible value.
        """
        row, runs = self.codes[point], list[tuple[int, list[int]]]()
        for column, (ordered, order) in enumerate(zip(self.domain.ordered, self.domain.order, strict=True)):
            place = order.index(int(row[column]))
            above, below = order[place + 1 :], order[:place][::-1]
            # Of each run, the first feasible value is wanted.
            values = [above, below] if adjacent and ordered else [[code] for code in above + below]
            runs += [(column, codes) for codes in values]
        columns = [column for column, codes in runs for _ in codes]
        rows = np.repeat(row[None, :], len(columns), axis=0)
        rows[np.arange(len(columns)), columns] = [code for _, codes in runs for code in codes]
        points = iter(self.points_of(rows))
        first = [[one for one in islice(points, len(codes)) if one is not None][:1] for _, codes in runs]
        return [one for found in first for one in found]

    def reject(self, config: Config) -> Rejected | None:
        """Why `config` is not feasible, None when it is. `rejected` counts it under the same rule."""
        row = self.domain.encode(config)
        if isinstance(row, Rejected):
            return row
        if self.index(config) is not None:
            return None
        exact = self.domain.config(row)
        for rule in sorted(self.rules, key=lambda rule: _depth(self.domain, rule)):  # as a listing asks them
            if not rule.holds({name: int(v) if isinstance(v, bool) else v for name, v in exact.items()}):
                return Rejected(rule.kind, rule.label, rule.explain(exact))
        [label] = self.rejected  # only a table has points that no rule refuses
        return Rejected("table", label, f"{label} has no such point.")


def _listed(domain: Domain, rules: Sequence[SpaceRule], rejected: dict[str, int]) -> Iterator[Codes]:
    """The feasible points, in the order of the product, in parts of a bounded size; the number of points that each rule
    refuses is added to `rejected`, by its label. Raises `TunesmithError` where there are too many points on the way."""
    # The rules that can be asked once `depth` parameters have values.
    asked: list[list[SpaceRule]] = [[] for _ in range(len(domain.sizes) + 1)]
    for rule in rules:
        asked[_depth(domain, rule)].append(rule)
    looked_at = found = 0

    def completed(rows: Codes, depth: int) -> Iterator[Codes]:
        """The feasible completions of partial points whose first `depth` parameters have values."""
        nonlocal looked_at, found
        looked_at += len(rows)
        completions = math.prod(domain.sizes[depth:])
        for rule in asked[depth] if len(rows) else ():
            columns = {name: domain.column[name] for name in rule.names}
            values = {name: domain.values[column][rows[:, column]] for name, column in columns.items()}
            kept = rows[rule.flags(values, len(rows))]
            rejected[rule.label] += (len(rows) - len(kept)) * completions
            rows = kept
        found += len(rows) if depth == len(domain.sizes) else 0
        if found > MAX_POINTS or looked_at > MAX_PARTIAL:
            raise TunesmithError(
                f"The space of {domain.cartesian} combinations has more than {MAX_POINTS} feasible points, or its "
                "constraints exclude too few early on: restrict the parameters' values or add constraints."
            )
        if depth == len(domain.sizes):
            yield rows
            return
        size = domain.sizes[depth]
        step = max(1, _CHUNK // size)
        for start in range(0, len(rows), step):
            part = np.repeat(rows[start : start + step], size, axis=0)
            part[:, depth] = np.tile(np.arange(size, dtype=np.uint16), len(part) // size)
            yield from completed(part, depth + 1)

    return completed(np.zeros((1, len(domain.sizes)), dtype=np.uint16), 0)


def _depth(domain: Domain, rule: SpaceRule) -> int:
    """How many parameters, in their order, must have values before `rule` can be asked."""
    unknown = sorted(rule.names - domain.column.keys())
    if unknown:
        raise TunesmithError(
            f"The rule `{rule.label}` reads {unknown[0]}, which is not a parameter; the parameters are "
            f"{', '.join(domain.names) or 'none'}."
        )
    return 1 + max((domain.column[name] for name in rule.names), default=-1)


MAX_CLUSTER = 8
"""Blocks of a cluster on every device that has clusters (CUDA C++ Programming Guide, "Thread Block Clusters")."""


def device_names(limits: DeviceLimits) -> dict[str, int]:
    """The names of a device that constraints may use: a value for each of `DEVICE_NAMES`."""
    digits = re.fullmatch(r"sm_(\d+)[af]?", limits.arch or "")
    threads = limits.max_threads_per_sm or MAX_INTEGER
    return {"compute_capability": int(digits[1]) if digits else 0, "max_threads_per_sm": threads}


def rules(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> list[SpaceRule]:
    """The rules a configuration must meet to be feasible on every one of `workloads`.

    They are the template's constraints and the limits on block and grid dimensions, on threads and shared memory per
    block and on a cap of registers; and whatever decides source or launch must have a value.
    """
    found = []

    def add(condition: str, names: Mapping[str, Any], label: str, **fields: Any) -> None:
        """The rule that `condition` holds, once for workloads that give its names the same values."""
        parsed, distinct = parse(condition), dict[tuple[Any, ...], Workload]()
        for workload in workloads:
            own = sorted(parsed.names & (workload.sizes.keys() | workload.types.keys()))
            distinct.setdefault(tuple(workload.names[name] for name in own), workload)
        for values, workload in distinct.items():
            suffix = f" for {workload.name}" if values else ""
            found.append(SpaceRule(parsed, {**workload.names, **names}, label=f"{label}{suffix}", **fields))

    def bound(kind: str, what: str, text: str, low: int, high: int | None) -> None:
        """The rule that `text` is a whole number from `low` to `high`; None sets no limit."""
        bounds = f"at least {low}" if high is None else f"within {low} to {high}"
        condition = f"{low} <= ({text}) <= {MAX_INTEGER if high is None else high} and ({text}) % 1 == 0"
        quantity = (what, parse(text), f"a whole number {bounds}")
        add(condition, {}, f"{what} {bounds}", kind=kind, quantity=quantity)

    launch = template.launch
    for constraint in template.constraints:
        add(constraint.expression, device_names(limits), constraint.expression, because=constraint.because)
    block = list(launch.block)
    if BACKENDS[template.backend].python:
        # A source in Triton asks for warps, which its template takes to be of 32 threads.
        wider = (limits.warp_size or 32) // 32
        block[0] = f"({block[0]}) * {wider}" if wider > 1 else block[0]
        if any(parameter.name == "num_ctas" for parameter in template.parameters):
            bound("cluster", "num_ctas", "num_ctas", 1, MAX_CLUSTER)
    for axis, text, most in zip("xyz", block, limits.max_block_dims, strict=False):
        bound("block_dim", f"block.{axis}", text, 1, most)
    threads = " * ".join(f"({text})" for text in block)
    bound("threads_per_block", "threads per block", threads, 1, limits.max_threads_per_block)
    static, dynamic = template.static_shared_bytes, launch.shared_bytes
    # Static shared memory never exceeds the default limit; only the dynamic part can opt in to more.
    most_shared = limits.shared_per_block_optin or limits.shared_per_block
    bound("shared_per_block", "static shared memory", static, 0, limits.shared_per_block)
    bound("shared_per_block", "dynamic shared memory", dynamic, 0, None)
    bound("shared_per_block", "shared memory", f"({static}) + ({dynamic})", 0, most_shared)
    if template.max_registers is not None:
        bound("max_registers", "max_registers", template.max_registers, 0, limits.max_registers_per_thread)
    if (flag := parse(template.fast_math)).names:  # a constant was evaluated when the template was read
        quantity = ("fast_math", flag, "true or false")
        add(f"({flag.text}) or True", {}, "fast_math has a value", kind="fast_math", quantity=quantity)
    for axis, text, most in zip("xyz", launch.grid, limits.max_grid_dims or (MAX_BLOCKS,) * 3, strict=False):
        bound("grid_dim", f"grid.{axis}", text, 1, most)
    return found


def feasible(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> Space:
    """The space of configurations that are feasible on every one of `workloads`; it may be empty."""
    return Space.build(template.parameters, rules(template, workloads, limits))


def default_refused(template: Template, workloads: Sequence[Workload], limits: DeviceLimits) -> str:
    """Why the default configuration is not feasible on `workloads`, as a sentence; empty where it is."""
    config = template.default_config
    broken = next((rule for rule in rules(template, workloads, limits) if not rule.holds(config)), None)
    return "" if broken is None else broken.explain(config)


def require_points(space: Space, template: Template) -> None:
    """Raises `TunesmithError`, naming the rules that leave no point, when the space is empty."""
    if len(space):
        return
    never = next((rule.explain({}).rstrip(".") for rule in space.rules if not rule.names and not rule.holds({})), None)
    if never is not None:
        raise TunesmithError(f"The template {template.name} has no feasible configuration: {never}; correct it.")
    others = {f"`{dropped.label}`": [rule for rule in space.rules if rule is not dropped] for dropped in space.rules}
    binding = [label for label, left in others.items() if any(map(len, _listed(space.domain, left, Counter())))]
    cause = f"without {', '.join(binding)} there would be some" if binding else "several constraints exclude all"
    raise TunesmithError(
        f"The template {template.name} has no feasible configuration among {space.cartesian}: {cause}; "
        "relax the constraint or add values to the parameters it uses."
    )


def compiler_rejection(limits: DeviceLimits, geometry: Geometry, resources: Resources) -> Rejected | None:
    """Why a compiled kernel cannot be launched at `geometry`, or None.

    Registers are allocated to a block for whole groups of warps, in units of a warp's allocation; a block whose
    registers exceed the multiprocessor's is refused by the driver ("too many resources requested for launch").
    """
    threads = math.prod(geometry.block)
    registers, shared = resources.registers or 0, (resources.shared or 0) + geometry.shared_bytes
    answer = occupancy(limits, threads=threads, registers=registers, shared=shared)
    if answer.blocks_per_sm:
        return None
    reason = answer.limiter or "occupancy"
    rule = reason.replace("_", " ")
    return Rejected(
        reason,
        rule,
        f"a block of {threads} threads with {registers} registers each and {shared} bytes of shared memory exceeds the "
        f"device's {rule}: take less of it.",
    )
