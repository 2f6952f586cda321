"""The models of a run over any source of answers: the caps, the journal of calls, a second try for an unusable answer.

A source has a question answered: by a server (`chat`), by batch files or a recording (`recorded`). Each attempt of a
question is allowed here by the caps and the time limit, and journalled, before it is made, and journalled after it.
Counted are the calls that a server answered, and those that it may have worked on although no answer came (timeouts,
calls under way when the process was killed): these at their upper bound.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from langchain_core.language_models import BaseChatModel
from langsmith import tracing_context
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.graph.journal.events import ModelAsked, ModelCalled, ModelMethodFound
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import ModelsUsage, RoleUsage, Tokens
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import (
    Completion,
    FailureKind,
    Message,
    ModelCall,
    ModelFailed,
    Reply,
    Waiting,
    again,
    again_name,
    problem,
    read_answer,
)
from tunesmith.graph.models.recorded import Outcome, write_recording
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.settings import METHODS, Method, ModelSettings
from tunesmith.hw.errors import TunesmithError


class Usage:
    """The calls and their cost, from the events of the journal in their order. attempts: of each request, by its id."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.under_way: dict[str, ModelAsked] = {}
        self._counted: list[tuple[ModelAsked | ModelCalled, Tokens, bool]] = []
        """Event, tokens, and whether these are an estimate."""
        self._ended: list[ModelCalled] = []

    def add(self, event: ModelAsked | ModelCalled) -> None:
        """The event was written."""
        asked = self.under_way.pop(event.id, None)
        if isinstance(event, ModelAsked):
            self._count_worst(asked)  # an attempt that a kill cut off
            self.attempts[event.id] = event.attempt
            self.under_way[event.id] = event
            return
        self._ended.append(event)
        if event.usage is not None:
            self._counted.append((event, event.usage, event.usage.estimated))
        elif event.served:
            self._count_worst(asked)

    def _count_worst(self, asked: ModelAsked | None) -> None:
        if asked is not None:
            self._counted.append((asked, asked.worst, True))

    def count_cut_off(self) -> None:
        """Counts the calls without an end as served: their process was killed."""
        for asked in self.under_way.values():
            self._count_worst(asked)
        self.under_way.clear()

    def calls(self) -> int:
        """Calls that count against a cap, with those under way."""
        return len(self._counted) + len(self.under_way)

    def cap_reached(self, settings: ModelSettings, bound: Tokens, *, with_open: bool = True) -> str | None:
        """The cap that does not allow a call of at most `bound`, in a sentence; None if all do. with_open: the calls
        under way take their upper bound."""
        spent = [tokens for _, tokens, _ in self._counted]
        spent += [event.worst for event in self.under_way.values()] if with_open else []

        def tokens(of: Tokens) -> int:
            return of.prompt_tokens + of.completion_tokens

        def cost(of: Tokens) -> float:
            return of.cost or 0.0

        for option, cap, used, needed in (
            ("--max-calls", settings.max_calls, len(spent), 1),
            ("--max-tokens", settings.max_tokens, sum(map(tokens, spent)), tokens(bound)),
            ("--max-cost", settings.max_cost, sum(map(cost, spent)), cost(bound)),
        ):
            if cap is not None and used + needed > cap:
                return f"{option} {cap} does not allow the call: {used:.6g} is spent, and it may take {needed:.6g}."
        return None

    def summary(self, transport: str, where: str) -> ModelsUsage:
        """The account of a run, with totals."""
        last = {event.custom_id: event for event in self._ended}
        # A call with a second try ended as that one did.
        failed = [one for name, one in last.items() if one.status != "ok" and again_name(name) not in last]

        def totals(*, role: str | None = None, model: str | None = None) -> dict[str, Any]:
            def own(event: ModelAsked | ModelCalled) -> bool:
                return role is None or (event.role, event.model) == (role, model)

            counted = [(tokens, estimated) for event, tokens, estimated in self._counted if own(event)]
            return _total(tokens for tokens, _ in counted).model_dump() | {
                "calls": len(counted),
                "unaccounted": sum(estimated for _, estimated in counted),
                "failed": sum(map(own, failed)),
                "seconds": sum(event.seconds for event in self._ended if own(event)),
            }

        keys = {(event.role, event.model) for event in (*self._ended, *(event for event, _, _ in self._counted))}
        rows = [RoleUsage(role=role, model=model, **totals(role=role, model=model)) for role, model in sorted(keys)]
        failures = dict(Counter(event.status for event in failed))
        return ModelsUsage(transport=transport, where=where, failures=failures, rows=tuple(rows), **totals())


def _total(parts: Iterable[Tokens]) -> Tokens:
    """The sum; its cost is None where a part's is not known."""
    known = list(parts)
    costs = [each.cost for each in known if each.cost is not None]
    return Tokens(
        prompt_tokens=sum(each.prompt_tokens for each in known),
        completion_tokens=sum(each.completion_tokens for each in known),
        cost=math.fsum(costs) if len(costs) == len(known) else None,
    )


def read_usage(journal: Journal, *, live: bool) -> Usage:
    """The model calls in a journal. live: those without an end were cut off, and are counted."""
    usage = Usage()
    for entry in RunLog(journal).model_calls():
        usage.add(entry.event)
    if live:
        usage.count_cut_off()
    return usage


PACKAGED = Path(__file__).with_name("prices.toml")


class PricesError(TunesmithError):
    """A file of prices cannot be used."""


class Price(BaseModel):
    """US dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    cached_input: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Prices(BaseModel):
    """The prices of models by name, as a file has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: dict[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model; a dated version costs what its name without the date does."""
        return self.models.get(model) or self.models.get(re.sub(r"-\d{4}-\d{2}-\d{2}$", "", model))

    def cost(self, model: str, prompt: int, completion: int, cached: int = 0) -> float | None:
        """US dollars for tokens, `cached` of the prompt's being from the cache; None where no price is known."""
        price = self.of(model)
        if price is None:
            return None
        cheap = price.input if price.cached_input is None else price.cached_input
        cached = min(cached, prompt)
        return ((prompt - cached) * price.input + cached * cheap + completion * price.output) / 1e6


def load_prices(path: str | None) -> Prices:
    """The packaged prices, under those of `path`, or, where that is None, of the user's own file."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tunesmith" / "prices.toml"
    models = _read_prices(PACKAGED).models
    if path is not None or own.is_file():
        models = models | _read_prices(own if path is None else Path(path)).models
    return Prices(models=models)


def _read_prices(path: Path) -> Prices:
    try:
        return Prices.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise PricesError(f"--prices: {path} cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        raise PricesError(
            f"{path}: {problem(error.errors(include_url=False)[0])}; write it as [models] and a line such as "
            '"name" = { input = 1.0, output = 4.0 }.'
        ) from error
    except ValueError as error:
        raise PricesError(f"{path} is not valid TOML in UTF-8: {error}.") from error


BYTES_PER_TOKEN = 2
"""Fewer than tokenizers need for source code and English (3 to 4), so that an estimate by it is high."""
PROMPT_OVERHEAD_TOKENS = 64
"""Of chat templates around the messages."""


class Question:
    """One request of a run for an answer to `call`, in the form of one `method`, over all its attempts. A source has it
    answered: `ask` hands it to a chat model, which reports to `begin`, `answer` and `fail`.

    retries: at most; note: to the user, on the answer's origin; timeouts: attempts without an answer in time. Of the
    last attempt: outcome: None while it is under way; seconds: its duration; served: the server may have worked on it,
    and may count it; transient: another one may help; rejected: the server does not take a request of this form, so
    that another form may help."""

    def __init__(self, client: ModelClient, call: ModelCall, model: str, method: Method, retries: int) -> None:
        self._client = client
        self.call, self.model, self.method, self.retries = call, model, method, retries
        self.body: dict[str, Any] = {}
        self.bound = Tokens(prompt_tokens=0, completion_tokens=0, cost=0.0)
        self.outcome: Outcome | None = None
        self.note = ""
        self.served = self.rejected = self.transient = False
        self.attempts = self.timeouts = 0
        self.seconds = self._started = 0.0

    @property
    def under_way(self) -> bool:
        """Whether an attempt is made that has not ended."""
        return bool(self.attempts) and self.outcome is None

    async def ask(self, chat: BaseChatModel) -> None:
        """Asks a chat model for an answer of the call's schema."""
        schema = self.call.schema.model_json_schema()
        schema["title"] = re.sub(r"[^A-Za-z0-9_-]", "_", self.call.schema.__name__)[:64]
        messages, strict = self.call.messages, None if self.method == "json_mode" else is_strict(schema)
        if self.method == "json_mode":
            # It sends the schema in no other way than in words: here behind those of the system.
            said = [f"Answer with one JSON object, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"]
            if messages[0].role == "system":
                said, messages = [messages[0].content, *said], messages[1:]
            messages = (Message("system", "\n\n".join(said)), *messages)
        structured = chat.with_structured_output(schema, method=self.method, strict=strict, include_raw=True)
        # Tracing, switched on by a variable of the environment, would send the prompt to one more host.
        with tracing_context(enabled=False):
            await structured.ainvoke([{"role": each.role, "content": each.content} for each in messages])

    async def begin(self, body: dict[str, Any]) -> bool:
        """Waits until the caps allow an attempt, and journals it; False where it must not be made."""
        if isinstance(self.outcome, ModelFailed):
            await self._client.end(self, final=False)
            self._client.say(f"{self.call.custom_id}: {self.outcome.detail} Trying again.")
        await self._client.wait_for_caps(self._client.log.bound(body))
        return self.begin_now(body)

    def begin_now(self, body: dict[str, Any]) -> bool:
        """Journals an attempt; False where it must not be made."""
        log = self._client.log
        self.body, self.bound, self.outcome = body, log.bound(body), None
        self.served = self.transient = self.rejected = False
        if self.call.request_id not in log.usage.under_way:  # else of an earlier session
            self.seconds, self.outcome = 0.0, self._client.refusal(self.bound)
            if self.outcome is not None:
                return False
            log.asked(self)
        self.attempts += 1
        self._started = time.monotonic()
        return True

    def answer(self, completion: dict[str, Any], note: str = "") -> None:
        """Takes a chat completion that `completion_error` accepts."""
        self._end(completion, served=True)
        self.note = note

    def fail(
        self, kind: FailureKind, detail: str, *, served: bool = False, transient: bool = False, rejected: bool = False
    ) -> None:
        """Takes the failure of the attempt under way, or of the whole question."""
        self._end(ModelFailed(kind, detail), served=served, transient=transient, rejected=rejected)

    def _end(self, outcome: Outcome, *, served: bool, transient: bool = False, rejected: bool = False) -> None:
        self.seconds = time.monotonic() - self._started if self.under_way else 0.0
        self.outcome, self.served, self.transient, self.rejected = outcome, served, transient, rejected


class CallLog:
    """The model calls of a run, in its journal and in a recording in `folder`. known: the ends of requests that need
    not be made again; a live server's failures may have passed by the next session, those from files hold for good."""

    def __init__(self, journal: Journal, prices: Prices, folder: Path, settings: ModelSettings) -> None:
        self._journal, self._prices, self._folder = journal, prices, folder
        self._live, self._answer_tokens = settings.transport == "live", settings.answer_tokens
        self.usage, log = Usage(), RunLog(journal)
        self.methods: dict[str, Method] = {event.model: event.method for event in log.events(ModelMethodFound)}
        self.known: dict[str, ModelCalled] = {}
        self._bodies: dict[str, dict[str, Any]] = {}
        self._outcomes: dict[str, Outcome] = {}
        for entry in log.model_calls():
            self._take(entry.event)
        if self._outcomes:
            write_recording(folder, self._bodies, self._outcomes)
        if self._live:
            self.usage.count_cut_off()

    def bound(self, body: Mapping[str, Any]) -> Tokens:
        """The upper bound of a request's tokens and cost."""
        size = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
        prompt = math.ceil(size / BYTES_PER_TOKEN) + PROMPT_OVERHEAD_TOKENS
        cost = self._prices.cost(body["model"], prompt, self._answer_tokens)
        return Tokens(prompt_tokens=prompt, completion_tokens=self._answer_tokens, cost=cost)

    def asked(self, question: Question) -> None:
        """Writes that an attempt is about to be made."""
        body = None if question.attempts else question.body
        attempt = self.usage.attempts[question.call.request_id] + 1
        self._write(ModelAsked(**_about(question), attempt=attempt, body=body, worst=question.bound), question)

    def ended(self, question: Question, *, final: bool) -> ModelCalled:
        """Writes that an attempt was answered, failed, or was not made, and returns the event."""
        attempt = self.usage.attempts[question.call.request_id]
        outcome, completion = question.outcome, question.outcome if isinstance(question.outcome, dict) else None
        answer = read_answer(completion, question.call.schema) if completion else outcome
        status, detail = (answer.kind, answer.detail) if isinstance(answer, ModelFailed) else ("ok", "")
        event = ModelCalled(
            **_about(question),
            attempt=attempt,
            body=None if attempt else question.body,  # it was never made
            status=status,
            detail=f"The answer cannot be used: {detail}" if status == "unstructured" else detail,
            final=final,
            answer=completion,
            text=Completion.model_validate(completion).text if completion else "",
            usage=self._count(question, completion) if completion else None,
            served=question.served,
            seconds=round(question.seconds, 3),
            note=question.note,
        )
        self._write(event, question)
        if final:
            write_recording(self._folder, self._bodies, self._outcomes)
        return event

    def learn_method(self, question: Question) -> None:
        """Writes the method that the model's server takes, if it is new."""
        if self.methods.get(question.model) != question.method:
            self.methods[question.model] = question.method
            event = ModelMethodFound(model=question.model, method=question.method)
            self._journal.append(event, question.call.stage)

    def _count(self, question: Question, completion: Mapping[str, Any]) -> Tokens:
        """Tokens as the server counts them; each of the two counts is estimated where it does not."""
        read = Completion.model_validate(completion)
        # Neither a prompt nor a text has no tokens: a count of 0 is missing.
        prompt = read.prompt_tokens or question.bound.prompt_tokens
        written = read.completion_tokens or math.ceil(len(read.text.encode()) / BYTES_PER_TOKEN)
        cached = read.cached_tokens or 0
        return Tokens(
            prompt_tokens=prompt,
            completion_tokens=written,
            cached_tokens=cached,
            estimated=not read.prompt_tokens or bool(written and not read.completion_tokens),
            cost=self._prices.cost(question.model, prompt, written, cached),
        )

    def _write(self, event: ModelAsked | ModelCalled, question: Question) -> None:
        self._journal.append(event, question.call.stage)
        self._take(event)

    def _take(self, event: ModelAsked | ModelCalled) -> None:
        """The event was written."""
        self.usage.add(event)
        if event.body:
            self._bodies[event.id] = event.body
        if isinstance(event, ModelCalled) and event.final:
            self._outcomes[event.id] = event.answer or _failure_of(event)
            if event.answer is not None or not self._live:
                self.known[event.id] = event


def _about(question: Question) -> dict[str, Any]:
    call = question.call
    about = {"id": call.request_id, "custom_id": call.custom_id, "digest": call.digest, "role": call.role}
    return about | {"model": question.model}


def _failure_of(event: ModelCalled) -> ModelFailed:
    return ModelFailed(cast(FailureKind, event.status), event.detail)


class ModelClient:
    """The `Models` of a run. source: has a question answered; one that it leaves without an outcome is pending.
    seconds_left: until the run's time limit; model_of: the model of a request, where that is not the settings' to say;
    hold: writes pending requests down, bodies by custom_id."""

    def __init__(
        self,
        settings: ModelSettings,
        source: Callable[[Question], Awaitable[None]],
        log: CallLog,
        listener: Listener,
        seconds_left: Callable[[], float] = lambda: math.inf,
        model_of: Callable[[str], str | None] = lambda request_id: None,
        hold: Callable[[Mapping[str, dict[str, Any]]], Waiting] | None = None,
    ) -> None:
        self.settings, self.log = settings, log
        self._source, self._listener, self._hold = source, listener, hold
        self._seconds_left, self._model_of = seconds_left, model_of
        self._live, self._auto = settings.transport == "live", settings.model_method == "auto"
        self._pending: dict[str, dict[str, Any]] = {}
        self._closed: ModelFailed | None = None
        """Why the server takes no call at all, such as a wrong key."""
        self._unreliable = False
        """The server failed a call to the end, and has not answered since: it is not pressed by retries."""
        # Answers from files come in the order of the calls.
        self._slots = asyncio.Semaphore(settings.model_concurrency if self._live else 1)
        self._attempt_ended = asyncio.Condition()

    def ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        """See `Models`."""
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(calls), _event_loop())
        try:
            return asking.result()
        finally:
            asking.cancel()  # after an interruption; without effect on a call that has ended

    async def wait_for_caps(self, bound: Tokens) -> None:
        """Waits while a cap does not allow a call that may fit when the calls under way turn out cheaper."""
        usage = self.log.usage
        while (
            usage.under_way
            and usage.cap_reached(self.settings, bound) is not None
            and usage.cap_reached(self.settings, bound, with_open=False) is None
        ):
            async with self._attempt_ended:
                await self._attempt_ended.wait()

    def refusal(self, bound: Tokens) -> ModelFailed | None:
        """Why an attempt must not be made; None if it may. The one place where caps are checked."""
        reason = self.log.usage.cap_reached(self.settings, bound)
        if reason is not None and self.settings.transport != "replay":
            return ModelFailed("capped", reason)
        if self._closed is None and self._seconds_left() <= 0:
            return ModelFailed("out_of_time", "The time limit leaves no time to ask the model.")
        return self._closed

    async def end(self, question: Question, *, final: bool) -> ModelCalled:
        """Journals the end of an attempt. final: no other one follows."""
        ended = self.log.ended(question, final=final)
        async with self._attempt_ended:
            self._attempt_ended.notify_all()
        return ended

    def say(self, message: str) -> None:
        """Tells the user."""
        # Servers and models write part of it, which must not move the cursor or begin a line.
        shown = "".join(sign if sign.isprintable() else " " for sign in message)
        self._listener(Progress("model", " ".join(shown.split())))

    async def _ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        if self._live and calls:
            names = ", ".join(dict.fromkeys(map(self._model_for, calls)))
            self.say(f"asking {names}: {', '.join(call.custom_id for call in calls)}")
        self._pending = {}
        unique = {call.request_id: call for call in calls}
        tasks = [asyncio.ensure_future(self._ask(call)) for call in unique.values()]
        try:
            results = dict(zip(unique, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
        if self._pending:
            assert self._hold is not None
            raise self._hold(self._pending)
        return [found for call in calls if (found := results[call.request_id]) is not None]

    async def _ask(self, call: ModelCall) -> Reply | ModelFailed | None:
        """The result of a call, after a second try where the first answer is unusable; None where it comes later."""
        used: list[Tokens] = []
        asked = call
        while True:
            if (ended := await self._settle(asked)) is None:
                return None
            used += [ended.usage] if ended.usage is not None else []
            found = _failure_of(ended) if ended.answer is None else read_answer(ended.answer, call.schema)
            if not isinstance(found, ModelFailed):
                return Reply(found, ended.text, str((ended.answer or {}).get("model") or ended.model), _total(used))
            if found.kind != "unstructured" or asked is not call:
                break
            asked = again(call, found)
            if asked.request_id not in self.log.known:
                self.say(f"the answer to {call.custom_id} is not usable: {found.detail.rstrip('.')}; asked again")
        if found.kind == "unstructured":
            detail = f"The answer does not fit the schema, and neither did the one after a hint: {found.detail}"
            found = ModelFailed("unstructured", detail, found.text)
        self.say(f"{asked.custom_id}: {found.detail}")
        return found

    async def _settle(self, call: ModelCall) -> ModelCalled | None:
        """The final entry of a call in the journal, after as many attempts as it takes; None where the answer comes
        later."""
        if (known := self.log.known.get(call.request_id)) is not None:
            return known
        model = self._model_for(call)
        methods = self._methods_for(model)
        for method in methods:
            retries = self.settings.model_retries if self._live and not self._unreliable else 0
            question = Question(self, call, model, method, retries)
            async with self._slots:
                await self._run(question)
            if not question.rejected or method == methods[-1]:
                break
            await self.end(question, final=False)
        outcome = question.outcome
        if outcome is None:
            self._pending[call.request_id] = question.body
            return None
        if not isinstance(outcome, ModelFailed):
            self._unreliable = False
            if self._live and self._auto:
                self.log.learn_method(question)
            if question.note:
                self.say(question.note)
        elif question.rejected:
            form = f"takes none of {', '.join(METHODS)}"
            form = form if self._auto else f"rejects {method}; try another --model-method, or auto"
            question.outcome = ModelFailed("server_error", f"The server {form}: {outcome.detail}")
        elif self._live and outcome.kind == "unauthorised":
            self._closed = outcome
        self._unreliable |= question.transient
        return await self.end(question, final=True)

    async def _run(self, question: Question) -> None:
        """Has a question answered, or fail, within the time limit."""
        left = self._seconds_left()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                await self._source(question)
        except TimeoutError:
            if question.under_way:
                question.fail("out_of_time", "No answer had come when the time limit was reached.", served=True)
            elif isinstance(question.outcome, ModelFailed):
                detail = f"{question.outcome.detail} The time limit leaves no time to try again."
                question.outcome = ModelFailed("out_of_time", detail)
            else:
                question.fail("out_of_time", "The time limit leaves no time to ask the model.")

    def _model_for(self, call: ModelCall) -> str:
        return self._model_of(call.request_id) or self.settings.name_for(call.role)

    def _methods_for(self, model: str) -> list[Method]:
        if self.settings.model_method != "auto":
            return [self.settings.model_method]
        # The known method comes first.
        return sorted(METHODS, key=lambda method: method != self.log.methods.get(model))


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI's strict mode takes a JSON schema as it is: every object closed, every property required, nothing
    free (https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas")."""
    if "$ref" in schema:
        return len(schema) == 1
    if schema.keys() & {"oneOf", "allOf", "not", "prefixItems", "patternProperties", "default"}:
        return False
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        return False
    parts = [*schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
        parts += properties.values()
    elif schema.get("type") == "array":
        parts.append(schema.get("items", {}))
    return all(is_strict(part) for part in parts)


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop in which calls wait, in a thread of its own: the thread that asks stays open to interruptions, may have
    a loop itself (a notebook), and connections outlive a question. A daemon: no server keeps the process alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="models", daemon=True).start()
    return loop
