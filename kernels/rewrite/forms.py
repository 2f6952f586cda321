"""Values as sums of products: what an index, a bound or a step is, whatever variables its author put in between.

Owns the arithmetic of such forms. What a form is made of are atoms, by name: "threadIdx.x" and the like, "@x" for the
number of a thread among all along x, a variable, or an operation other than a sum or a product, such as a division.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

Terms = Mapping[tuple[str, ...], int]


@dataclass(frozen=True)
class Form:
    """A sum of products of atoms. terms: by the sorted atoms that are multiplied, the factor; the empty tuple is the
    constant."""

    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    @staticmethod
    def of(terms: Terms) -> Form:
        return Form(tuple(sorted((atoms, factor) for atoms, factor in terms.items() if factor)))

    @staticmethod
    def atom(name: str) -> Form:
        return Form((((name,), 1),))

    @staticmethod
    def number(value: int) -> Form:
        return Form.of({(): value})

    def __add__(self, other: Form) -> Form:
        found = dict(self.terms)
        for atoms, factor in other.terms:
            found[atoms] = found.get(atoms, 0) + factor
        return Form.of(found)

    def __neg__(self) -> Form:
        return Form(tuple((atoms, -factor) for atoms, factor in self.terms))

    def __sub__(self, other: Form) -> Form:
        return self + -other

    def __mul__(self, other: Form) -> Form:
        found: dict[tuple[str, ...], int] = {}
        for atoms, factor in self.terms:
            for others, another in other.terms:
                key = tuple(sorted((*atoms, *others)))
                found[key] = found.get(key, 0) + factor * another
        return Form.of(found)

    @cached_property
    def atoms(self) -> frozenset[str]:
        return frozenset(atom for atoms, _ in self.terms for atom in atoms)

    @property
    def constant(self) -> int | None:
        """The number that it is; None where it depends on something."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def times(self, atom: str) -> Form:
        """The factor of `atom`; an atom that is multiplied by itself stays in it."""
        found: dict[tuple[str, ...], int] = {}
        for atoms, factor in self.terms:
            if atom in atoms:
                rest = list(atoms)
                rest.remove(atom)
                found[tuple(rest)] = found.get(tuple(rest), 0) + factor
        return Form.of(found)

    def over(self, by: Form) -> Form | None:
        """The exact quotient of two products; None where there is none."""
        if by == ONE:
            return self
        if len(self.terms) != 1 or len(by.terms) != 1 or self.terms[0][1] % by.terms[0][1]:
            return None
        (atoms, factor), (others, divisor) = self.terms[0], by.terms[0]
        left = Counter(atoms)
        left.subtract(others)
        return (
            None if min(left.values(), default=0) < 0 else Form.of({tuple(sorted(left.elements())): factor // divisor})
        )

    def without(self, *names: str) -> Form:
        """The terms in which none of the atoms is."""
        return Form(tuple((atoms, factor) for atoms, factor in self.terms if not set(names) & set(atoms)))

    def replaced(self, atom: str, value: Form) -> Form:
        """The form with `value` in the place of an atom."""
        made = self.without(atom)
        rest = self.times(atom)
        return made + rest.replaced(atom, value) * value if rest.terms else made

    def joined(self) -> Form:
        """The form with coordinates: `blockIdx.x * blockDim.x + threadIdx.x`, times anything, is "@x"."""
        made = self
        for axis in "xyz":
            thread, parts = f"threadIdx.{axis}", (f"blockIdx.{axis}", f"blockDim.{axis}")
            for atoms, factor in self.terms:
                if thread not in atoms:
                    continue
                rest = list(atoms)
                rest.remove(thread)
                block = tuple(sorted((*rest, *parts)))
                if dict(made.terms).get(block) == factor:
                    taken = {atoms: factor, block: factor}
                    kept = {key: value for key, value in made.terms if key not in taken}
                    coordinate = tuple(sorted((*rest, f"@{axis}")))
                    kept[coordinate] = kept.get(coordinate, 0) + factor
                    made = Form.of(kept)
        return made

    def written(self, text: Callable[[str], str | None], wide: str = "") -> str | None:
        """The form in C, each product in the type `wide` where there is one; None where `text` does not know how to
        write an atom."""
        parts = []
        for atoms, factor in self.terms or (((), 0),):
            words = [text(atom) for atom in atoms]
            if None in words:
                return None
            number = [str(factor)] if factor != 1 or not atoms else []
            whole = " * ".join([*number, *(word or "" for word in words)])
            parts.append(f"({wide}){whole}" if atoms and wide else whole)
        return " + ".join(parts)


ZERO, ONE = Form(), Form.number(1)
