"""Lists the feasible points: parameters one after another, rules as soon as they can say no, counts kept exactly.

Owns the plan of a construction (`Plan`: which rule is checked when) and carrying it out. The plan is a fixed sequence
of checks, so that the number of points a rule rejects and the reason given for a single point agree. What is done
with the points is for `kernels.space.space` (listed) and `kernels.space.lazy_space` (too many to list).

The method: rules that share no parameter are independent, so the parameters fall into groups whose feasible parts are
listed apart and multiplied at the end. A rule over few values becomes a table of all its answers; the table, reduced
by "any", also rejects partial assignments that no value of the missing parameters can save (generalised arc
consistency, as in constraint solvers), and applying it to a million partial points is one indexing operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.space.domain import Codes, Domain
from tunesmith.kernels.space.rule import Flags, Rule, SpaceError, SpaceTooLarge

MAX_TABLE = 1 << 22
"""Entries of the largest table of answers; a rule over more combinations is evaluated on the points themselves."""
_CHUNK = 1 << 21


@dataclass(frozen=True, slots=True)
class Check:
    """Rule number `rule` asked about `columns` (the last one is the newest); `table` is None: ask the rule itself.

    `table` is indexed by the positions in `columns`, flattened, the last column running fastest.
    """

    rule: int
    columns: tuple[int, ...]
    table: Flags | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters tied together by rules, in the order in which they are assigned, and what is checked after each."""

    columns: tuple[int, ...]
    checks: tuple[tuple[Check, ...], ...]


class Plan:
    """The sequence of checks for `rules` over `domain`: those without names, those on one parameter, then groups."""

    def __init__(self, domain: Domain, rules: Sequence[Rule]) -> None:
        self.domain, self.rules = domain, tuple(rules)
        for rule in self.rules:
            unknown = sorted(rule.names - domain.column.keys())
            if unknown:
                raise SpaceError(
                    f"The rule `{rule.label}` reads {unknown[0]}, which is not a parameter; the parameters are "
                    f"{', '.join(domain.names) or 'none'}."
                )
        self.always = tuple(position for position, rule in enumerate(self.rules) if not rule.names)
        self.unary: list[Check] = []
        self.kept: list[NDArray[np.intp]] = []
        for column, size in enumerate(domain.sizes):
            left = np.ones(size, dtype=np.bool_)
            for position, rule in enumerate(self.rules):
                if rule.names == {domain.names[column]}:
                    table = rule.flags({domain.names[column]: domain.values[column]}, size)
                    self.unary.append(Check(position, (column,), table))
                    left &= table
            self.kept.append(np.flatnonzero(left))
        self.empty = any(not self.rules[position].holds({}) for position in self.always)
        self.empty = self.empty or any(not len(kept) for kept in self.kept)
        self.groups = () if self.empty else tuple(self._group(columns) for columns in self._tied())

    def sequence(self) -> Iterator[Check]:
        """Every check in order; a point belongs to the first one that it fails."""
        yield from (Check(position, (), None) for position in self.always)
        yield from self.unary
        for group in self.groups:
            for checks in group.checks:
                yield from checks

    def holds(self, check: Check, codes: Codes) -> Flags:
        """The answer of `check` for each row of full-width `codes`."""
        if check.table is not None:
            place = np.zeros(len(codes), dtype=np.int64)
            for column in check.columns:
                place = place * self.domain.sizes[column] + codes[:, column]
            return check.table[place]
        columns = [self.domain.column[name] for name in sorted(self.rules[check.rule].names)]
        values = {self.domain.names[column]: self.domain.values[column][codes[:, column]] for column in columns}
        return self.rules[check.rule].flags(values, len(codes))

    def _tied(self) -> list[list[int]]:
        parent = list(range(len(self.domain.sizes)))

        def root(column: int) -> int:
            while parent[column] != column:
                column = parent[column]
            return column

        for rule in self.rules:
            columns = [root(self.domain.column[name]) for name in rule.names]
            for column in columns[1:]:
                parent[root(column)] = root(columns[0])
        groups: dict[int, list[int]] = {}
        for column in range(len(parent)):
            groups.setdefault(root(column), []).append(column)
        return list(groups.values())

    def _table(self, rule: Rule, columns: Sequence[int]) -> Flags | None:
        """All answers of `rule`, an axis for each of `columns`; False where a value is already excluded."""
        kept = [self.kept[column] for column in columns]
        sizes = tuple(self.domain.sizes[column] for column in columns)
        if math.prod(sizes) > MAX_TABLE:
            return None
        grids = np.meshgrid(*kept, indexing="ij")
        values = {
            self.domain.names[column]: self.domain.values[column][grid.ravel()]
            for column, grid in zip(columns, grids, strict=True)
        }
        table = np.zeros(sizes, dtype=np.bool_)
        table[np.ix_(*kept)] = rule.flags(values, grids[0].size).reshape(grids[0].shape)
        return table

    def _group(self, members: list[int]) -> Group:
        reads = {
            position: {self.domain.column[name] for name in rule.names}
            for position, rule in enumerate(self.rules)
            if len(rule.names) > 1 and self.domain.column[min(rule.names)] in members
        }
        tables = {position: self._table(self.rules[position], sorted(names)) for position, names in reads.items()}
        order = self._order(members, reads, tables)
        place = {column: depth for depth, column in enumerate(order)}
        checks: list[list[Check]] = [[] for _ in order]
        for position, table in tables.items():
            natural = sorted(reads[position])
            columns = sorted(natural, key=place.__getitem__)
            if table is None:
                checks[place[columns[-1]]].append(Check(position, tuple(columns), None))
                continue
            table = table.transpose([natural.index(column) for column in columns])
            for known in range(1, len(columns) + 1):
                missing = tuple(range(known, len(columns)))
                reduced = np.asarray(table.any(axis=missing)) if missing else table
                possible = reduced[np.ix_(*(self.kept[column] for column in columns[:known]))]
                if not possible.all():
                    checks[place[columns[known - 1]]].append(
                        Check(position, tuple(columns[:known]), np.ascontiguousarray(reduced).ravel())
                    )
        # Rules without a table are asked after the others, about the points that are left (as `expand` does).
        ordered = (sorted(row, key=lambda check: check.table is None) for row in checks)
        return Group(tuple(order), tuple(tuple(row) for row in ordered))

    def _order(self, members: list[int], reads: dict[int, set[int]], tables: dict[int, Flags | None]) -> list[int]:
        """Greedy: next come the parameters of the rule that lets the fewest partial points through per parameter."""
        share = {}
        for position, table in tables.items():
            combinations = math.prod(len(self.kept[column]) for column in reads[position])
            share[position] = 0.5 if table is None else max(float(table.sum()) / combinations, 1e-9)
        order: list[int] = []
        while len(order) < len(members):
            best: tuple[float, list[int]] | None = None
            for columns in reads.values():
                missing = sorted(columns - set(order), key=lambda column: len(self.kept[column]))
                if not missing:
                    continue
                known = set(order) | columns
                growth = sum(math.log(len(self.kept[column])) for column in missing)
                for other, names in reads.items():
                    if names <= known and not names <= set(order):
                        growth += math.log(share[other])
                if best is None or growth / len(missing) < best[0]:
                    best = growth / len(missing), missing
            order.extend(best[1] if best is not None else [column for column in members if column not in order])
        return order


def expand(
    plan: Plan, group: Group, depth: int, rows: Codes, reject: Callable[[int, int], None], cap: int | None = None
) -> tuple[Codes, NDArray[np.intp]]:
    """The feasible extensions of partial points by the parameter at `depth` of `group`, and of which row each is one.

    `rows` has a full-width row for each partial point, of which the columns assigned so far count. `reject(rule,
    count)` is told how many extensions each rule refuses. Stops early, incomplete, once past `cap` rows.
    """
    column = group.columns[depth]
    kept = plan.kept[column]
    pieces: list[Codes] = []
    origins: list[NDArray[np.intp]] = []
    total = 0
    step = max(1, _CHUNK // max(1, len(kept)))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        alive = np.ones((len(part), len(kept)), dtype=np.bool_)
        late: list[Check] = []
        for check in group.checks[depth]:
            if check.table is None:
                late.append(check)
                continue
            place = np.zeros(len(part), dtype=np.int64)
            for known in check.columns[:-1]:
                place = place * plan.domain.sizes[known] + part[:, known]
            answers = check.table.reshape(-1, plan.domain.sizes[column])[:, kept][place]
            before = int(np.count_nonzero(alive))
            alive &= answers
            reject(check.rule, before - int(np.count_nonzero(alive)))
        where, value = np.nonzero(alive)
        grown = part[where]
        grown[:, column] = kept[value]
        for check in late:
            answers = plan.holds(check, grown)
            reject(check.rule, len(grown) - int(np.count_nonzero(answers)))
            grown, where = grown[answers], where[answers]
        pieces.append(grown)
        origins.append(where + start)
        total += len(grown)
        if cap is not None and total > cap:
            break
    if not pieces:
        return rows[:0], np.empty(0, dtype=np.intp)
    return np.concatenate(pieces), np.concatenate(origins)


def blank(domain: Domain) -> Codes:
    """One partial point with nothing assigned, shape (1, parameters)."""
    return np.zeros((1, len(domain.sizes)), dtype=np.uint16)


def list_group(plan: Plan, group: Group, limit: int, reject: Callable[[int, int], None]) -> Codes | None:
    """All feasible parts of `group`, or None when more than `limit` partial points have to be kept at once.

    `reject(rule, count)` gets counts in points of the group: a refused partial point stands for all its completions.
    """
    rows = blank(plan.domain)
    for depth in range(len(group.columns)):
        rest = math.prod(len(plan.kept[column]) for column in group.columns[depth + 1 :])

        def counted(rule: int, count: int, weight: int = rest) -> None:
            reject(rule, count * weight)

        rows, _ = expand(plan, group, depth, rows, counted, limit)
        if len(rows) > limit:
            return None
    return rows


def list_groups(plan: Plan, limit: int, most: int | None, counts: dict[int, int]) -> list[Codes] | None:
    """The feasible parts of every group, None when a group has none; adds exact counts by rule to `counts`.

    Raises `SpaceTooLarge` when a group needs more than `limit` partial points or the product exceeds `most`.
    """
    remaining = plan.domain.cartesian
    left = [np.ones(size, dtype=np.bool_) for size in plan.domain.sizes]
    for position in plan.always:
        if not plan.rules[position].holds({}):
            counts[position] = counts.get(position, 0) + remaining
            remaining = 0
    for check in plan.unary:
        if check.table is None or not remaining:
            continue
        column = check.columns[0]
        others = remaining // int(np.count_nonzero(left[column]))
        left[column] &= check.table
        after = others * int(np.count_nonzero(left[column]))
        counts[check.rule] = counts.get(check.rule, 0) + remaining - after
        remaining = after
    if not remaining:
        return None
    parts: list[Codes] = []
    for group in plan.groups:
        own = math.prod(len(plan.kept[column]) for column in group.columns)

        def reject(rule: int, count: int, others: int = remaining // own) -> None:
            counts[rule] = counts.get(rule, 0) + count * others

        rows = list_group(plan, group, limit, reject)
        if rows is None:
            raise SpaceTooLarge(_too_large(plan, limit))
        remaining = remaining // own * len(rows)
        parts.append(rows)
        if not remaining:
            return None
    if most is not None and remaining > most:
        raise SpaceTooLarge(_too_large(plan, most))
    return parts


def _too_large(plan: Plan, limit: int) -> str:
    return (
        f"The space of {plan.domain.cartesian} points has more than {limit} to list; search it without listing "
        "(build_space does that), or restrict its parameters."
    )
