"""The shapes of a Triton kernel's arrays, by what its launches on the host reach (`trace`).

Owns what is concluded from the runs: an extent is an expression of sizes where it is one on every set of sizes; it is
unknown where it depends on numbers that are read, or on a block that is tuned; and a block that leaves an array must
divide a size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.reader.facts import product
from tunesmith.kernels.reader.shapes import fit, values
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.triton.trace import LEAST_BLOCK, LOADED, SETS, Extents, sets_of, stride, trace


class Shapes:
    """The runs of a kernel. sizes: in the order of dimensions, few and powers among them as of `sets_of`; blocks: its
    parameters that are sizes of blocks; quotients: what is divided in it, by what. places: by stride, its place in an
    address; partly: whether the grid is a guess; why: why the kernel cannot be run, else empty; whole: sizes that a
    block has to divide, with the block; shrinking: by block, the arrays that have fewer elements if it is doubled."""

    def __init__(
        self,
        sizes: Sequence[str],
        few: Collection[str],
        powers: Collection[str],
        blocks: Sequence[str],
        quotients: Collection[tuple[str, str]],
    ) -> None:
        multiples = [(one, of) for one, of in quotients if one in sizes and of in sizes]
        self.sets = sets_of(sizes, few, powers, multiples)
        self.blocks, self.places, self.why = list(blocks), dict[str, int](), ""
        self.whole, self.shrinking = dict[tuple[str, str], None](), dict[str, set[str]]()
        self.partly = False
        self._runs, self._unsized = list[Extents](), set[str]()

    def run(
        self,
        source: str,
        entry: str,
        grid: Sequence[str],
        arrays: Mapping[str, str],
        numbers: Mapping[str, Any],
        names: Mapping[str, Any],
    ) -> None:
        """Runs the kernel on each set of sizes, and again on the second one, in which sizes have several blocks: with
        other numbers in its arrays, and with each block doubled.

        arrays: types by argument; numbers: values or expressions by argument; names: constants in expressions."""
        further = [(self.sets[1], {}), *((self.sets[1], {one: 2 * LEAST_BLOCK}) for one in self.blocks)]
        asked = list[dict[str, Any]]()
        for number, (sizes, larger) in enumerate([*((one, {}) for one in self.sets), *further]):
            known = {**names, **sizes, **dict.fromkeys(self.blocks, LEAST_BLOCK), **larger}
            try:
                passed = {one: parse(v).integer(known) if isinstance(v, str) else v for one, v in numbers.items()}
                axes = [parse(one).integer(known) for one in grid]
            except ExpressionError as error:
                self.why = str(error)
                return
            passed |= {one: stride(place) for one, place in self.places.items()}
            asked.append({"grid": axes, "numbers": passed, "arrays": arrays, "loaded": LOADED[number == SETS]})
        if (refused := refuse_text(source, "triton")) is not None:
            self.why = refused.detail
            return
        found = trace(source, entry, asked)
        self.why = next((one for one in found if isinstance(one, str)), "")
        self._runs = [] if self.why else [one for one in found if not isinstance(one, str)]
        for name, run in zip(self.blocks, self._runs[SETS + 1 :], strict=False):
            for array, extents in run.items():
                pairs = list(zip(self._runs[1][array], extents, strict=True))
                if any(after < before for before, after in pairs):
                    self.shrinking.setdefault(name, set()).add(array)
                beyond = [before for before, after in pairs if after > before]
                self.whole |= {(size, name): None for size, value in self.sets[1].items() if value in beyond}
                if {*beyond} - {*self.sets[1].values()}:
                    self._unsized.add(array)

    def reached(self, array: str) -> bool:
        """Whether the array is read or written in each run."""
        return bool(self._runs) and all(any(one[array]) for one in self._runs[: SETS + 1])

    def of(
        self,
        array: str,
        supposed: tuple[str, ...] | None,
        axes: Mapping[str, int],
        factors: Sequence[str],
        fixed: Mapping[str, Any],
    ) -> tuple[list[str], Mapping[str, int]]:
        """The shape of an array, with "?" for what no size tells, and the dimensions of its strides.

        supposed: the shape by the source, whose order is taken if it is as large; axes: of its strides in the launch;
        factors: by which the source multiplies indices; fixed: values of blocks that are not tuned."""
        plain, *by_place = zip(*(one[array] for one in self._runs[:SETS]), strict=True)
        plainly, *others = self._runs[SETS][array]
        order = {self.places[one]: axis for one, axis in axes.items()}
        used = [at for at, one in enumerate(by_place) if any(each > 1 for each in one) or at in order]
        if not used and supposed and values(product(supposed), self.sets) == plain:
            return list(supposed), axes
        used = sorted(used, key=lambda one: order.get(one, one))
        strides = frozenset(frozenset(re.findall(r"\w+", one)) for one in factors)
        shape = [product(self._dimensions(by_place[at], others[at], strides)) for at in used]
        if not used or any(one > 1 for one in plain):
            shape += self._dimensions(plain, plainly, strides)
        for block in (name for name, arrays in self.shrinking.items() if array in arrays):
            value = str(fixed[block]) if block in fixed else "?"
            shape = [re.sub(rf"\b{LEAST_BLOCK}\b", value, one) for one in shape]
        if array in self._unsized or self.partly:
            shape = ["?" if one.isdigit() else one for one in shape]
        return ["?" if "?" in one else one for one in shape], {one: used.index(self.places[one]) for one in axes}

    def _dimensions(self, reach: Sequence[int], other: int, strides: frozenset[frozenset[str]]) -> tuple[str, ...]:
        # An index that is read from an array tells no size, and does not exceed the one that it belongs to.
        first, second = (one + 1 for one in LOADED)
        known = reach[1] == other or (reach[1] > first and other == second)
        return (fit(reach, self.sets, strides) if known else None) or ("?",)
