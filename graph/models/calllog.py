"""The log of all attempts: in the journal before and after each, with its account and its recording.

What is written of each: `ModelAsked` and `ModelCalled` in `tunesmith.graph.journal.events`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tunesmith.graph.journal.events import ModelAsked, ModelCalled
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import CallUsage, Tokens
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.account import BYTES_PER_TOKEN, PROMPT_OVERHEAD, Account
from tunesmith.graph.models.calls import Call, ModelFailed
from tunesmith.graph.models.prices import Prices
from tunesmith.graph.models.recording import Recording
from tunesmith.graph.models.structured import Invalid, Valid, answer_text, read_answer
from tunesmith.graph.models.transport import Completion, Failure, Request


class CallLog:
    """live: failures may have passed by the next session; otherwise they hold for good, as answers do."""

    def __init__(self, journal: Store, prices: Prices, recording: Recording, *, live: bool) -> None:
        self._journal, self._prices, self._recording, self._live = journal, prices, recording, live
        self.account = Account(journal, live=live)
        self._known = {event.id: event for event in RunLog(journal).events(ModelCalled) if self._stays(event)}

    def known(self, request: Request) -> ModelCalled | None:
        """The end of a request that need not be made again."""
        return self._known.get(request.custom_id)

    def is_open(self, request: Request) -> bool:
        """Whether the request was made and its end is still to come."""
        return self.account.is_open(request.custom_id)

    def worst(self, request: Request, answer_tokens: int) -> Tokens:
        """The most that a request may take."""
        size = len(json.dumps(request.body, ensure_ascii=False).encode("utf-8", "replace"))
        prompt = math.ceil(size / BYTES_PER_TOKEN) + PROMPT_OVERHEAD
        cost = self._prices.cost(request.body["model"], prompt, answer_tokens)
        return Tokens(prompt_tokens=prompt, completion_tokens=answer_tokens, cost=cost)

    def asked(self, call: Call, request: Request, worst: Tokens, *, first: bool) -> None:
        """Writes that a request is about to be made; `first` in its present form."""
        attempt = self.account.attempts(request.custom_id) + 1
        body = request.body if first else None
        event = ModelAsked(**_about(call, request), attempt=attempt, worst=worst, body=body)
        self._journal.append(event, call.stage)
        self.account.asked(event)

    def ended(
        self,
        call: Call,
        request: Request,
        worst: Tokens,
        outcome: Completion | Failure,
        seconds: float,
        *,
        final: bool,
    ) -> ModelCalled:
        """Writes how an attempt ended, and returns what was written."""
        attempt = self.account.attempts(request.custom_id)
        data = _about(call, request) | {
            "attempt": attempt,
            "final": final,
            "body": None if attempt else request.body,  # it was never made
            "seconds": round(seconds, 3),
        }
        if isinstance(outcome, Completion):
            read = read_answer(outcome.body, call.schema)
            status, detail = _judged(read)
            data |= {"status": status, "detail": detail, "served": True, "answer": outcome.body, "note": outcome.note}
            data |= {"text": read.text, "usage": self._usage(request, worst, outcome.body)}
        else:
            data |= {"status": outcome.kind, "detail": outcome.detail, "served": outcome.served}
        event = ModelCalled(**data)
        self._journal.append(event, call.stage)
        self.account.ended(event)
        if final:
            if self._stays(event):
                self._known[request.custom_id] = event
            self._recording.add(request, outcome)
        return event

    def _usage(self, request: Request, worst: Tokens, body: Mapping[str, Any]) -> CallUsage:
        """Tokens as the server counts them; estimated where it does not."""
        told = body.get("usage") or {}
        prompt, written = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
        estimated = prompt is None or written is None
        if prompt is None:
            prompt = worst.prompt_tokens
        if written is None:
            written = math.ceil(len(answer_text(body).encode()) / BYTES_PER_TOKEN)
        details = told.get("prompt_tokens_details")
        cached = (_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None) or 0
        return CallUsage(
            prompt_tokens=prompt,
            completion_tokens=written,
            cached_tokens=cached,
            estimated=estimated,
            cost=self._prices.cost(request.body["model"], prompt, written, cached),
        )

    def _stays(self, event: ModelCalled) -> bool:
        return event.final and (event.answer is not None or not self._live)


def _about(call: Call, request: Request) -> dict[str, Any]:
    return {
        "id": request.custom_id,
        "custom_id": call.custom_id,
        "digest": call.digest,
        "role": call.role,
        "model": request.body["model"],
    }


def _judged(read: Valid | Invalid | ModelFailed) -> tuple[str, str]:
    """The status of an answer, and what is wrong with it."""
    if isinstance(read, Valid):
        return "ok", ""
    if isinstance(read, Invalid):
        return "unstructured", f"The answer cannot be used: {read.why}"
    return read.kind, read.detail


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
