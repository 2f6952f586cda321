"""What a run shows while it works: one `Progress` for each thing that happens, and who listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tunesmith.actors.pool.pool import LaneStatus


@dataclass(frozen=True, slots=True)
class Progress:
    """One thing that happened, for showing. phase: the role at work; best: objective of the best so far (time over
    baseline), None before the first; failures: count by kind; lanes: what each does, as far as that is known."""

    phase: str
    message: str = ""
    done: int = 0
    budget: int = 0
    best: float | None = None
    share_of_floor: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    lanes: tuple[LaneStatus, ...] = ()


class Listener(Protocol):
    """Shows progress; must be quick and must not raise."""

    def __call__(self, progress: Progress) -> None: ...


def silent(progress: Progress) -> None:
    """A listener that shows nothing."""
