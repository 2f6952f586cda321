"""What the models of a run have cost, from the journal; and whether the caps allow one more call.

Counted is what a server answered, and what it may have worked on without our knowing the answer: calls that timed out,
or were under way when the process was killed. Of these the worst is assumed: the estimate made before the call.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tunesmith.graph.journal.events import ModelAsked, ModelCalled
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Tokens
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.settings import ModelSettings
from tunesmith.graph.models.structured import again_name

BYTES_PER_TOKEN = 2
"""Fewer than tokenizers need for source code and English (3 to 4), so that an estimate made of it is high."""
PROMPT_OVERHEAD = 64
"""Tokens of chat templates around the messages."""


@dataclass(slots=True)
class Row:
    """One role's use of one model. calls: answered, or perhaps answered; unaccounted: those of them whose tokens are
    an estimate; failed: questions that ended without a usable answer; seconds: spent waiting for answers."""

    role: str
    model: str
    calls: int = 0
    unaccounted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0

    def add(self, tokens: Tokens) -> None:
        self.calls += 1
        self.prompt_tokens += tokens.prompt_tokens
        self.completion_tokens += tokens.completion_tokens
        self.cost = None if self.cost is None or tokens.cost is None else self.cost + tokens.cost


class Account:
    """Reads the requests to models in a journal, and is given new ones. live: a call that was
    asked in an earlier session and has no end was under way when that session was killed; otherwise it is one whose
    answer is still to come."""

    def __init__(self, journal: Store, *, live: bool) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._open: dict[tuple[str, int], tuple[tuple[str, str], Tokens]] = {}
        self._ends: dict[str, tuple[tuple[str, str], str]] = {}
        """Role and model, and status, by the call's custom_id."""
        self._asked: dict[str, int] = {}
        for event in RunLog(journal).model_calls():
            if isinstance(event, ModelAsked):
                self.asked(event)
            else:
                self.ended(event)
        if live:
            for key, worst in self._open.values():
                self._lose(key, worst)
            self._open.clear()

    def asked(self, event: ModelAsked) -> None:
        """The event was written."""
        self._asked[event.id] = event.attempt
        self._open[event.id, event.attempt] = (event.role, event.model), event.worst

    def ended(self, event: ModelCalled) -> None:
        """The event was written."""
        key = event.role, event.model
        _, worst = self._open.pop((event.id, event.attempt), (key, None))
        row = self._row(key)
        row.seconds += event.seconds
        if event.usage is not None:
            row.add(event.usage)
            row.unaccounted += event.usage.estimated
        elif event.served and worst is not None:
            self._lose(key, worst)
        self._ends[event.custom_id] = key, event.status

    def attempts(self, request_id: str) -> int:
        """How often a request was made."""
        return self._asked.get(request_id, 0)

    def is_open(self, request_id: str) -> bool:
        """Whether an answer to the last attempt is still to come."""
        return (request_id, self.attempts(request_id)) in self._open

    def objection(self, settings: ModelSettings, worst: Tokens, *, certain: bool) -> str | None:
        """Why the caps do not allow a call that takes `worst`, or None. certain: leave calls under way out of it."""
        rows = list(self._rows.values())
        calls = sum(row.calls for row in rows)
        tokens = sum(row.prompt_tokens + row.completion_tokens for row in rows)
        cost = sum(row.cost or 0.0 for row in rows)
        if not certain:
            calls += len(self._open)
            tokens += sum(each.prompt_tokens + each.completion_tokens for _, each in self._open.values())
            cost += sum(each.cost or 0.0 for _, each in self._open.values())
        if settings.max_calls is not None and calls + 1 > settings.max_calls:
            return f"--max-calls {settings.max_calls} allows no further call."
        needs = worst.prompt_tokens + worst.completion_tokens
        if settings.max_tokens is not None and tokens + needs > settings.max_tokens:
            return (
                f"--max-tokens {settings.max_tokens} does not allow the call: {tokens} are spent, and it may take "
                f"{needs}."
            )
        if settings.max_cost is not None and cost + (worst.cost or 0.0) > settings.max_cost:
            return (
                f"--max-cost {settings.max_cost:g} does not allow the call: ${cost:.4f} is spent, and it may cost "
                f"${worst.cost or 0.0:.4f}."
            )
        return None

    def to_json(self) -> dict[str, Any]:
        """Totals, and `rows` by role and model."""
        for row in self._rows.values():
            row.failed = 0
        kinds: dict[str, int] = {}
        for name, (key, status) in self._ends.items():
            # Of a call that got one more try, that one tells how it ended.
            if status != "ok" and again_name(name) not in self._ends:
                self._row(key).failed += 1
                kinds[status] = kinds.get(status, 0) + 1
        total = Row("", "")
        for row in self._rows.values():
            for name in ("calls", "unaccounted", "failed", "prompt_tokens", "completion_tokens", "seconds"):
                setattr(total, name, getattr(total, name) + getattr(row, name))
            total.cost = None if total.cost is None or row.cost is None else total.cost + row.cost
        totals = {name: value for name, value in asdict(total).items() if name not in ("role", "model")}
        return totals | {"failures": kinds, "rows": [asdict(row) for row in self._rows.values()]}

    def _row(self, key: tuple[str, str]) -> Row:
        return self._rows.setdefault(key, Row(*key))

    def _lose(self, key: tuple[str, str], worst: Tokens) -> None:
        row = self._row(key)
        row.add(worst)
        row.unaccounted += 1
