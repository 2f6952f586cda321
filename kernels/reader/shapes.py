"""A number that a kernel reaches on several sets of sizes, as an expression of the sizes.

Owns the search: a product of sizes, of which each may be divided or be some elements longer, that is the number on
every set; then whether it holds is a matter of evaluation and not of how the source is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.kernels.spec.expression import parse

Sets = Sequence[Mapping[str, int]]
Numbers = Any
"""An array of whole numbers, one for each set."""
MAX_SLACK = 8
"""Elements of a row that a kernel may leave out, as a stencil does."""
_DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256)
MAX_DIMS = 5


def values(expression: str, sets: Sets) -> tuple[int, ...]:
    return tuple(int(parse(expression).integer(one)) for one in sets)


def _shown(sets: Sets) -> dict[str, Numbers]:
    """The value of each size on the sets."""
    return {name: np.array([one[name] for one in sets]) for name in sets[0]}


def _factors(shown: Mapping[str, Numbers]) -> Iterator[tuple[str, Numbers]]:
    for name, of in shown.items():
        yield from ((f"({name} + {more})", of + more) for more in range(1, MAX_SLACK + 1))
        yield from ((f"({name} - {less})", of - less) for less in range(1, MAX_SLACK + 1))
    for name, of in shown.items():
        yield from ((f"ceil_div({name}, {divisor})", -(-of // divisor)) for divisor in _DIVISORS)
        yield from ((f"{name} // {divisor}", of // divisor) for divisor in _DIVISORS)
        for other, by in shown.items():
            if other != name:
                yield f"ceil_div({name}, {other})", -(-of // by)
                if name < other:
                    yield f"({name} + {other})", of + by
                    yield f"({name} + {other} - 1)", of + by - 1
                yield f"({name} - {other} + 1)", of - by + 1
        yield from ((f"({times} * {name} + 1)", times * of + 1) for times in (2, 3, 4, *_DIVISORS[4:]))


def fit(reach: Sequence[int], sets: Sets, strides: frozenset[frozenset[str]] = frozenset()) -> tuple[str, ...] | None:
    """The dimensions of the smallest array with at least `reach` elements on each set, and no more than what a stencil
    leaves out; None where there is none. strides: what indices are multiplied by, which comes last."""
    weight = {name: sum(name in one for one in strides) for name in sets[0]}
    numbers, shown = np.array(reach), _shown(sets)
    found = _exact(numbers, shown) or _loose(numbers, shown, weight)
    return None if found is None else _ordered(found, list(shown), weight)


def _constant(of: Numbers) -> bool:
    return bool((of == of[0]).all())


def _exact(reach: Numbers, shown: Mapping[str, Numbers]) -> list[str] | None:
    """Sizes whose product is the number, with a constant and at most one that is divided or changed."""
    found = _product(reach, list(shown.items()), MAX_DIMS)
    for text, of in () if found is not None else _factors(shown):
        if (of > 0).all() and not (reach % of).any() and (of > 1).any():
            rest = _product(reach // of, list(shown.items()), MAX_DIMS - 1)
            if rest is not None:
                return [text, *(one for one in rest if one != "1" or len(rest) > 1)]
    return found


def _product(reach: Numbers, plain: list[tuple[str, Numbers]], dims: int) -> list[str] | None:
    """Plain sizes whose product is the number, and a constant."""
    if _constant(reach):
        return [str(reach[0])]
    for at, (name, of) in enumerate(plain if dims else ()):
        rest = None if (reach % of).any() else _product(reach // of, plain[at:], dims - 1)
        if rest is not None:
            return [name, *rest] if rest != ["1"] else [name]
    return None


def _loose(reach: Numbers, shown: Mapping[str, Numbers], weight: Mapping[str, int]) -> list[str] | None:
    """Sizes whose product is a little more, as each row leaves out the same few elements."""
    if (reach < MAX_SLACK).all():
        return None
    order = sorted(shown, key=lambda one: -weight[one])
    for name in order:
        spare = shown[name] - reach
        if _constant(spare) and 0 <= spare[0] <= MAX_SLACK:
            return [name]
    for name in order:
        rows = -(-reach // shown[name])
        spare = rows * shown[name] - reach
        if _constant(spare) and spare[0] <= MAX_SLACK and not _constant(rows):
            others = {other: of for other, of in shown.items() if other != name}
            inner = _product(rows, list(others.items()), 3) or _loose(rows, others, weight)
            if inner is not None:
                return [*inner, name]
    return None


def _ordered(found: list[str], order: list[str], weight: Mapping[str, int]) -> tuple[str, ...]:
    """Sizes that stand in a stride come last, or else what counts up to an index first; a constant is in the last."""
    numbers = [one for one in found if one.isdigit()]

    def place(text: str) -> tuple[int, bool, int]:
        names = parse(text).names
        return max(weight[one] for one in names), "+" not in text, min(order.index(one) for one in names)

    dims = sorted((one for one in found if not one.isdigit()), key=place)
    if numbers and dims:
        dims[-1] = f"{numbers[0]} * {dims[-1] if dims[-1].isidentifier() or '(' in dims[-1] else f'({dims[-1]})'}"
    return tuple(_bare(one) for one in dims or numbers)


def _bare(text: str) -> str:
    """Without the parentheses around the whole."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text
