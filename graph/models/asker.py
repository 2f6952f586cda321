"""`Models` over any transport: the journal before and after each attempt, caps, retries, and one more try for an
answer that is not of its schema.

One thread decides and writes; others only wait for the server. A call whose answer is in the journal is answered from
there, so that a role that is begun again pays nothing twice.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from tunesmith.graph.journal.events import ModelCalled, ModelMethodFound
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Tokens
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.calllog import CallLog
from tunesmith.graph.models.calls import Call, FailureKind, ModelFailed, Reply, Usage
from tunesmith.graph.models.prices import Prices
from tunesmith.graph.models.recording import Recording
from tunesmith.graph.models.settings import METHODS, Method, ModelSettings
from tunesmith.graph.models.structured import Valid, again, read_answer, request_body
from tunesmith.graph.models.transport import Completion, Failure, Pending, Request, Transport, identify
from tunesmith.graph.progress import Listener, Progress

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
    that was given up; usage: of the call so far; due, started: on the monotonic clock."""

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
        self._settings, self._transport = settings, transport
        self._journal, self._listener = journal, listener
        self._limit_field = limit_field
        self._model_for = model_for or (lambda call: settings.name_for(call.role))
        self._live = transport.kind == "live"
        self._log = CallLog(journal, prices, recording, live=self._live)
        self._methods: dict[str, Method] = {
            event.model: event.method for event in RunLog(journal).events(ModelMethodFound)
        }
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
                if self._begin(job, bool(running)):
                    waiting.remove(job)
                    if self._live:
                        running[id(job)] = job
                        self._send(job, arrived)
                    elif (request := self._exchange(job)) is not None:
                        pending.append(request)
                    elif job.result is None:
                        waiting.append(job)
                elif job.result is not None:
                    waiting.remove(job)
            for job, outcome in self._await(arrived, waiting, running):
                del running[id(job)]
                self._receive(job, outcome, time.monotonic() - job.started)
                if job.result is None:
                    waiting.append(job)
        if pending:
            raise self._transport.hold(pending)
        return [job.result for job in jobs if job.result is not None]

    def _begin(self, job: _Job, others: bool) -> bool:
        """Brings a job to an attempt (True) or to its result; False with neither: not now. `others`: calls are under
        way."""
        request = job.request = self._request(job)
        known = self._log.known(request)
        if known is not None:
            self._settle(job, known)
            return False
        job.worst = self._log.worst(request, self._settings.answer_tokens)
        is_open = self._log.is_open(request)
        if self._live and is_open:
            return False  # the same call is under way already
        if self._closed is not None:
            self._end(job, self._closed, 0.0, final=True)
            return False
        if self._transport.kind != "replay" and not is_open:
            objection = self._log.account.objection(self._settings, job.worst, certain=False)
            if objection is not None:
                # It may fit when those under way turn out cheaper than feared.
                if not others or self._log.account.objection(self._settings, job.worst, certain=True) is not None:
                    self._end(job, Failure("capped", objection), 0.0, final=True)
                return False
        if self._live and self._settings.requests_per_minute is not None:
            now = time.monotonic()
            if now < self._slot:
                job.due = self._slot
                return False
            self._slot = now + 60.0 / self._settings.requests_per_minute
        if not is_open:
            self._log.asked(job.call, request, job.worst, first=job.tries == 0)
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

    def _exchange(self, job: _Job) -> Request | None:
        """Asks a transport that has its answers at hand; gives the request back if its answer is still to come."""
        assert job.request is not None
        outcome = self._transport.send(job.request)
        if isinstance(outcome, Pending):
            return job.request
        self._receive(job, outcome, 0.0)
        return None

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
        if isinstance(outcome, Completion):
            model = self._model_for(job.call)
            self._suspect = False
            if self._live and self._settings.model_method == "auto" and self._methods.get(model) != job.methods[0]:
                self._methods[model] = job.methods[0]
                self._journal.append(ModelMethodFound(model=model, method=job.methods[0]), job.call.stage)
            self._end(job, outcome, seconds, final=True)
            return
        wait = self._wait(job, outcome)
        if outcome.rejected and len(job.methods) > 1:
            self._end(job, outcome, seconds, final=False)
            job.methods.pop(0)
            job.tries = 0
        elif wait is not None:
            self._end(job, outcome, seconds, final=False)
            job.due = time.monotonic() + wait
            job.timeouts += outcome.kind == "timeout"
            self._say(f"{job.call.custom_id}: {outcome.detail} Trying again in {wait:.0f} s.")
        else:
            if outcome.rejected:
                outcome = _no_method(outcome, self._settings)
            if outcome.kind == "unauthorised" and self._live:
                self._closed = outcome
            self._suspect = self._suspect or outcome.transient
            self._end(job, outcome, seconds, final=True)

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

    def _end(self, job: _Job, outcome: Completion | Failure, seconds: float, *, final: bool) -> None:
        """The end of an attempt; a final one settles the request."""
        assert job.request is not None and job.worst is not None
        ended = self._log.ended(job.call, job.request, job.worst, outcome, seconds, final=final)
        if ended.note:
            self._say(ended.note)
        if final:
            self._settle(job, ended)

    def _settle(self, job: _Job, ended: ModelCalled) -> None:
        """The result of a call, or one more try, from the end of its request."""
        if ended.answer is None:
            self._fail(job, ModelFailed(cast(FailureKind, ended.status), ended.detail))
            return
        used, so_far = ended.usage, job.usage
        assert used is not None, "an answer has its usage"
        cost = None if so_far.cost is None or used.cost is None else so_far.cost + used.cost
        job.usage = Usage(
            so_far.prompt_tokens + used.prompt_tokens, so_far.completion_tokens + used.completion_tokens, cost
        )
        read = read_answer(ended.answer, job.call.schema)
        if isinstance(read, Valid):
            job.result = Reply(read.value, read.text, str(ended.answer.get("model") or ended.model), job.usage)
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

    def _request(self, job: _Job) -> Request:
        body = request_body(
            job.call,
            self._model_for(job.call),
            job.methods[0],
            answer_tokens=self._settings.answer_tokens,
            limit_field=self._limit_field,
            options=self._settings.model_option,
        )
        return Request(identify(job.call.custom_id, job.call.digest), body)

    def _methods_for(self, model: str) -> list[Method]:
        setting = self._settings.model_method
        if setting != "auto":
            return [setting]
        known = self._methods.get(model)
        return ([known] if known else []) + [method for method in METHODS if method != known]

    def _announce(self, jobs: Sequence[_Job]) -> None:
        if self._live and jobs:
            names = ", ".join(dict.fromkeys(self._model_for(job.call) for job in jobs))
            self._say(f"asking {names}: {', '.join(job.call.custom_id for job in jobs)}")

    def _say(self, message: str) -> None:
        # Servers and models write part of it: nothing of that may move the cursor or begin a line.
        shown = "".join(sign if sign.isprintable() else " " for sign in message)
        self._listener(Progress("model", " ".join(shown.split())))


def _no_method(failure: Failure, settings: ModelSettings) -> Failure:
    """What to tell the user when a server takes no request of ours."""
    if settings.model_method == "auto":
        return Failure("server_error", f"The server takes none of {', '.join(METHODS)}: {failure.detail}")
    said = f"The server rejects {settings.model_method}; try another --model-method, or auto: {failure.detail}"
    return Failure("server_error", said)
