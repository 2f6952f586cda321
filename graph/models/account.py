"""What the models of a run have cost, and whether the caps allow one more call.

Counted is what a server answered, and what it may have worked on without our seeing the answer: calls that timed out,
or were under way when the process was killed. For these the worst is assumed: the estimate made before the call.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tunesmith.graph.journal.events import ModelAsked, ModelCalled
from tunesmith.graph.journal.records import Tokens
from tunesmith.graph.models.answer import again_name
from tunesmith.graph.settings import ModelSettings


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

    def add(self, tokens: Tokens, *, estimated: bool) -> None:
        self.calls += 1
        self.unaccounted += estimated
        self.prompt_tokens += tokens.prompt_tokens
        self.completion_tokens += tokens.completion_tokens
        self.cost = None if self.cost is None or tokens.cost is None else self.cost + tokens.cost


class Account:
    """Fed with what was asked of models and how it ended, in the order of the journal."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._open: dict[tuple[str, int], ModelAsked] = {}
        self._ends: dict[str, tuple[Row, str]] = {}
        """Row and status, by the call's custom_id."""
        self._attempts: dict[str, int] = {}

    def asked(self, event: ModelAsked) -> None:
        """The event was written."""
        self._attempts[event.id] = event.attempt
        self._open[event.id, event.attempt] = event

    def ended(self, event: ModelCalled) -> None:
        """The event was written."""
        row = self._row(event)
        asked = self._open.pop((event.id, event.attempt), None)
        row.seconds += event.seconds
        if event.usage is not None:
            row.add(event.usage, estimated=event.usage.estimated)
        elif event.served and asked is not None:
            row.add(asked.worst, estimated=True)
        self._ends[event.custom_id] = row, event.status

    def give_up_open(self) -> None:
        """Counts calls without an end as served: their process was killed."""
        for event in self._open.values():
            self._row(event).add(event.worst, estimated=True)
        self._open.clear()

    def attempts(self, request_id: str) -> int:
        """How often a request was made."""
        return self._attempts.get(request_id, 0)

    def is_open(self, request_id: str) -> bool:
        """Whether an answer to the last attempt is still to come."""
        return (request_id, self.attempts(request_id)) in self._open

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def calls(self, *, count_open: bool = True) -> int:
        """Calls that count against a cap. count_open: with those that are under way."""
        return sum(row.calls for row in self._rows.values()) + (len(self._open) if count_open else 0)

    def objection(self, settings: ModelSettings, worst: Tokens, *, count_open: bool) -> str | None:
        """Why the caps do not allow a call that takes `worst`, or None. count_open: with the worst of the calls that
        are under way."""
        spent: list[Row | Tokens] = [*self._rows.values()]
        open_now = [event.worst for event in self._open.values()] if count_open else []
        spent += open_now
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in spent)
        cost = sum(each.cost or 0.0 for each in spent)
        if settings.max_calls is not None and self.calls(count_open=count_open) + 1 > settings.max_calls:
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
        for name, (row, status) in self._ends.items():
            # Of a call with a second try, that one says how it ended.
            if status != "ok" and again_name(name) not in self._ends:
                row.failed += 1
                kinds[status] = kinds.get(status, 0) + 1
        rows = [asdict(row) for _, row in sorted(self._rows.items())]
        totals: dict[str, Any] = {
            name: sum(row[name] for row in rows)
            for name in ("calls", "unaccounted", "failed", "prompt_tokens", "completion_tokens", "seconds")
        }
        costs = [row["cost"] for row in rows]
        totals["cost"] = None if None in costs else sum(costs, 0.0)
        return totals | {"failures": kinds, "rows": rows}

    def _row(self, event: ModelAsked | ModelCalled) -> Row:
        key = event.role, event.model
        return self._rows.setdefault(key, Row(*key))
