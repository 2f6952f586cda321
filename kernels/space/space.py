"""The feasible space: which points a search may ask, who their neighbours are, and why another point is not one.

Owns `Space` and how it is listed. What a rule is in `tunesmith.kernels.space.rule`. Nothing here measures anything.

A space is listed parameter by parameter, in the order of the parameters, on arrays of partial points: each rule is
asked as soon as all parameters that it reads have a value, and a partial point it refuses counts for all its
completions. That order also decides which rule is named for a point that several refuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.space.domain import Codes, Domain
from tunesmith.kernels.space.rule import Reason, Rule, SpaceError, SpaceTooLarge
from tunesmith.kernels.spec.parameter import Config, Parameter

MAX_POINTS = 5_000_000
"""Feasible points that are listed at most."""
MAX_PARTIAL = 100_000_000
"""Partial points that are looked at on the way, at most: about twenty seconds."""
MAX_PRODUCT = 1 << 62
"""Points of the full product, so that each has a number of 64 bits."""
_CHUNK = 1 << 18


class Space:
    """The feasible points of some parameters: point i is row i of `codes`, in the order of the full product.

    rejected: the number of points refused by each rule (by its label); a point counts for the first rule that refuses
    it, and `reject` names the same one.
    """

    def __init__(self, domain: Domain, rules: Sequence[Rule], codes: Codes, rejected: Mapping[str, int]) -> None:
        self.domain, self.rules, self.codes, self.rejected = domain, tuple(rules), codes, rejected
        self._keys = domain.keys(codes)

    @classmethod
    def build(cls, parameters: Sequence[Parameter], rules: Sequence[Rule], *, limit: int = MAX_POINTS) -> Space:
        """Lists the feasible points of `parameters` under `rules`.

        Raises `SpaceTooLarge` beyond `limit` points, `SpaceError` for a rule that reads an unknown parameter, and
        whatever a rule raises where it has no value. An empty space is legal.
        """
        domain = Domain(parameters)
        if domain.cartesian > MAX_PRODUCT:
            raise SpaceTooLarge(
                f"The parameters have {domain.cartesian} combinations, more than {MAX_PRODUCT}: restrict their values."
            )
        listing = _Listing(domain, rules)
        found, count = [np.empty((0, len(domain.sizes)), dtype=np.uint16)], 0
        for part in listing.parts():
            found.append(part)
            count += len(part)
            if count > limit or listing.partial > MAX_PARTIAL:
                raise SpaceTooLarge(
                    f"The space of {domain.cartesian} combinations has more than {limit} feasible points, or its "
                    "constraints exclude too few early on: restrict the parameters' values or add constraints."
                )
        rejected = {rule.label: 0 for rule in rules}
        for rule, refused in zip(rules, listing.refused, strict=True):
            rejected[rule.label] += refused
        return cls(domain, rules, np.concatenate(found), rejected)

    @classmethod
    def from_codes(cls, parameters: Sequence[Parameter], codes: NDArray[Any], label: str) -> Space:
        """The space of exactly these rows of positions, such as a table of measurements; `label` names the source."""
        domain = Domain(parameters)
        rows = np.unique(np.asarray(codes, dtype=np.uint16).reshape(-1, len(domain.sizes)), axis=0)

        positions = [{value: place for place, value in enumerate(values.tolist())} for values in domain.values]

        def holds(values: Mapping[str, Any]) -> Any:
            columns = [np.atleast_1d(values[name]).tolist() for name in domain.names]
            asked = [[place[value] for value in column] for place, column in zip(positions, columns, strict=True)]
            listed = [point is not None for point in space.points_of(np.array(asked, dtype=np.uint16).T)]
            return np.array(listed) if any(isinstance(value, np.ndarray) for value in values.values()) else listed[0]

        rule = Rule("table", label, frozenset(domain.names), holds, lambda config: f"{label} has no such point.")
        space = cls(domain, [rule], rows, {label: domain.cartesian - len(rows)})
        return space

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the order of the columns of `codes`."""
        return self.domain.parameters

    @property
    def cartesian(self) -> int:
        """Points of the full product of all values."""
        return self.domain.cartesian

    @property
    def empty(self) -> bool:
        """True when no point is feasible."""
        return len(self) == 0

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

    def point_of(self, row: Sequence[int] | NDArray[Any]) -> int | None:
        """The point with these positions of values, or None when it is not feasible."""
        return self.points_of(np.asarray(row, dtype=np.uint16)[None, :])[0]

    def config(self, point: int) -> Config:
        """The configuration of `point`."""
        return self.domain.config(self.codes[point])

    def index(self, config: Config) -> int | None:
        """The point of `config`, or None when it is not feasible."""
        row = self.domain.encode(config)
        return None if isinstance(row, Reason) else self.point_of(row)

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """Up to `count` different feasible points drawn at random, fewer only where there are fewer."""
        if count >= len(self):
            return [int(point) for point in rng.permutation(len(self))]
        if count * 3 > len(self):
            return [int(point) for point in rng.choice(len(self), size=count, replace=False)]
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
        rows, runs = self.domain.changes(self.codes[point], adjacent=adjacent)
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
        if self.point_of(row) is not None:
            return None
        exact = self.domain.config(row)
        values = {name: self.domain.values[column][row[column]] for name, column in self.domain.column.items()}
        scalars = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        for rule in _in_order(self.domain, self.rules):
            if not rule.holds(scalars):
                return rule.reason(exact)
        raise AssertionError("a point that no rule refuses is listed")

    def binding_rules(self) -> tuple[Rule, ...]:
        """For an empty space: the rules of which any one, dropped alone, would leave points.

        None of them when two or more rules contradict the rest on their own. A space with points has none either.
        """
        if not self.empty:
            return ()
        return tuple(dropped for dropped in self.rules if self._has_points_without(dropped))

    def _has_points_without(self, dropped: Rule) -> bool:
        left = [rule for rule in self.rules if rule is not dropped]
        return any(len(part) for part in _Listing(self.domain, left).parts())


class _Listing:
    """One pass over a product. partial: partial points looked at so far; refused: points refused by each rule."""

    def __init__(self, domain: Domain, rules: Sequence[Rule]) -> None:
        self._domain = domain
        # The rules that can be asked once `depth` parameters have values.
        self._asked: list[list[tuple[int, Rule]]] = [[] for _ in range(len(domain.sizes) + 1)]
        for position, rule in enumerate(rules):
            self._asked[_depth(domain, rule)].append((position, rule))
        self.partial = 0
        self.refused = [0] * len(rules)

    def parts(self) -> Iterator[Codes]:
        """The feasible points, in the order of the product, in parts of a bounded size."""
        return self._grown(np.zeros((1, len(self._domain.sizes)), dtype=np.uint16), 0)

    def _grown(self, rows: Codes, depth: int) -> Iterator[Codes]:
        """The feasible completions of partial points whose first `depth` parameters have values."""
        self.partial += len(rows)
        rows = self._accepted(rows, depth)
        if depth == len(self._domain.sizes):
            yield rows
            return
        size = self._domain.sizes[depth]
        step = max(1, _CHUNK // size)
        for start in range(0, len(rows), step):
            part = np.repeat(rows[start : start + step], size, axis=0)
            part[:, depth] = np.tile(np.arange(size, dtype=np.uint16), len(part) // size)
            yield from self._grown(part, depth + 1)

    def _accepted(self, rows: Codes, depth: int) -> Codes:
        completions = math.prod(self._domain.sizes[depth:])
        for position, rule in self._asked[depth]:
            if not len(rows):
                break
            columns = {name: self._domain.column[name] for name in rule.names}
            values = {name: self._domain.values[column][rows[:, column]] for name, column in columns.items()}
            left = rows[rule.flags(values, len(rows))]
            self.refused[position] += (len(rows) - len(left)) * completions
            rows = left
        return rows


def _depth(domain: Domain, rule: Rule) -> int:
    """How many parameters, in their order, must have values before `rule` can be asked."""
    unknown = sorted(rule.names - domain.column.keys())
    if unknown:
        raise SpaceError(
            f"The rule `{rule.label}` reads {unknown[0]}, which is not a parameter; the parameters are "
            f"{', '.join(domain.names) or 'none'}."
        )
    return 1 + max((domain.column[name] for name in rule.names), default=-1)


def _in_order(domain: Domain, rules: Sequence[Rule]) -> list[Rule]:
    """The rules in the order in which a listing asks them."""
    return sorted(rules, key=lambda rule: _depth(domain, rule))
