"""The progress of a run: one `Progress` for each event, and its listeners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a run, for showing; `str` gives it as a line. phase: the role at work; best: objective of the best so
    far (time over baseline), None before the first; best_seconds: its seconds for a launch, the weighted geometric mean
    over the tuned workloads; failures: count by kind; lanes: their states, as far as known."""

    phase: str
    message: str = ""
    done: int = 0
    budget: int = 0
    best: float | None = None
    best_seconds: float | None = None
    share_of_floor: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    lanes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.message or not self.budget:
            return f"{self.phase}: {self.message or 'at work'}"
        account = self.account
        return f"{self.phase}: {self.done}/{self.budget} evaluations{f', {account}' if account else ''}"

    @property
    def account(self) -> str:
        """The results of the search so far, in words; no speed-up, which is measured only at the end."""
        parts = []
        if self.best is not None and self.best_seconds is not None:
            share = ""
            if (floor := self.share_of_floor) is not None:
                share = f", {1 / floor:.1f} times its floor" if floor < 1 else ", at its floor"
            parts.append(f"best {self.best_seconds * 1e6:.1f} us{share}")
        if self.failures:
            parts.append("failed: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.failures.items())))
        states = Counter(self.lanes)
        if len(self.lanes) > 1:
            parts.append(f"lanes: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}")
        elif waits := states.keys() - {"busy", "idle"}:
            parts.append(f"device {waits.pop()}")
        return "; ".join(parts)


Listener = Callable[[Progress], None]
"""Shows progress; must be quick and must not raise."""


def silent(progress: Progress) -> None:
    """A listener that shows nothing."""
