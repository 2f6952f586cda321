"""What the models of a run have cost, and whether the caps allow one more call.

Counted is what a server answered, and what it may have worked on without our seeing the answer: calls that timed out,
or were under way when the process was killed. For these the worst is assumed: the estimate made before the call.

What tokens cost: the packaged table, the user's before it.
The journal of model calls: written before and after each attempt, read once when a run is opened.
`Models` over any transport: the journal before and after each attempt, caps, retries, and a second try for an answer
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import random
import re
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.graph.journal.events import ModelAsked, ModelCalled, ModelMethodFound
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import CallUsage, Tokens
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import (
    Call,
    FailureKind,
    Invalid,
    ModelFailed,
    Reply,
    Usage,
    Valid,
    again,
    again_name,
    read_answer,
)
from tunesmith.graph.models.chat import Completion, Failure, Pending, Request, Transport, identify
from tunesmith.graph.models.recorded import Recording
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.settings import METHODS, Method, ModelSettings
from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata
    from langchain_core.rate_limiters import BaseRateLimiter

    from tunesmith.graph.models.chat import Chats


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


PACKAGED = Path(__file__).with_name("prices.toml")
MILLION = 1_000_000


class PricesError(TunesmithError):
    """A file of prices cannot be used."""


class Price(BaseModel):
    """US dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    cached_input: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    models: dict[str, Price]


@dataclass(frozen=True, slots=True)
class Prices:
    models: Mapping[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model; a dated version costs what its name without the date does."""
        undated = re.sub(r"-\d{4}-\d{2}-\d{2}$", "", model)
        return self.models.get(model) or self.models.get(undated)

    def cost(self, model: str, prompt: int, completion: int, cached: int = 0) -> float | None:
        """US dollars for tokens, `cached` of the prompt's being from the cache; None where no price is known."""
        price = self.of(model)
        if price is None:
            return None
        cheap = price.input if price.cached_input is None else price.cached_input
        cached = min(cached, prompt)
        return ((prompt - cached) * price.input + cached * cheap + completion * price.output) / MILLION


def user_file() -> Path:
    """Where a user keeps prices for all runs."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tunesmith" / "prices.toml"


def load_prices(path: str | None) -> Prices:
    """The packaged prices, under those of `path`, or, where that is None, of the user's own file."""
    models = dict(_read(PACKAGED))
    if path is not None:
        models |= _read(Path(path))
    elif user_file().is_file():
        models |= _read(user_file())
    return Prices(models)


def _read(path: Path) -> Mapping[str, Price]:
    try:
        return _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig"))).models
    except OSError as error:
        raise PricesError(f"--prices: {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise PricesError(f"{path} is not UTF-8 text: save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise PricesError(f"{path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PricesError(
            f"{path}: {place}: {first['msg']}; write it as [models] and a line such as "
            '"name" = { input = 1.0, output = 4.0 }.'
        ) from error


BYTES_PER_TOKEN = 2
"""Fewer than tokenizers need for source code and English (3 to 4), so that an estimate made of it is high."""
PROMPT_OVERHEAD = 64
"""Tokens of chat templates around the messages."""

Read = Valid | Invalid | ModelFailed


class Ledger:
    """What is known of a run's model calls. live: failures may have passed by the next session; otherwise they hold
    for good, as answers do."""

    def __init__(self, journal: Journal, prices: Prices, recording: Recording, *, live: bool) -> None:
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


def read_account(journal: Journal, *, live: bool) -> Account:
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
