"""`Models` over any transport: the journal before and after each attempt, caps, retries, and a second try for an answer
that does not fit its schema.

Calls run as coroutines of one event loop, so nothing here needs a lock. A call whose answer is in the journal is
answered from there, so that a role that is begun again pays nothing twice.

Retries are made here and not by the client's `max_retries`: each attempt is journalled, and must be allowed by the
caps, before it is made; a call that timed out is repeated once, not as often as others; an exhausted quota is not asked
again; and a Retry-After of several minutes is obeyed. The run's time limit holds for all of it: no attempt is begun,
waited for or paused before beyond it, where answers come from a server.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tunesmith.graph.journal.events import ModelCalled
from tunesmith.graph.journal.records import CallUsage, Tokens
from tunesmith.graph.models.answer import Invalid, Valid, again, read_answer
from tunesmith.graph.models.calls import Call, FailureKind, ModelFailed, Reply, Usage
from tunesmith.graph.models.ledger import Ledger, Read
from tunesmith.graph.models.transport import Completion, Failure, Pending, Request, Transport, identify
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.settings import METHODS, Method, ModelSettings

if TYPE_CHECKING:
    from langchain_core.rate_limiters import BaseRateLimiter

    from tunesmith.graph.models.chat import Chats

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before the first retry, doubled for each further one."""
LONGEST_RETRY_AFTER = 600.0
"""Seconds of a Retry-After that are waited; a server that asks for more is given up."""
TIMEOUT_RETRIES = 1
"""Each costs the whole timeout, and perhaps an answer that is paid and never seen."""
GRACE = 10.0
"""Seconds after the timeout until a server that keeps a connection alive without answering is given up."""
TOO_LATE = Failure("out_of_time", "The time limit leaves no time to ask the model.")


def endless() -> float:
    """The seconds left of a run without a time limit."""
    return math.inf


class Asker:
    """The `Models` of a run. model_for: the model of a call, where that is not the settings' to say; seconds_left:
    until the run's time limit."""

    def __init__(
        self,
        settings: ModelSettings,
        transport: Transport,
        chats: Chats,
        ledger: Ledger,
        listener: Listener,
        model_for: Callable[[Call], str] | None = None,
        seconds_left: Callable[[], float] = endless,
    ) -> None:
        self._settings, self._transport, self._chats = settings, transport, chats
        self._ledger, self._listener = ledger, listener
        self._model_for = model_for or (lambda call: settings.name_for(call.role))
        self._live = transport.kind == "live"
        # Files take no time, and a failure from them would hold for good.
        self._seconds_left = seconds_left if self._live else endless
        self._closed: Failure | None = None
        """Why the server takes no call at all, such as a wrong key."""
        self._suspect = False
        """The server failed a call to the end, and has not answered since."""
        # Answers from files come in the order of the calls.
        self._slots = asyncio.Semaphore(settings.model_concurrency if self._live else 1)
        self._one_ended = asyncio.Condition()
        self._limiter = _limiter(settings.requests_per_minute) if self._live else None

    def ask_all(self, calls: Sequence[Call]) -> list[Reply | ModelFailed]:
        """See `Models`."""
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(calls), _event_loop())
        try:
            return asking.result()
        finally:
            asking.cancel()  # after an interruption; without effect on what is done

    async def _ask_all(self, calls: Sequence[Call]) -> list[Reply | ModelFailed]:
        if self._live and calls:
            names = ", ".join(dict.fromkeys(map(self._model_for, calls)))
            self._say(f"asking {names}: {', '.join(call.custom_id for call in calls)}")
        unique = {(call.custom_id, call.digest): call for call in calls}
        tasks = {key: asyncio.ensure_future(self._ask(call)) for key, call in unique.items()}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        ends = [tasks[call.custom_id, call.digest].result() for call in calls]
        pending = {end.custom_id: end for end in ends if isinstance(end, Request)}
        if pending:
            raise self._transport.hold(list(pending.values()))
        return [end for end in ends if not isinstance(end, Request)]

    async def _ask(self, call: Call) -> Reply | ModelFailed | Request:
        """The result of a call; its request where the answer comes later."""
        usage, question = Usage(0, 0, 0.0), call
        while True:
            end = await self._settle(question)
            if isinstance(end, Request):
                return end
            ended, read = end
            usage = _added(usage, ended.usage)
            if isinstance(read, Valid):
                return Reply(read.value, read.text, str((ended.answer or {}).get("model") or ended.model), usage)
            if isinstance(read, Invalid) and question is call:
                question = again(call, read)
                if self._ledger.known(identify(question.custom_id, question.digest)) is None:
                    self._say(f"the answer to {call.custom_id} is not usable: {read.why.rstrip('.')}; asked again")
                continue
            if isinstance(read, Invalid):
                detail = f"The answer does not fit the schema, and neither did the one after a hint: {read.why}"
                read = ModelFailed("unstructured", detail, read.text)
            self._say(f"{question.custom_id}: {read.detail}")
            return read

    async def _settle(self, call: Call) -> tuple[ModelCalled, Read] | Request:
        """The final entry of a call in the journal and what it says, after as many attempts as it takes; its request
        where the answer comes later."""
        known = self._ledger.known(identify(call.custom_id, call.digest))
        if known is not None:
            return known, await self._read(known, call)
        model = self._model_for(call)
        methods = self._methods_for(model)
        tries = timeouts = 0
        while True:
            attempt = _Attempt(call, first=tries == 0)
            counted = None
            async with self._slots:
                try:
                    message = await self._chats.ask(call, model, methods[0], functools.partial(self._exchange, attempt))
                    read, counted = read_answer(message, call.schema), message.usage_metadata
                except _NoAnswer:
                    read = None
                except ValidationError:
                    read = attempt.invalid()
            request, outcome, seconds = attempt.request, attempt.outcome, attempt.seconds
            tries += 1
            if isinstance(outcome, Pending):
                return request
            if isinstance(outcome, Completion):
                assert read is not None
                self._suspect = False
                if self._live and self._settings.model_method == "auto":
                    self._ledger.learn_method(model, methods[0], call.stage)
                ended = self._ledger.answered(call, request, outcome, read, attempt.worst, counted, seconds)
                await self._notify()
                if outcome.note:
                    self._say(outcome.note)
                return ended, read
            wait = self._wait(outcome, tries, timeouts)
            if wait is not None and wait >= self._seconds_left():
                detail = f"{outcome.detail} The time limit leaves no time to try again."
                wait, outcome = None, replace(outcome, kind="out_of_time", detail=detail)
            other_form = outcome.rejected and len(methods) > 1
            if outcome.rejected and not other_form:
                outcome = _no_method(outcome, self._settings)
            final = wait is None and not other_form
            ended = self._ledger.failed(call, request, outcome, seconds, final=final)
            await self._notify()
            if final:
                if outcome.kind == "unauthorised" and self._live:
                    self._closed = outcome
                self._suspect = self._suspect or outcome.transient
                return ended, ModelFailed(outcome.kind, outcome.detail)
            if other_form:
                methods, tries = methods[1:], 0
            elif wait is not None:
                timeouts += outcome.kind == "timeout"
                self._say(f"{call.custom_id}: {outcome.detail} Trying again in {wait:.0f} s.")
                await asyncio.sleep(wait)

    async def _read(self, known: ModelCalled, call: Call) -> Read:
        """What the final entry of a call says."""
        if known.answer is None:
            return ModelFailed(cast(FailureKind, known.status), known.detail)
        try:
            return read_answer(await self._chats.read(Completion(known.answer)), call.schema)
        except ValidationError:
            return Invalid(_arguments(known.answer), "it is not a JSON object.")

    async def _exchange(self, attempt: _Attempt, body: dict[str, Any]) -> dict[str, Any]:
        """Between LangChain, which composes requests and reads completions, and the transport. Raises `_NoAnswer`."""
        call = attempt.call
        attempt.request = Request(identify(call.custom_id, call.digest), body)
        attempt.worst = self._ledger.worst(attempt.request, self._settings.answer_tokens)
        refused = await self._admit(call, attempt.request, attempt.worst, first=attempt.first)
        started = time.monotonic()
        attempt.outcome = refused or await self._send(attempt.request)
        attempt.seconds = time.monotonic() - started
        if isinstance(attempt.outcome, Completion):
            return attempt.outcome.body
        raise _NoAnswer

    async def _send(self, request: Request) -> Completion | Failure | Pending:
        patience, left = self._settings.model_timeout + GRACE, self._seconds_left()
        try:
            async with asyncio.timeout(min(patience, left)):
                return await self._transport.send(request)
        except TimeoutError:
            if left < patience:
                return Failure("out_of_time", "No answer had come when the time limit was reached.", served=True)
            detail = f"the server kept the connection open for {patience:g} s without an answer."
            return Failure("timeout", detail, transient=True, served=True)

    async def _admit(self, call: Call, request: Request, worst: Tokens, *, first: bool) -> Failure | None:
        """Journals that a request is about to be made; or says why it must not be."""
        account, replay = self._ledger.account, self._transport.kind == "replay"
        if account.is_open(request.custom_id):
            return None  # of an earlier session; its answer may have come
        if self._limiter is not None:
            try:
                async with asyncio.timeout(self._seconds_left()):
                    await self._limiter.aacquire()
            except TimeoutError:
                return TOO_LATE
        while not replay and (objection := account.objection(self._settings, worst, count_open=True)) is not None:
            # It may fit when those under way turn out cheaper than feared.
            if (
                not self._live
                or not account.any_open
                or account.objection(self._settings, worst, count_open=False) is not None
            ):
                return Failure("capped", objection)
            async with self._one_ended:
                await self._one_ended.wait()
        if self._closed is not None:
            return self._closed
        if self._seconds_left() <= 0:
            return TOO_LATE
        self._ledger.asked(call, request, worst, first=first)
        return None

    async def _notify(self) -> None:
        async with self._one_ended:
            self._one_ended.notify_all()

    def _wait(self, failure: Failure, tries: int, timeouts: int) -> float | None:
        """Seconds until the next try, None for no other. A server that failed one call to the end gets no retries for
        the next ones until it answers."""
        if not failure.transient or not self._live or self._suspect or tries > self._settings.model_retries:
            return None
        if failure.kind == "timeout" and timeouts >= TIMEOUT_RETRIES:
            return None
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= LONGEST_RETRY_AFTER else None
        # "Equal jitter": spreads the clients of a server that comes back.
        wait: float = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (tries - 1)) * random.uniform(0.5, 1.0)
        return wait

    def _methods_for(self, model: str) -> list[Method]:
        setting = self._settings.model_method
        if setting != "auto":
            return [setting]
        known = self._ledger.methods.get(model)
        return ([known] if known else []) + [method for method in METHODS if method != known]

    def _say(self, message: str) -> None:
        # Servers and models write part of it: nothing of that may move the cursor or begin a line.
        shown = "".join(sign if sign.isprintable() else " " for sign in message)
        self._listener(Progress("model", " ".join(shown.split())))


class _NoAnswer(Exception):
    """An attempt ended without a completion; its `outcome` says how."""


@dataclass(slots=True)
class _Attempt:
    """One attempt at a call. first: in the present form of its request. The rest is known when the request was
    composed, and when it has ended; seconds: waited for the transport."""

    call: Call
    first: bool
    request: Request = field(init=False)
    worst: Tokens = field(init=False)
    outcome: Completion | Failure | Pending = field(init=False)
    seconds: float = 0.0

    def invalid(self) -> Invalid:
        """What is read where LangChain makes no message of the completion: a tool call's arguments are no object."""
        assert isinstance(self.outcome, Completion)
        return Invalid(_arguments(self.outcome.body), "it is not a JSON object.")


def _arguments(completion: Mapping[str, Any]) -> str:
    calls = completion["choices"][0]["message"].get("tool_calls") or []
    return str(calls[0]["function"]["arguments"]) if calls else ""


def _added(usage: Usage, used: CallUsage | None) -> Usage:
    if used is None:
        return usage
    cost = None if usage.cost is None or used.cost is None else usage.cost + used.cost
    prompt, completion = (
        usage.prompt_tokens + used.prompt_tokens,
        usage.completion_tokens + used.completion_tokens,
    )
    return Usage(prompt, completion, cost)


def _limiter(per_minute: float | None) -> BaseRateLimiter | None:
    if per_minute is None:
        return None
    from langchain_core.rate_limiters import InMemoryRateLimiter

    per_second = per_minute / 60.0
    limiter = InMemoryRateLimiter(requests_per_second=per_second, check_every_n_seconds=min(0.1, 0.1 / per_second))
    limiter.available_tokens = 1.0  # the first call need not wait
    return limiter


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop in which calls wait, in a thread of its own: the thread that asks stays open to interruptions, may have
    a loop itself (a notebook), and connections outlive a question. A daemon: no server keeps the process alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="models", daemon=True).start()
    return loop


def _no_method(failure: Failure, settings: ModelSettings) -> Failure:
    """What to tell the user when a server takes no request of ours."""
    if settings.model_method == "auto":
        return Failure("server_error", f"The server takes none of {', '.join(METHODS)}: {failure.detail}")
    detail = f"The server rejects {settings.model_method}; try another --model-method, or auto: {failure.detail}"
    return Failure("server_error", detail)
