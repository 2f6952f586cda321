"""The Cartesian product of the parameters, as numbers: positions of values, keys of points, encoding and decoding.

Owns no rules: which points are feasible is for `tunesmith.kernels.space.space`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.space.rule import Reason, SpaceError
from tunesmith.kernels.spec.parameter import Config, Parameter

Codes = NDArray[np.uint16]
"""Rows of positions: element (i, j) is the position of point i's value among the values of parameter j."""


def value_array(values: Sequence[Any]) -> NDArray[Any]:
    """One parameter's values as rules see them: integers (flags too), floats, text, or objects when mixed, as a whole
    number that became a float would mean something else in `&`, and beyond 2^53 be another."""
    if all(isinstance(value, int) for value in values) and all(abs(value) < 1 << 62 for value in values):
        return np.array([int(value) for value in values], dtype=np.int64)
    if all(isinstance(value, float) for value in values):
        return np.array(values, dtype=np.float64)
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.str_)
    mixed = np.empty(len(values), dtype=object)
    mixed[:] = values
    return mixed


class Domain:
    """Parameters with their values numbered from 0; a point is a row of positions or one whole number, its key."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.names = tuple(parameter.name for parameter in self.parameters)
        repeated = {name for name in self.names if self.names.count(name) > 1}
        if repeated:
            raise SpaceError(f"The parameter {sorted(repeated)[0]} is declared twice; give each name once.")
        self.sizes = tuple(len(parameter.values) for parameter in self.parameters)
        self.cartesian = math.prod(self.sizes)
        self.values = tuple(value_array(parameter.values) for parameter in self.parameters)
        self.ordered = tuple(parameter.ordered for parameter in self.parameters)
        self.column = {name: position for position, name in enumerate(self.names)}
        # Beyond 63 bits no space is listed, and no key is asked for.
        steps = [math.prod(self.sizes[column + 1 :]) for column in range(len(self.sizes))]
        self._strides = np.array([min(step, np.iinfo(np.int64).max) for step in steps], dtype=np.int64)
        # Neighbouring values of an ordered parameter, smallest first: `values` need not be listed in rising order.
        self._rank = tuple(
            np.argsort(np.argsort(values, kind="stable"), kind="stable") if ordered else np.arange(len(values))
            for values, ordered in zip(self.values, self.ordered, strict=True)
        )
        self._order = tuple(np.argsort(rank, kind="stable").tolist() for rank in self._rank)
        self._positions = tuple(
            {(type(value), value): position for position, value in enumerate(parameter.values)}
            for parameter in self.parameters
        )

    def rank(self, column: int) -> NDArray[np.intp]:
        """For each value of parameter `column` its place in rising order (as listed when it is not ordered)."""
        return self._rank[column]

    def config(self, row: Sequence[int] | NDArray[Any]) -> Config:
        """The configuration of a row of positions."""
        return {
            parameter.name: parameter.values[int(code)] for parameter, code in zip(self.parameters, row, strict=True)
        }

    def encode(self, config: Config) -> tuple[int, ...] | Reason:
        """The row of positions of `config`, or the reason why it is not even in the product."""
        extra = sorted(set(config) - set(self.names))
        if extra:
            return Reason("unknown_parameter", extra[0], f"There is no parameter {extra[0]} in this space.")
        row = []
        for parameter, positions in zip(self.parameters, self._positions, strict=True):
            if parameter.name not in config:
                return Reason("missing_parameter", parameter.name, f"The parameter {parameter.name} has no value.")
            value = config[parameter.name]
            code = positions.get((type(value), value))
            if code is None and isinstance(value, int | float) and not isinstance(value, bool):
                # Text formats lose the difference between 1 and 1.0; equal numbers are the same value.
                other = float if isinstance(value, int) else int
                code = positions.get((other, value))
            if code is None:
                return Reason(
                    "unknown_value",
                    parameter.name,
                    f"{parameter.name}={value!r} is not among its {len(parameter.values)} values.",
                )
            row.append(code)
        return tuple(row)

    def keys(self, codes: Codes) -> NDArray[np.int64]:
        """The places of rows, shape (points, parameters), in the full product, the last parameter running fastest."""
        return codes.astype(np.int64) @ self._strides

    def changes(self, row: Sequence[int] | NDArray[Any], *, adjacent: bool) -> tuple[Codes, list[int]]:
        """Every row that differs from `row` in one parameter, shape (rows, parameters), and the run each is in.

        Of a run, the first feasible one is wanted. With `adjacent`, an ordered parameter makes two runs, the values
        above and those below, nearest first; otherwise each row is a run of its own.
        """
        here = np.asarray(row, dtype=np.uint16)
        columns: list[int] = []
        codes: list[int] = []
        runs: list[int] = []
        run = 0
        for column, size in enumerate(self.sizes):
            place = int(self._rank[column][here[column]])
            order = self._order[column]
            together = adjacent and self.ordered[column]
            for side in (order[place + 1 :], order[:place][::-1]):
                codes.extend(side)
                columns.extend([column] * len(side))
                runs.extend([run] * len(side) if together else range(run, run + len(side)))
                run += 1 if together else len(side)
            assert len(order) == size
        rows = np.repeat(here[None, :], len(codes), axis=0)
        rows[np.arange(len(codes)), columns] = codes
        return rows, runs
