"""The journal of model calls: written before and after each attempt, read once when a run is opened.

What is written: `ModelAsked`, `ModelCalled` and `ModelMethodFound` in `tunesmith.graph.journal.events`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

from tunesmith.graph.journal.events import ModelAsked, ModelCalled, ModelMethodFound
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import CallUsage, Tokens
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.account import Account
from tunesmith.graph.models.answer import Invalid, Valid
from tunesmith.graph.models.calls import Call, FailureKind, ModelFailed
from tunesmith.graph.models.files.recording import Recording
from tunesmith.graph.models.prices import Prices
from tunesmith.graph.models.transport import Completion, Failure, Request
from tunesmith.graph.settings import Method

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

BYTES_PER_TOKEN = 2
"""Fewer than tokenizers need for source code and English (3 to 4), so that an estimate made of it is high."""
PROMPT_OVERHEAD = 64
"""Tokens of chat templates around the messages."""

Read = Valid | Invalid | ModelFailed


class Ledger:
    """What is known of a run's model calls. live: failures may have passed by the next session; otherwise they hold
    for good, as answers do."""

    def __init__(self, journal: Store, prices: Prices, recording: Recording, *, live: bool) -> None:
        self._journal, self._prices, self._recording, self._live = journal, prices, recording, live
        self.account = Account()
        self.methods: dict[str, Method] = {}
        self._known: dict[str, ModelCalled] = {}
        bodies: dict[str, dict[str, Any]] = {}
        log = RunLog(journal)
        for found in log.events(ModelMethodFound):
            self.methods[found.model] = found.method
        for event in log.model_calls():
            if event.body:
                bodies[event.id] = event.body
            if isinstance(event, ModelAsked):
                self.account.asked(event)
                continue
            self.account.ended(event)
            if self._stays(event):
                self._known[event.id] = event
            recording.know(Request(event.id, bodies.get(event.id, {})), _outcome(event))
        recording.write()
        if live:
            self.account.give_up_open()

    def known(self, request_id: str) -> ModelCalled | None:
        """The end of a request that need not be made again."""
        return self._known.get(request_id)

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

    def answered(
        self,
        call: Call,
        request: Request,
        completion: Completion,
        read: Read,
        worst: Tokens,
        counted: UsageMetadata | None,
        seconds: float,
    ) -> ModelCalled:
        """Writes that an attempt was answered, and returns what was written."""
        if isinstance(read, Valid):
            status, detail = "ok", ""
        elif isinstance(read, Invalid):
            status, detail = "unstructured", f"The answer cannot be used: {read.why}"
        else:
            status, detail = read.kind, read.detail
        data = {
            "status": status,
            "detail": detail,
            "final": True,
            "served": True,
            "answer": completion.body,
            "note": completion.note,
            "text": read.text,
            "usage": self._usage(request, worst, read.text, counted),
        }
        return self._end(call, request, data, completion, seconds)

    def failed(self, call: Call, request: Request, failure: Failure, seconds: float, *, final: bool) -> ModelCalled:
        """Writes that an attempt failed, or was not made, and returns what was written."""
        data = {
            "status": failure.kind,
            "detail": failure.detail,
            "final": final,
            "served": failure.served,
        }
        return self._end(call, request, data, failure, seconds)

    def learn_method(self, model: str, method: Method, stage: str) -> None:
        """Writes the way of asking that the model's server takes, if it is new."""
        if self.methods.get(model) != method:
            self.methods[model] = method
            self._journal.append(ModelMethodFound(model=model, method=method), stage)

    def _end(
        self, call: Call, request: Request, data: dict[str, Any], outcome: Completion | Failure, seconds: float
    ) -> ModelCalled:
        attempt = self.account.attempts(request.custom_id)
        data |= _about(call, request) | {"attempt": attempt, "seconds": round(seconds, 3)}
        data["body"] = None if attempt else request.body  # it was never made
        event = ModelCalled(**data)
        self._journal.append(event, call.stage)
        self.account.ended(event)
        if event.final:
            if self._stays(event):
                self._known[request.custom_id] = event
            self._recording.add(request, outcome)
        return event

    def _usage(self, request: Request, worst: Tokens, text: str, counted: UsageMetadata | None) -> CallUsage:
        """Tokens as the server counts them; each of the two counts is estimated where it does not."""
        prompt, written = (counted["input_tokens"], counted["output_tokens"]) if counted else (0, 0)
        cached = (counted.get("input_token_details", {}).get("cache_read") or 0) if counted else 0
        # Neither a prompt nor a text has no tokens: a count of 0 is one that the server did not tell.
        estimated = not prompt or (not written and bool(text))
        prompt = prompt or worst.prompt_tokens
        written = written or math.ceil(len(text.encode()) / BYTES_PER_TOKEN)
        return CallUsage(
            prompt_tokens=prompt,
            completion_tokens=written,
            cached_tokens=cached,
            estimated=estimated,
            cost=self._prices.cost(request.body["model"], prompt, written, cached),
        )

    def _stays(self, event: ModelCalled) -> bool:
        return event.final and (event.answer is not None or not self._live)


def read_account(journal: Store, *, live: bool) -> Account:
    """What the model calls in a journal have cost."""
    account = Account()
    for event in RunLog(journal).model_calls():
        if isinstance(event, ModelAsked):
            account.asked(event)
        else:
            account.ended(event)
    if live:
        account.give_up_open()
    return account


def _about(call: Call, request: Request) -> dict[str, Any]:
    return {
        "id": request.custom_id,
        "custom_id": call.custom_id,
        "digest": call.digest,
        "role": call.role,
        "model": request.body["model"],
    }


def _outcome(event: ModelCalled) -> Completion | Failure:
    """How an attempt ended, as the journal has it."""
    if event.answer is not None:
        return Completion(event.answer, event.note)
    return Failure(cast(FailureKind, event.status), event.detail)
