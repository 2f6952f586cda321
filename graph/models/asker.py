"""`Models` over any transport: the journal before and after each attempt, caps, retries, and one more try for an
answer that is not of its schema.

One thread decides and writes; others only wait for the server. A call whose answer is in the journal is answered from
there, so that a role that is begun again pays nothing twice.
"""

from __future__ import annotations

import json
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tunesmith.graph.context import Listener, Progress
from tunesmith.graph.journal import Store
from tunesmith.graph.models.account import BYTES_PER_TOKEN, PROMPT_OVERHEAD, Account, Tokens
from tunesmith.graph.models.calls import Call, ModelFailed, Reply, Usage
from tunesmith.graph.models.prices import Prices
from tunesmith.graph.models.recording import Recording
from tunesmith.graph.models.settings import METHODS, Method, ModelSettings
from tunesmith.graph.models.structured import Invalid, Valid, again, answer_text, read_answer, request_body
from tunesmith.graph.models.transport import Completion, Failure, Pending, Request, Transport, identify

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before the first retry, doubled for each further one."""
LONGEST_OBEYED = 600.0
"""Seconds of a Retry-After that are waited; a server that asks for more is given up."""
TIMEOUT_RETRIES = 1
"""Each costs the whole timeout, and perhaps an answer that is paid and never seen."""
GRACE = 10.0
"""Seconds after the timeout until a server that keeps a connection alive without answering is given up."""


@dataclass(slots=True, eq=False)
class _Job:
    """A call on its way. call: the original or the one more try; tries, timeouts: of the present request in this
    session; methods: still to be tried, the present one first; token: tells an answer that is waited for from one
    that was given up; usage: of the call so far."""

    original: Call
    call: Call
    methods: list[Method]
    due: float = 0.0
    tries: int = 0
    timeouts: int = 0
    token: int = 0
    request: Request | None = None
    worst: Tokens | None = None
    started: float = 0.0
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0.0))
    result: Reply | ModelFailed | None = None


class Asker:
    """The `Models` of a run. limit_field: the request's field that limits an answer."""

    def __init__(
        self,
        settings: ModelSettings,
        transport: Transport,
        prices: Prices,
        journal: Store,
        recording: Recording,
        listener: Listener,
        *,
        limit_field: Literal["max_tokens", "max_completion_tokens"],
        model_for: Callable[[Call], str] | None = None,
    ) -> None:
        self._settings, self._transport, self._prices = settings, transport, prices
        self._journal, self._recording, self._listener = journal, recording, listener
        self._limit_field = limit_field
        self._model_for = model_for or (lambda call: settings.name_for(call.role))
        self._live = transport.kind == "live"
        self._account = Account(journal, live=self._live)
        self._known = {e.data["id"]: e.data for e in journal.events("model_call") if self._stays(e.data)}
        self._methods: dict[str, Method] = {e.data["model"]: e.data["method"] for e in journal.events("model_method")}
        self._closed: Failure | None = None
        self._suspect = False
        self._slot = 0.0

    def ask_all(self, calls: Sequence[Call]) -> list[Reply | ModelFailed]:
        """See `Models`."""
        jobs = [_Job(call, call, self._methods_for(self._model_for(call))) for call in calls]
        waiting, running, pending = list(jobs), dict[int, _Job](), list[Request]()
        arrived: queue.SimpleQueue[tuple[_Job, int, Completion | Failure | BaseException]] = queue.SimpleQueue()
        self._announce(jobs)
        while waiting or running:
            for job in sorted(waiting, key=lambda job: job.due):
                if job.due > time.monotonic() or len(running) >= self._settings.model_concurrency:
                    break
                if not self._begin(job, bool(running)):
                    continue
                if job.result is not None:
                    waiting.remove(job)
                elif job.request is not None:
                    waiting.remove(job)
                    if self._live:
                        running[id(job)] = job
                        self._send(job, arrived)
                    elif not self._exchange(job):
                        pending.append(job.request)
                    elif job.result is None:
                        waiting.append(job)
            ended = self._await(arrived, waiting, running)
            for job, outcome in ended:
                del running[id(job)]
                self._receive(job, outcome, time.monotonic() - job.started)
                if job.result is None:
                    waiting.append(job)
        if pending:
            raise self._transport.hold(pending)
        return [job.result for job in jobs if job.result is not None]

    def _begin(self, job: _Job, others: bool) -> bool:
        """Brings a job to its request or its result; False: not now. `others`: calls are under way."""
        job.request = None
        model = self._model_for(job.call)
        request = self._request(job, model)
        known = self._known.get(request.custom_id)
        if known is not None:
            self._settle(job, known)
            return True
        job.worst = self._worst(request, model)
        if self._closed is not None:
            self._end(job, request, self._closed, 0.0, final=True)
            return True
        is_open = self._account.is_open(request.custom_id)
        if self._transport.kind != "replay" and not is_open:
            objection = self._account.objection(self._settings, job.worst, certain=False)
            if objection is not None:
                if others and self._account.objection(self._settings, job.worst, certain=True) is None:
                    return False  # it fits when those under way turn out cheaper than feared
                self._end(job, request, Failure("capped", objection), 0.0, final=True)
                return True
        if self._live and self._settings.requests_per_minute is not None:
            now = time.monotonic()
            if now < self._slot:
                job.due = self._slot
                return False
            self._slot = now + 60.0 / self._settings.requests_per_minute
        job.request = request
        if not is_open:
            attempt = self._account.attempts(request.custom_id) + 1
            data = self._about(job, request) | {"attempt": attempt, "worst": _json(job.worst), "body": None}
            if attempt == 1 or job.tries == 0:
                data["body"] = request.body
            self._journal.append("model_asked", data, job.call.stage)
            self._account.asked(data)
        job.tries += 1
        return True

    def _send(self, job: _Job, arrived: queue.SimpleQueue[Any]) -> None:
        job.token += 1
        job.started = time.monotonic()
        request, token = job.request, job.token
        assert request is not None

        def work() -> None:
            outcome: Any
            try:
                outcome = self._transport.send(request)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that asks
                outcome = error
            arrived.put((job, token, outcome))

        # Not of a pool: a thread that waits for a server must not keep the process from ending.
        threading.Thread(target=work, name=f"model-{request.custom_id}", daemon=True).start()

    def _exchange(self, job: _Job) -> bool:
        """Asks a transport that has its answers at hand; False: it is still to come."""
        assert job.request is not None
        outcome = self._transport.send(job.request)
        if isinstance(outcome, Pending):
            return False
        self._receive(job, outcome, 0.0)
        return True

    def _await(
        self, arrived: queue.SimpleQueue[Any], waiting: Sequence[_Job], running: Mapping[int, _Job]
    ) -> list[tuple[_Job, Completion | Failure]]:
        """Waits for an answer, for the time of a retry, or for the end of somebody's patience."""
        patience = self._settings.model_timeout + GRACE
        moments = [job.started + patience for job in running.values()]
        if len(running) < self._settings.model_concurrency:
            moments += [job.due for job in waiting if job.due > time.monotonic() or not running]
        if not moments:
            return []
        try:
            job, token, outcome = arrived.get(timeout=max(0.0, min(moments) - time.monotonic()))
        except queue.Empty:
            late = [job for job in running.values() if time.monotonic() >= job.started + patience]
            for job in late:
                job.token += 1
            said = f"the server kept the connection open for {patience:g} s without an answer."
            return [(job, Failure("timeout", said, transient=True, served=True)) for job in late]
        if token != job.token:
            return []
        if isinstance(outcome, BaseException):
            raise outcome
        return [(job, outcome)]

    def _receive(self, job: _Job, outcome: Completion | Failure, seconds: float) -> None:
        """Journals an outcome and decides what follows."""
        request, model = job.request, self._model_for(job.call)
        assert request is not None
        if isinstance(outcome, Completion):
            self._suspect = False
            if self._live and self._settings.model_method == "auto" and self._methods.get(model) != job.methods[0]:
                self._methods[model] = job.methods[0]
                self._journal.append("model_method", {"model": model, "method": job.methods[0]}, job.call.stage)
            self._end(job, request, outcome, seconds, final=True)
            return
        wait = self._wait(job, outcome)
        if outcome.rejected and len(job.methods) > 1:
            self._end(job, request, outcome, seconds, final=False)
            job.methods.pop(0)
            job.tries = 0
        elif wait is not None:
            self._end(job, request, outcome, seconds, final=False)
            job.due = time.monotonic() + wait
            job.timeouts += outcome.kind == "timeout"
            self._say(f"{job.call.custom_id}: {outcome.detail} Trying again in {wait:.0f} s.")
        else:
            if outcome.rejected:
                outcome = _no_method(outcome, self._settings)
            if outcome.kind == "unauthorised" and self._live:
                self._closed = outcome
            self._suspect = self._suspect or outcome.transient
            self._end(job, request, outcome, seconds, final=True)

    def _wait(self, job: _Job, failure: Failure) -> float | None:
        """Seconds until the next try, None for no other. A server that failed one call to the end gets no retries for
        the next ones until it answers."""
        if not failure.transient or not self._live or self._suspect or job.tries > self._settings.model_retries:
            return None
        if failure.kind == "timeout" and job.timeouts >= TIMEOUT_RETRIES:
            return None
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= LONGEST_OBEYED else None
        # "Equal jitter": spreads the clients of a server that comes back.
        wait: float = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (job.tries - 1)) * random.uniform(0.5, 1.0)
        return wait

    def _end(self, job: _Job, request: Request, outcome: Completion | Failure, seconds: float, *, final: bool) -> None:
        """Writes the end of an attempt; a final one settles the request."""
        data = self._about(job, request) | {
            "attempt": self._account.attempts(request.custom_id),
            "final": final,
            "body": None if self._account.attempts(request.custom_id) else request.body,
            "seconds": round(seconds, 3),
            "answer": None,
            "text": "",
            "usage": None,
            "note": "",
        }
        if isinstance(outcome, Completion):
            read = read_answer(outcome.body, job.call.schema)
            status, detail = _judged(read)
            data |= {"status": status, "detail": detail, "served": True, "answer": outcome.body, "note": outcome.note}
            data |= {"text": read.text, "usage": self._usage(job, data["model"], outcome.body)}
            if outcome.note:
                self._say(outcome.note)
        else:
            data |= {"status": outcome.kind, "detail": outcome.detail, "served": outcome.served}
        self._journal.append("model_call", data, job.call.stage)
        self._account.ended(data)
        if not final:
            return
        if self._stays(data):
            self._known[request.custom_id] = data
        self._recording.add(request, outcome)
        self._settle(job, data)

    def _settle(self, job: _Job, data: Mapping[str, Any]) -> None:
        """The result of a call, or one more try, from the end of its request."""
        if data["answer"] is None:
            self._fail(job, ModelFailed(data["status"], data["detail"]))
            return
        used, so_far = data["usage"], job.usage
        cost = None if so_far.cost is None or used["cost"] is None else so_far.cost + used["cost"]
        job.usage = Usage(so_far.prompt_tokens + used["prompt_tokens"],
                          so_far.completion_tokens + used["completion_tokens"], cost)  # fmt: skip
        read = read_answer(data["answer"], job.call.schema)
        if isinstance(read, Valid):
            job.result = Reply(read.value, read.text, str(data["answer"].get("model") or data["model"]), job.usage)
        elif isinstance(read, ModelFailed):
            self._fail(job, read)
        elif job.call is job.original:
            job.call, job.due, job.tries, job.timeouts = again(job.call, read), 0.0, 0, 0
            job.methods = self._methods_for(self._model_for(job.call))
        else:
            detail = f"The answer is not of the schema, also after being told so: {read.why}"
            self._fail(job, ModelFailed("unstructured", detail, read.text))

    def _fail(self, job: _Job, failed: ModelFailed) -> None:
        job.result = failed
        self._say(f"{job.call.custom_id}: {failed.detail}")

    def _request(self, job: _Job, model: str) -> Request:
        body = request_body(
            job.call,
            model,
            job.methods[0],
            answer_tokens=self._settings.answer_tokens,
            limit_field=self._limit_field,
            options=self._settings.model_option,
        )
        return Request(identify(job.call.custom_id, job.call.digest), body)

    def _worst(self, request: Request, model: str) -> Tokens:
        """The most that a request may take."""
        size = len(json.dumps(request.body, ensure_ascii=False).encode("utf-8", "replace"))
        prompt, written = math.ceil(size / BYTES_PER_TOKEN) + PROMPT_OVERHEAD, self._settings.answer_tokens
        return Tokens(prompt, written, self._prices.cost(model, prompt, written))

    def _usage(self, job: _Job, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Tokens as the server counts them; estimated where it does not."""
        told = body.get("usage") or {}
        prompt, written = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
        estimated = prompt is None or written is None
        assert job.worst is not None
        if prompt is None:
            prompt = job.worst.prompt_tokens
        if written is None:
            written = math.ceil(len(answer_text(body).encode()) / BYTES_PER_TOKEN)
        details = told.get("prompt_tokens_details")
        cached = (_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None) or 0
        return {"prompt_tokens": prompt, "completion_tokens": written, "cached_tokens": cached, "estimated": estimated,
                "cost": self._prices.cost(model, prompt, written, cached)}  # fmt: skip

    def _methods_for(self, model: str) -> list[Method]:
        setting = self._settings.model_method
        if setting != "auto":
            return [setting]
        known = self._methods.get(model)
        return ([known] if known else []) + [method for method in METHODS if method != known]

    def _about(self, job: _Job, request: Request) -> dict[str, Any]:
        call = job.call
        return {"id": request.custom_id, "custom_id": call.custom_id, "digest": call.digest, "role": call.role,
                "model": self._model_for(call)}  # fmt: skip

    def _stays(self, data: Mapping[str, Any]) -> bool:
        """Whether an end holds for good: an answer does; a failure of a live server may have passed by now."""
        return bool(data["final"]) and (data["answer"] is not None or not self._live)

    def _announce(self, jobs: Sequence[_Job]) -> None:
        if self._live and jobs:
            names = ", ".join(dict.fromkeys(self._model_for(job.call) for job in jobs))
            self._say(f"asking {names}: {', '.join(job.call.custom_id for job in jobs)}")

    def _say(self, message: str) -> None:
        self._listener(Progress("model", message))


def _judged(read: Valid | Invalid | ModelFailed) -> tuple[str, str]:
    """The status of an answer, and what is wrong with it."""
    if isinstance(read, Valid):
        return "ok", ""
    if isinstance(read, Invalid):
        return "unstructured", f"The answer cannot be used: {read.why}"
    return read.kind, read.detail


def _no_method(failure: Failure, settings: ModelSettings) -> Failure:
    """What to tell the user when a server takes no request of ours."""
    if settings.model_method == "auto":
        return Failure("server_error", f"The server takes none of {', '.join(METHODS)}: {failure.detail}")
    said = f"The server rejects {settings.model_method}; try another --model-method, or auto: {failure.detail}"
    return Failure("server_error", said)


def _json(tokens: Tokens) -> dict[str, Any]:
    return {"prompt_tokens": tokens.prompt_tokens, "completion_tokens": tokens.completion_tokens, "cost": tokens.cost}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
