"""A space too large to list: membership, random points and neighbours without ever having all points.

Owns `LazySpace`, which offers what `SearchSpace` promises. A point is its place in the full product (a whole number of
any size). Groups of parameters that no rule ties together are listed apart, so that a large space is often an exact
product of small lists. A group that is itself too large is drawn from by random descent: parameter by parameter among
the values that the rules leave, each draw weighted by how many values there were (Knuth, "Estimating the efficiency of
backtrack programs", 1975), and resampled by those weights to be nearly uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.space.domain import Codes, Domain
from tunesmith.kernels.space.enumeration import Group, Plan, blank, expand, list_group, list_groups
from tunesmith.kernels.space.rule import Rule, SpaceTooLarge
from tunesmith.kernels.space.space import SearchSpace, by_label, combine
from tunesmith.kernels.spec.parameter import Parameter

GROUP_LIMIT = 200_000
"""Partial points of one group that are kept; beyond, the group is drawn from."""
_SAMPLE = 20_000
_OVERSAMPLE = 4


class LazySpace(SearchSpace):
    """Feasible points on demand. `size` is exact where every group of parameters could be listed, else None."""

    listed = False

    def __init__(
        self, plan: Plan, parts: Sequence[Codes | None], size: int | None, rejected: Mapping[str, int]
    ) -> None:
        super().__init__(plan)
        self._parts = tuple(parts)
        self._size = size
        self.rejected = rejected
        self.rejected_exact = size is not None
        self._checks = tuple(plan.sequence())

    @classmethod
    def build(cls, parameters: Sequence[Parameter], rules: Sequence[Rule]) -> LazySpace:
        """Prepares the space: lists what can be listed, counts or estimates what each rule refuses."""
        plan = Plan(Domain(parameters), rules)
        counts: dict[int, int] = {}
        try:
            whole = list_groups(plan, GROUP_LIMIT, None, counts)
        except SpaceTooLarge:
            parts = [list_group(plan, group, GROUP_LIMIT, lambda rule, count: None) for group in plan.groups]
            size = 0 if any(part is not None and not len(part) for part in parts) else None
            return cls(plan, parts, size, by_label(plan, _estimated(plan)))
        return cls(plan, whole or [], prod(len(part) for part in whole) if whole else 0, by_label(plan, counts))

    @property
    def size(self) -> int | None:
        """How many feasible points there are, None when a group of parameters is too large to count."""
        return self._size

    def codes_of(self, points: Sequence[int] | NDArray[np.int64]) -> Codes:
        return self.domain.rows(points)

    def points_of(self, codes: Codes) -> list[int | None]:
        feasible = np.ones(len(codes), dtype=np.bool_)
        for check in self._checks:
            # Only those still in question: a later rule may have no value where an earlier one refuses.
            left = np.flatnonzero(feasible)
            feasible[left] = self._plan.holds(check, codes[left])
        keys = self.domain.keys(codes)
        return [key if good else None for key, good in zip(keys, feasible.tolist(), strict=True)]

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """Up to `count` different points, uniform over listed groups and nearly so over the others."""
        found: dict[int, None] = {}
        if self.empty:
            return []
        if self._size is not None and self._size <= 4 * count:
            rows = combine(self._plan, [part for part in self._parts if part is not None])
            return self.domain.keys(rows[rng.permutation(len(rows))[:count]])
        for _ in range(10):
            found.update(dict.fromkeys(self.domain.keys(self._draw(rng, 2 * (count - len(found)) + 8))))
            if len(found) >= count:
                break
        return list(found)[:count]

    def _draw(self, rng: np.random.Generator, count: int) -> Codes:
        rows = np.zeros((count, len(self.domain.sizes)), dtype=np.uint16)
        for group, part in zip(self._plan.groups, self._parts, strict=True):
            if part is not None:
                drawn = part[rng.integers(len(part), size=count)]
            else:
                drawn = self._descend(rng, group, count * _OVERSAMPLE, count)
                if not len(drawn):
                    return rows[:0]
            columns = list(group.columns)
            rows[:, columns] = drawn[:, columns]
        return rows

    def _descend(self, rng: np.random.Generator, group: Group, width: int, count: int) -> Codes:
        """`count` parts of `group`, with repeats, from `width` descents; none when every descent got stuck."""
        rows = np.repeat(blank(self.domain), width, axis=0)
        weight = np.zeros(width)
        for depth in range(len(group.columns)):
            grown, origin = expand(self._plan, group, depth, rows, lambda rule, count: None)
            if not len(grown):
                return grown
            starts = np.flatnonzero(np.r_[True, origin[1:] != origin[:-1]])
            choices = np.diff(np.r_[starts, len(origin)])
            chosen = starts + (rng.random(len(starts)) * choices).astype(np.int64)
            weight = weight[origin[starts]] + np.log(choices)
            rows = grown[chosen]
        share = np.exp(weight - weight.max())
        return rows[rng.choice(len(rows), size=count, p=share / share.sum())]


def _estimated(plan: Plan) -> dict[int, int]:
    """Points refused by each rule, scaled up from a fixed random sample of the full product."""
    rng = np.random.default_rng(0)
    columns = [rng.integers(size, size=_SAMPLE) for size in plan.domain.sizes]
    rows = np.stack(columns, axis=1).astype(np.uint16)
    counts: dict[int, int] = {}
    for check in plan.sequence():
        answers = plan.holds(check, rows)
        refused = len(rows) - int(np.count_nonzero(answers))
        counts[check.rule] = counts.get(check.rule, 0) + refused * plan.domain.cartesian // _SAMPLE
        rows = rows[answers]
    return counts
