"""A number that a kernel reaches on several sets of sizes, as an expression of the sizes.

Owns the search: a product of sizes, of which each may be divided or be some elements longer, that is the number on
every set; then whether it holds is a matter of evaluation and not of how the source is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tunesmith.kernels.spec.expression import parse

Sets = Sequence[Mapping[str, int]]
MAX_SLACK = 8
"""Elements of a row that a kernel may leave out, as a stencil does."""
_DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256)
MAX_DIMS = 5


def values(expression: str, sets: Sets) -> tuple[int, ...]:
    return tuple(int(parse(expression).integer(one)) for one in sets)


def _factors(sets: Sets) -> Iterator[tuple[str, tuple[int, ...]]]:
    shown = [(name, tuple(one[name] for one in sets)) for name in sets[0]]
    for name, of in shown:
        for more in range(1, MAX_SLACK + 1):
            yield f"({name} + {more})", tuple(one + more for one in of)
        for less in range(1, MAX_SLACK + 1):
            yield f"({name} - {less})", tuple(one - less for one in of)
    for name, of in shown:
        for divisor in _DIVISORS:
            yield f"ceil_div({name}, {divisor})", tuple(-(-one // divisor) for one in of)
        for divisor in _DIVISORS:
            yield f"{name} // {divisor}", tuple(one // divisor for one in of)
        for other, by in shown:
            if other != name:
                yield f"ceil_div({name}, {other})", tuple(-(-a // b) for a, b in zip(of, by, strict=True))
                if name < other:
                    yield f"({name} + {other})", tuple(a + b for a, b in zip(of, by, strict=True))
                    yield f"({name} + {other} - 1)", tuple(a + b - 1 for a, b in zip(of, by, strict=True))
                yield f"({name} - {other} + 1)", tuple(a - b + 1 for a, b in zip(of, by, strict=True))
        for times in (2, 3, 4):
            yield f"({times} * {name} + 1)", tuple(times * one + 1 for one in of)


def fit(reach: Sequence[int], sets: Sets, strides: frozenset[frozenset[str]] = frozenset()) -> tuple[str, ...] | None:
    """The dimensions of the smallest array with at least `reach` elements on each set, and no more than what a stencil
    leaves out; None where there is none. strides: what indices are multiplied by, which comes last."""
    weight = {name: sum(name in one for one in strides) for name in sets[0]}
    exact = _exact(tuple(reach), sets)
    for found in (exact, _loose(tuple(reach), sets, weight)):
        if found is not None:
            return _ordered(found, sets, weight)
    return None


def _constant(of: Sequence[int]) -> bool:
    return all(one == of[0] for one in of)


def _exact(reach: tuple[int, ...], sets: Sets) -> list[str] | None:
    """Sizes whose product is the number, with a constant and at most one that is divided or changed."""
    plain = [(name, tuple(one[name] for one in sets)) for name in sets[0]]
    found = _product(reach, plain, MAX_DIMS)
    for text, of in () if found is not None else _factors(sets):
        if all(one > 0 and total % one == 0 for total, one in zip(reach, of, strict=True)) and any(
            one > 1 for one in of
        ):
            rest = _product(tuple(total // one for total, one in zip(reach, of, strict=True)), plain, MAX_DIMS - 1)
            if rest is not None:
                return [text, *(one for one in rest if one != "1" or len(rest) > 1)]
    return found


def _product(reach: tuple[int, ...], plain: list[tuple[str, tuple[int, ...]]], dims: int) -> list[str] | None:
    """Plain sizes whose product is the number, and a constant."""
    if _constant(reach):
        return [str(reach[0])]
    for at, (name, of) in enumerate(plain if dims else ()):
        if all(total % one == 0 for total, one in zip(reach, of, strict=True)):
            rest = _product(tuple(total // one for total, one in zip(reach, of, strict=True)), plain[at:], dims - 1)
            if rest is not None:
                return [name, *rest] if rest != ["1"] else [name]
    return None


def _loose(reach: tuple[int, ...], sets: Sets, weight: Mapping[str, int]) -> list[str] | None:
    """Sizes whose product is a little more, as each row leaves out the same few elements."""
    if all(one < MAX_SLACK for one in reach):
        return None
    for name in sorted(sets[0], key=lambda one: -weight[one]):
        of = [one[name] for one in sets]
        spare = [one - total for one, total in zip(of, reach, strict=True)]
        if _constant(spare) and 0 <= spare[0] <= MAX_SLACK:
            return [name]
    for name in sorted(sets[0], key=lambda one: -weight[one]):
        of = [one[name] for one in sets]
        rows = tuple(-(-total // one) for total, one in zip(reach, of, strict=True))
        spare = [row * one - total for row, one, total in zip(rows, of, reach, strict=True)]
        if _constant(spare) and spare[0] <= MAX_SLACK and not _constant(rows):
            others = [{key: value for key, value in one.items() if key != name} for one in sets]
            inner = _product(rows, [(one, tuple(at[one] for at in others)) for one in others[0]], 3)
            inner = inner or _loose(rows, others, weight)
            if inner is not None:
                return [*inner, name]
    return None


def _ordered(found: list[str], sets: Sets, weight: Mapping[str, int]) -> tuple[str, ...]:
    """Sizes that stand in a stride come last; a constant belongs to the last dimension."""
    numbers = [one for one in found if one.isdigit()]
    order = list(sets[0])

    def place(text: str) -> tuple[int, int]:
        names = parse(text).names
        return max(weight[one] for one in names), min(order.index(one) for one in names)

    dims = sorted((one for one in found if not one.isdigit()), key=place)
    if numbers and dims:
        dims[-1] = f"{numbers[0]} * {dims[-1] if dims[-1].isidentifier() or '(' in dims[-1] else f'({dims[-1]})'}"
    return tuple(_bare(one) for one in dims or numbers)


def _bare(text: str) -> str:
    """Without the parentheses around the whole."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text
