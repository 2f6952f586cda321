"""The feasible space: which points a search may ask, who their neighbours are, and why another point is not one.

Owns the interface `SearchSpace`, the listed `Space` and the choice between it and the lazy one (`build_space`). How a
space is listed is in `kernels.space.enumeration`; spaces too large to list are in `kernels.space.lazy_space`;
what a rule is in `tunesmith.kernels.space.rule`. Nothing here measures anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.space.domain import Codes, Domain
from tunesmith.kernels.space.enumeration import Plan, list_groups
from tunesmith.kernels.space.rule import Reason, Rule, SpaceError, SpaceTooLarge
from tunesmith.kernels.spec.parameter import Config, Parameter

__all__ = [
    "Config",
    "Parameter",
    "Reason",
    "Rule",
    "SearchSpace",
    "Space",
    "SpaceError",
    "SpaceTooLarge",
    "build_space",
]

DEFAULT_LIMIT = 5_000_000
_EXACT_KEYS = 1 << 62


class SearchSpace(ABC):
    """What a strategy may know of a space. A point is a whole number, meaningful to this space only."""

    domain: Domain
    rules: tuple[Rule, ...]
    listed: bool
    rejected: Mapping[str, int]
    """Points refused by each rule (by its label); a point counts for the first rule that refuses it."""
    rejected_exact: bool
    """Whether `rejected` was counted, not estimated from a sample."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.domain, self.rules = plan.domain, plan.rules

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the order of the columns of `codes`."""
        return self.domain.parameters

    @property
    def cartesian(self) -> int:
        """Points of the full product of all values."""
        return self.domain.cartesian

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many feasible points there are; None when they have not been counted."""

    @property
    def empty(self) -> bool:
        """True when no point is feasible."""
        return self.size == 0

    def __len__(self) -> int:
        """How many feasible points there are. Raises `SpaceError` for a space whose points were not counted."""
        if self.size is None:
            raise SpaceError(f"The feasible points of a space of {self.cartesian} were not counted; use `size`.")
        return self.size

    @abstractmethod
    def codes_of(self, points: Sequence[int] | NDArray[np.int64]) -> Codes:
        """Positions of the values of `points`, shape (points, parameters)."""

    @abstractmethod
    def points_of(self, codes: Codes) -> list[int | None]:
        """The points with these positions of values, shape (points, parameters); None where one is not feasible."""

    def point_of(self, row: Sequence[int] | NDArray[Any]) -> int | None:
        """The point with these positions of values, or None when it is not feasible."""
        return self.points_of(np.asarray(row, dtype=np.uint16)[None, :])[0]

    @abstractmethod
    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """Up to `count` different feasible points drawn at random, fewer only where there are fewer."""

    def config(self, point: int) -> Config:
        """The configuration of `point`."""
        return self.domain.config(self.codes_of([point])[0])

    def index(self, config: Config) -> int | None:
        """The point of `config`, or None when it is not feasible."""
        row = self.domain.encode(config)
        return None if isinstance(row, Reason) else self.point_of(row)

    def neighbours(self, point: int, *, adjacent: bool = True) -> list[int]:
        """Feasible points that differ from `point` in one parameter.

        With `adjacent`, an ordered (numeric) parameter moves to the nearest feasible value above and below only;
        without it, and for the others, to every feasible value.
        """
        rows, runs = self.domain.changes(self.codes_of([point])[0], adjacent=adjacent)
        found: dict[int, int] = {}
        for run, other in zip(runs, self.points_of(rows), strict=True):
            if other is not None:
                found.setdefault(run, other)
        return list(found.values())

    def reject(self, config: Config) -> Reason | None:
        """Why `config` is not feasible, None when it is. The rule named is the one that counts it in `rejected`."""
        row = self.domain.encode(config)
        if isinstance(row, Reason):
            return row
        codes = np.array([row], dtype=np.uint16)
        for check in self._plan.sequence():
            if not self._plan.holds(check, codes)[0]:
                return self.rules[check.rule].reason(self.domain.config(row))
        return None

    def binding_rules(self) -> tuple[Rule, ...]:
        """For an empty space: the rules of which any one, dropped alone, would leave points.

        None of them when two or more rules contradict the rest on their own. A space with points has none either.
        """
        if not self.empty:
            return ()
        binding = []
        for dropped in self.rules:
            plan = Plan(self.domain, [rule for rule in self.rules if rule is not dropped])
            try:
                left = list_groups(plan, DEFAULT_LIMIT, None, {}) is not None
            except SpaceTooLarge:
                left = True
            if left:
                binding.append(dropped)
        return tuple(binding)


class Space(SearchSpace):
    """A space whose feasible points are listed: point i is row i of `codes`, in the order of the full product."""

    listed = True
    rejected_exact = True

    def __init__(self, plan: Plan, codes: Codes, rejected: Mapping[str, int]) -> None:
        super().__init__(plan)
        self.codes = codes
        self.rejected = rejected
        # Keys wrap around beyond 2^64, then they are a hash: a match is confirmed by comparing the codes.
        self._strides = np.array([stride % (1 << 64) for stride in plan.domain.strides], dtype=np.uint64)
        if plan.domain.cartesian > _EXACT_KEYS:
            self._strides = np.random.default_rng(0).integers(1, 1 << 63, len(self._strides), dtype=np.uint64)
        keys = _keys(codes, self._strides)
        self._sorted = np.argsort(keys, kind="stable") if plan.domain.cartesian > _EXACT_KEYS else None
        self._keys = keys if self._sorted is None else keys[self._sorted]

    @classmethod
    def build(cls, parameters: Sequence[Parameter], rules: Sequence[Rule], *, limit: int = DEFAULT_LIMIT) -> Space:
        """Lists the feasible points of `parameters` under `rules`.

        Raises `SpaceTooLarge` beyond `limit` points (or partial points kept at once), `SpaceError` for a rule that
        reads an unknown parameter, and whatever a rule raises where it has no value. An empty space is legal.
        """
        plan = Plan(Domain(parameters), rules)
        counts: dict[int, int] = {}
        groups = list_groups(plan, limit, limit, counts)
        return cls(plan, combine(plan, groups), by_label(plan, counts))

    @classmethod
    def from_codes(cls, parameters: Sequence[Parameter], codes: NDArray[Any], label: str) -> Space:
        """The space of exactly these rows of positions, such as a table of measurements; `label` names the source."""
        domain = Domain(parameters)
        rows = np.unique(np.asarray(codes, dtype=np.uint16).reshape(-1, len(domain.sizes)), axis=0)
        present = {row.tobytes() for row in rows}

        def holds(values: Mapping[str, Any]) -> Any:
            columns = [np.atleast_1d(values[name]) for name in domain.names]
            point = zip(*(column.tolist() for column in columns), strict=True)
            encoded = (domain.encode(dict(zip(domain.names, item, strict=True))) for item in point)
            flags = [
                not isinstance(row, Reason) and np.array(row, dtype=np.uint16).tobytes() in present for row in encoded
            ]
            return np.array(flags) if any(isinstance(value, np.ndarray) for value in values.values()) else flags[0]

        rule = Rule("table", label, frozenset(domain.names), holds, lambda config: f"{label} has no such point.")
        plan = Plan(domain, [])
        space = cls(plan, rows, {label: domain.cartesian - len(rows)})
        space.rules = (rule,)
        return space

    @property
    def size(self) -> int:
        """How many feasible points there are."""
        return len(self.codes)

    def codes_of(self, points: Sequence[int] | NDArray[np.int64]) -> Codes:
        return self.codes[np.asarray(points, dtype=np.int64)]

    def points_of(self, codes: Codes) -> list[int | None]:
        keys = _keys(codes, self._strides)
        places = np.searchsorted(self._keys, keys)
        if self._sorted is None:
            # Keys are exact, and point i has the i-th smallest.
            there = places < len(self._keys)
            there[there] = self._keys[places[there]] == keys[there]
            return [place if good else None for place, good in zip(places.tolist(), there.tolist(), strict=True)]
        found: list[int | None] = []
        for place, key, wanted in zip(places.tolist(), keys, codes, strict=True):
            found.append(self._at(place, key, wanted))
        return found

    def _at(self, place: int, key: np.uint64, wanted: Codes) -> int | None:
        assert self._sorted is not None
        while place < len(self._keys) and self._keys[place] == key:
            point = int(self._sorted[place])
            if np.array_equal(self.codes[point], wanted):
                return point
            place += 1
        return None

    def reject(self, config: Config) -> Reason | None:
        row = self.domain.encode(config)
        if not isinstance(row, Reason) and self.point_of(row) is not None:
            return None
        reason = super().reject(config)
        return reason if reason is not None or not self.rules else self.rules[0].reason(config)

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        if count >= len(self):
            return [int(point) for point in rng.permutation(len(self))]
        if count * 3 > len(self):
            return [int(point) for point in rng.choice(len(self), size=count, replace=False)]
        found: dict[int, None] = {}
        # Not rng.choice: it would shuffle all points to draw a few.
        while len(found) < count:
            found.update(dict.fromkeys(rng.integers(len(self), size=count).tolist()))
        return list(found)[:count]


def by_label(plan: Plan, counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by rule number as counts by label, in the order of the rules."""
    rejected = {rule.label: 0 for rule in plan.rules}
    for position, count in counts.items():
        rejected[plan.rules[position].label] += count
    return rejected


def build_space(parameters: Sequence[Parameter], rules: Sequence[Rule], *, limit: int = DEFAULT_LIMIT) -> SearchSpace:
    """The space, listed where it has at most `limit` points, else lazy."""
    try:
        return Space.build(parameters, rules, limit=limit)
    except SpaceTooLarge:
        from tunesmith.kernels.space.lazy_space import LazySpace

        return LazySpace.build(parameters, rules)


def _keys(codes: Codes, strides: NDArray[np.uint64]) -> NDArray[np.uint64]:
    keys = np.zeros(len(codes), dtype=np.uint64)
    for column, stride in enumerate(strides):
        keys += codes[:, column].astype(np.uint64) * stride
    return keys


def combine(plan: Plan, groups: list[Codes] | None) -> Codes:
    """All combinations of one row of each group, in the order of the full product."""
    width = len(plan.domain.sizes)
    if groups is None:
        return np.empty((0, width), dtype=np.uint16)
    count = prod(len(rows) for rows in groups)
    codes = np.empty((count, width), dtype=np.uint16)
    before, after = 1, count
    for group, rows in zip(plan.groups, groups, strict=True):
        after //= len(rows)
        for column in group.columns:
            codes[:, column] = np.tile(np.repeat(rows[:, column], after), before)
        before *= len(rows)
    if plan.domain.cartesian <= _EXACT_KEYS:
        order = np.argsort(_keys(codes, np.array(plan.domain.strides, dtype=np.uint64)), kind="stable")
    else:
        order = np.lexsort(codes.T[::-1])
    return codes[order]
