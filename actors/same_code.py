"""Compilations of different evaluations that come to the same code: one is made, and the others wait for it."""

from __future__ import annotations

from tunesmith.actors.job import Compilation


class SameCode:
    """What is being compiled, by the digest of its source and the compiler's version."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], list[Compilation]] = {}

    @property
    def waiting(self) -> int:
        return sum(len(others) for others in self._waiting.values())

    def joins(self, compilation: Compilation, version: str) -> bool:
        """Whether the same is being compiled already: then `compilation` waits for that."""
        compilation.making = compilation.source.digest, version
        others = self._waiting.get(compilation.making)
        if others is not None:
            others.append(compilation)
        return others is not None

    def begins(self, compilation: Compilation) -> None:
        self._waiting[compilation.making] = []

    def ends(self, compilation: Compilation) -> list[Compilation]:
        """Those that waited for `compilation`, whether it was made or lost."""
        return self._waiting.pop(compilation.making, [])
