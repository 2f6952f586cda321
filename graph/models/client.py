"""The models of a run over any source of answers: the caps, the journal of calls, a second try for an unusable answer.

A source makes the chat model of a question: live (`chat`), batch files or a recording (`recorded`). Each attempt of a
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

from langchain_core.language_models import BaseChatModel
from langsmith import tracing_context
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.graph.journal.events import ModelAsked, ModelCalled, ModelMethodFound
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import CallUsage, RoleUsage, Tokens
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
    answer_text,
    read_answer,
)
from tunesmith.graph.models.recorded import Outcome, write_recording
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.settings import METHODS, Method, ModelSettings
from tunesmith.hw.errors import TunesmithError


class Usage:
    """The calls and their cost, from the events of the journal in their order."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], ModelAsked] = {}
        self._counted: list[tuple[ModelAsked | ModelCalled, Tokens, bool]] = []
        """Event, tokens, and whether these are an estimate."""
        self._ended: list[ModelCalled] = []
        self._attempts: dict[str, int] = {}

    def add(self, event: ModelAsked | ModelCalled) -> None:
        """The event was written."""
        if isinstance(event, ModelAsked):
            self._attempts[event.id] = event.attempt
            self._open[event.id, event.attempt] = event
            return
        asked = self._open.pop((event.id, event.attempt), None)
        self._ended.append(event)
        if event.usage is not None:
            self._counted.append((event, event.usage, event.usage.estimated))
        elif event.served and asked is not None:
            self._counted.append((event, asked.worst, True))

    def count_open(self) -> None:
        """Counts the calls without an end as served: their process was killed."""
        self._counted += [(event, event.worst, True) for event in self._open.values()]
        self._open.clear()

    def attempts(self, request_id: str) -> int:
        """The number of attempts of a request."""
        return self._attempts.get(request_id, 0)

    def is_open(self, request_id: str) -> bool:
        """Whether an answer to the last attempt is still to come."""
        return (request_id, self.attempts(request_id)) in self._open

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def calls(self, *, with_open: bool = True) -> int:
        """Calls that count against a cap. with_open: also the calls under way."""
        return len(self._counted) + (len(self._open) if with_open else 0)

    def cap_reached(self, settings: ModelSettings, bound: Tokens, *, with_open: bool = True) -> str | None:
        """The cap that does not allow a call of at most `bound`, in a sentence; None if all do. with_open: the calls
        under way take their upper bound."""
        spent = [tokens for _, tokens, _ in self._counted]
        spent += [event.worst for event in self._open.values()] if with_open else []
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in spent)
        cost = sum(each.cost or 0.0 for each in spent)
        needs = bound.prompt_tokens + bound.completion_tokens
        if settings.max_calls is not None and len(spent) + 1 > settings.max_calls:
            return f"--max-calls {settings.max_calls} allows no further call."
        if settings.max_tokens is not None and tokens + needs > settings.max_tokens:
            return (
                f"--max-tokens {settings.max_tokens} does not allow the call: {tokens} are spent, and it may take "
                f"{needs}."
            )
        if settings.max_cost is not None and cost + (bound.cost or 0.0) > settings.max_cost:
            return (
                f"--max-cost {settings.max_cost:g} does not allow the call: ${cost:.4f} is spent, and it may cost "
                f"${bound.cost or 0.0:.4f}."
            )
        return None

    def to_json(self) -> dict[str, Any]:
        """Totals, and `rows` by role and model."""
        last = {event.custom_id: event for event in self._ended}
        # A call with a second try ended as that one did.
        failed = [one for name, one in last.items() if one.status != "ok" and again_name(name) not in last]
        keys = {(event.role, event.model) for event in (*self._ended, *(event for event, _, _ in self._counted))}
        rows = [self._row(role, model, failed) for role, model in sorted(keys)]
        totals: dict[str, Any] = {
            name: sum(getattr(row, name) for row in rows)
            for name in ("calls", "unaccounted", "failed", "prompt_tokens", "completion_tokens", "seconds")
        }
        failures = dict(Counter(event.status for event in failed))
        return totals | {
            "cost": _sum_known(row.cost for row in rows),
            "failures": failures,
            "rows": [row.model_dump() for row in rows],
        }

    def _row(self, role: str, model: str, failed: Sequence[ModelCalled]) -> RoleUsage:
        def own(event: ModelAsked | ModelCalled) -> bool:
            return (event.role, event.model) == (role, model)

        counted = [(tokens, estimated) for event, tokens, estimated in self._counted if own(event)]
        return RoleUsage(
            role=role,
            model=model,
            calls=len(counted),
            unaccounted=sum(estimated for _, estimated in counted),
            failed=sum(map(own, failed)),
            prompt_tokens=sum(tokens.prompt_tokens for tokens, _ in counted),
            completion_tokens=sum(tokens.completion_tokens for tokens, _ in counted),
            cost=_sum_known(tokens.cost for tokens, _ in counted),
            seconds=sum(event.seconds for event in self._ended if own(event)),
        )


def _sum_known(costs: Iterable[float | None]) -> float | None:
    """The sum; None where a part is not known."""
    known = list(costs)
    return None if None in known else sum((cost or 0.0 for cost in known), 0.0)


def read_usage(journal: Journal, *, live: bool) -> Usage:
    """The model calls in a journal. live: those without an end were cut off, and are counted."""
    usage = Usage()
    for event in RunLog(journal).model_calls():
        usage.add(event)
    if live:
        usage.count_open()
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


class _PriceFile(BaseModel):
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
        return ((prompt - cached) * price.input + cached * cheap + completion * price.output) / 1e6


def load_prices(path: str | None) -> Prices:
    """The packaged prices, under those of `path`, or, where that is None, of the user's own file."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tunesmith" / "prices.toml"
    models = dict(_read_prices(PACKAGED))
    if path is not None or own.is_file():
        models |= _read_prices(own if path is None else Path(path))
    return Prices(models)


def _read_prices(path: Path) -> Mapping[str, Price]:
    try:
        return _PriceFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig"))).models
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
"""Fewer than tokenizers need for source code and English (3 to 4), so that an estimate by it is high."""
PROMPT_OVERHEAD_TOKENS = 64
"""Of chat templates around the messages."""

Answer = BaseModel | ModelFailed


class Question:
    """One request of a run for an answer to `call`, in the form of one `method`, over all its attempts. The chat model
    that sends it reports to `begin`, `answer` and `fail`.

    retries: at most; note: to the user, on the answer's origin; timeouts: attempts without an answer in time. Of the
    last attempt: seconds: its duration; served: the server may have worked on it, and may count it; transient: another
    one may help; rejected: the server does not take a request of this form, so that another form may help."""

    def __init__(self, client: ModelClient, call: ModelCall, model: str, method: Method, retries: int) -> None:
        self._client = client
        self.call, self.model, self.method, self.retries = call, model, method, retries
        self.body: dict[str, Any] = {}
        self.bound = Tokens(prompt_tokens=0, completion_tokens=0, cost=0.0)
        self.completion: dict[str, Any] | None = None
        self.failure: ModelFailed | None = None
        self.note = ""
        self.served = self.rejected = self.transient = False
        self.attempts = self.timeouts = 0
        self.seconds = self._started = 0.0

    @property
    def under_way(self) -> bool:
        """Whether an attempt is made that has not ended."""
        return bool(self.attempts) and self.completion is None and self.failure is None

    async def begin(self, body: dict[str, Any]) -> bool:
        """Waits until the caps allow an attempt, and journals it; False where it must not be made."""
        if self.failure is not None:
            await self._client.retry(self, self.failure)
        await self._client.wait_for_caps(self._client.log.bound(body))
        return self.begin_now(body)

    def begin_now(self, body: dict[str, Any]) -> bool:
        """Journals an attempt; False where it must not be made."""
        self.body, self.bound = body, self._client.log.bound(body)
        self.failure, self.seconds = None, 0.0
        self.served = self.transient = self.rejected = False
        if not self._client.log.usage.is_open(self.call.request_id):  # else of an earlier session
            self.failure = self._client.refusal(self.bound)
            if self.failure is not None:
                return False
            self._client.log.asked(self)
        self.attempts += 1
        self._started = time.monotonic()
        return True

    def answer(self, completion: dict[str, Any], note: str = "") -> None:
        """Takes a chat completion that `completion_error` accepts."""
        self.completion, self.note, self.served, self.seconds = completion, note, True, self._elapsed()

    def fail(
        self, kind: FailureKind, detail: str, *, served: bool = False, transient: bool = False, rejected: bool = False
    ) -> None:
        """Takes the failure of the attempt under way, or of the whole question."""
        self.seconds, self.failure = self._elapsed(), ModelFailed(kind, detail)
        self.served, self.transient, self.rejected = served, transient, rejected

    def _elapsed(self) -> float:
        return time.monotonic() - self._started if self.under_way else 0.0


class CallLog:
    """The model calls of a run, in its journal and in a recording in `folder`. A live server's failures may have passed
    by the next session; those from files hold for good, as answers do."""

    def __init__(self, journal: Journal, prices: Prices, folder: Path, settings: ModelSettings) -> None:
        self._journal, self._prices, self._folder = journal, prices, folder
        self._live, self._answer_tokens = settings.transport == "live", settings.answer_tokens
        self.usage, log = Usage(), RunLog(journal)
        self.methods: dict[str, Method] = {event.model: event.method for event in log.events(ModelMethodFound)}
        self._known: dict[str, ModelCalled] = {}
        self._bodies: dict[str, dict[str, Any]] = {}
        self._outcomes: dict[str, Outcome] = {}
        for event in log.model_calls():
            self._take(event)
        if self._outcomes:
            write_recording(folder, self._bodies, self._outcomes)
        if self._live:
            self.usage.count_open()

    def known(self, request_id: str) -> ModelCalled | None:
        """The end of a request that need not be made again."""
        return self._known.get(request_id)

    def bound(self, body: Mapping[str, Any]) -> Tokens:
        """The upper bound of a request's tokens and cost."""
        size = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
        prompt = math.ceil(size / BYTES_PER_TOKEN) + PROMPT_OVERHEAD_TOKENS
        cost = self._prices.cost(body["model"], prompt, self._answer_tokens)
        return Tokens(prompt_tokens=prompt, completion_tokens=self._answer_tokens, cost=cost)

    def asked(self, question: Question) -> None:
        """Writes that an attempt is about to be made."""
        attempt = self.usage.attempts(question.call.request_id) + 1
        body = None if question.attempts else question.body
        event = ModelAsked(**_about(question), attempt=attempt, worst=question.bound, body=body)
        self._journal.append(event, question.call.stage)
        self._take(event)

    def ended(self, question: Question, answer: Answer, *, final: bool = True) -> ModelCalled:
        """Writes that an attempt was answered, failed, or was not made, and returns the event."""
        status, detail = "ok", ""
        if isinstance(answer, ModelFailed):
            status, detail = answer.kind, answer.detail
        if status == "unstructured":
            detail = f"The answer cannot be used: {detail}"
        attempt, completion = self.usage.attempts(question.call.request_id), question.completion
        event = ModelCalled(
            **_about(question),
            attempt=attempt,
            body=None if attempt else question.body,  # it was never made
            status=status,
            detail=detail,
            final=final,
            answer=completion,
            text="" if completion is None else answer_text(completion),
            usage=None if completion is None else self._count(question, completion),
            served=question.served,
            seconds=round(question.seconds, 3),
            note=question.note,
        )
        self._journal.append(event, question.call.stage)
        self._take(event)
        if final:
            write_recording(self._folder, self._bodies, self._outcomes)
        return event

    def learn_method(self, model: str, method: Method, stage: str) -> None:
        """Writes the method that the model's server takes, if it is new."""
        if self.methods.get(model) != method:
            self.methods[model] = method
            self._journal.append(ModelMethodFound(model=model, method=method), stage)

    def _count(self, question: Question, completion: Mapping[str, Any]) -> CallUsage:
        """Tokens as the server counts them; each of the two counts is estimated where it does not."""
        read = Completion.model_validate(completion)
        prompt = written = cached = 0
        if read.usage is not None:
            prompt, written = read.usage.prompt_tokens or 0, read.usage.completion_tokens or 0
            cached = (read.usage.prompt_tokens_details or {}).get("cached_tokens") or 0
        text = answer_text(completion)
        # Neither a prompt nor a text has no tokens: a count of 0 is missing.
        estimated = not prompt or (not written and bool(text))
        prompt = prompt or question.bound.prompt_tokens
        written = written or math.ceil(len(text.encode()) / BYTES_PER_TOKEN)
        return CallUsage(
            prompt_tokens=prompt,
            completion_tokens=written,
            cached_tokens=cached,
            estimated=estimated,
            cost=self._prices.cost(question.model, prompt, written, cached),
        )

    def _take(self, event: ModelAsked | ModelCalled) -> None:
        """The event was written."""
        self.usage.add(event)
        if event.body:
            self._bodies[event.id] = event.body
        if isinstance(event, ModelCalled) and event.final:
            self._outcomes[event.id] = event.answer or _failure_of(event)
            if event.answer is not None or not self._live:
                self._known[event.id] = event


def _about(question: Question) -> dict[str, Any]:
    call = question.call
    return {
        "id": call.request_id,
        "custom_id": call.custom_id,
        "digest": call.digest,
        "role": call.role,
        "model": question.model,
    }


def _failure_of(event: ModelCalled) -> ModelFailed:
    return ModelFailed(cast(FailureKind, event.status), event.detail)


class Source(Protocol):
    """Where answers come from. errors: raised by its chat models for a question that has ended or is pending."""

    errors: tuple[type[Exception], ...]

    def chat(self, question: Question) -> BaseChatModel:
        """A chat model for one question, which reports to it; a question without an end is pending."""
        ...


class ModelClient:
    """The `Models` of a run. seconds_left: until the run's time limit; model_of: the model of a request, where that is
    not the settings' to say; hold: writes pending requests down, bodies by custom_id."""

    def __init__(
        self,
        settings: ModelSettings,
        source: Source,
        log: CallLog,
        listener: Listener,
        seconds_left: Callable[[], float] = lambda: math.inf,
        model_of: Callable[[str], str | None] = lambda request_id: None,
        hold: Callable[[Mapping[str, dict[str, Any]]], Waiting] | None = None,
    ) -> None:
        self.settings, self.log = settings, log
        self._source, self._listener, self._hold = source, listener, hold
        self._seconds_left, self._model_of = seconds_left, model_of
        self._live = settings.transport == "live"
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
            usage.any_open
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
        if self._closed is not None:
            return self._closed
        if self._seconds_left() <= 0:
            return ModelFailed("out_of_time", "The time limit leaves no time to ask the model.")
        return None

    async def retry(self, question: Question, failure: ModelFailed) -> None:
        """Journals an attempt that failed and is followed by another."""
        self.log.ended(question, failure, final=False)
        await self._notify()
        self._say(f"{question.call.custom_id}: {failure.detail} Trying again.")

    async def _ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        if self._live and calls:
            names = ", ".join(dict.fromkeys(map(self._model_for, calls)))
            self._say(f"asking {names}: {', '.join(call.custom_id for call in calls)}")
        unique = {call.request_id: call for call in calls}
        tasks = {name: asyncio.ensure_future(self._ask(call)) for name, call in unique.items()}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        ends = [tasks[call.request_id].result() for call in calls]
        pending = {end.call.request_id: end.body for end in ends if isinstance(end, Question)}
        if pending:
            assert self._hold is not None
            raise self._hold(pending)
        return [end for end in ends if not isinstance(end, Question)]

    async def _ask(self, call: ModelCall) -> Reply | ModelFailed | Question:
        """The result of a call; its question where the answer comes later."""
        end = await self._settle(call)
        if isinstance(end, Question):
            return end
        ended, answer = end
        used = [ended.usage]
        if isinstance(answer, ModelFailed) and answer.kind == "unstructured":
            second = again(call, answer)
            if self.log.known(second.request_id) is None:
                self._say(f"the answer to {call.custom_id} is not usable: {answer.detail.rstrip('.')}; asked again")
            call, end = second, await self._settle(second)
            if isinstance(end, Question):
                return end
            ended, answer = end
            used.append(ended.usage)
        if not isinstance(answer, ModelFailed):
            return Reply(answer, ended.text, str((ended.answer or {}).get("model") or ended.model), _sum_of(used))
        if answer.kind == "unstructured":
            detail = f"The answer does not fit the schema, and neither did the one after a hint: {answer.detail}"
            answer = ModelFailed("unstructured", detail, answer.text)
        self._say(f"{call.custom_id}: {answer.detail}")
        return answer

    async def _settle(self, call: ModelCall) -> tuple[ModelCalled, Answer] | Question:
        """The final entry of a call in the journal and its answer, after as many attempts as it takes; its question
        where the answer comes later."""
        if (known := self.log.known(call.request_id)) is not None:
            failed = known.answer is None
            return known, _failure_of(known) if failed else read_answer(known.answer or {}, call.schema)
        model = self._model_for(call)
        methods = self._methods_for(model)
        for method in methods:
            retries = self.settings.model_retries if self._live and not self._unreliable else 0
            question = Question(self, call, model, method, retries)
            async with self._slots:
                await self._run(question)
            if question.completion is not None:
                self._unreliable = False
                if self._live and self.settings.model_method == "auto":
                    self.log.learn_method(model, method, call.stage)
                answer = read_answer(question.completion, call.schema)
                if question.note:
                    self._say(question.note)
                break
            failure = question.failure
            if failure is None:
                return question
            if question.rejected and method != methods[-1]:
                self.log.ended(question, failure, final=False)
                await self._notify()
                continue
            answer = failure
            if question.rejected and self.settings.model_method == "auto":
                answer = ModelFailed("server_error", f"The server takes none of {', '.join(METHODS)}: {failure.detail}")
            elif question.rejected:
                detail = f"The server rejects {method}; try another --model-method, or auto: {failure.detail}"
                answer = ModelFailed("server_error", detail)
            if self._live and failure.kind == "unauthorised":
                self._closed = failure
            self._unreliable |= question.transient
            break
        ended = self.log.ended(question, answer)
        await self._notify()
        return ended, answer

    async def _run(self, question: Question) -> None:
        """Has a question answered, or fail, within the time limit."""
        left = self._seconds_left()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                await ask(self._source.chat(question), question.call, question.method)
        except TimeoutError:
            if question.under_way:
                question.fail("out_of_time", "No answer had come when the time limit was reached.", served=True)
            elif question.failure is not None:
                detail = f"{question.failure.detail} The time limit leaves no time to try again."
                question.failure = ModelFailed("out_of_time", detail)
            else:
                question.fail("out_of_time", "The time limit leaves no time to ask the model.")
        except self._source.errors:
            if question.under_way and self._live:
                raise

    def _model_for(self, call: ModelCall) -> str:
        return self._model_of(call.request_id) or self.settings.name_for(call.role)

    async def _notify(self) -> None:
        async with self._attempt_ended:
            self._attempt_ended.notify_all()

    def _methods_for(self, model: str) -> list[Method]:
        setting = self.settings.model_method
        if setting != "auto":
            return [setting]
        known = self.log.methods.get(model)
        return ([known] if known else []) + [method for method in METHODS if method != known]

    def _say(self, message: str) -> None:
        # Servers and models write part of it, which must not move the cursor or begin a line.
        shown = "".join(sign if sign.isprintable() else " " for sign in message)
        self._listener(Progress("model", " ".join(shown.split())))


def _sum_of(used: Sequence[CallUsage | None]) -> Tokens:
    known = [each for each in used if each is not None]
    return Tokens(
        prompt_tokens=sum(each.prompt_tokens for each in known),
        completion_tokens=sum(each.completion_tokens for each in known),
        cost=_sum_known(each.cost for each in known),
    )


async def ask(chat: BaseChatModel, call: ModelCall, method: Method) -> None:
    """Asks a chat model for an answer of the call's schema."""
    schema = call.schema.model_json_schema()
    schema["title"] = re.sub(r"[^A-Za-z0-9_-]", "_", call.schema.__name__)[:64]
    messages, strict = call.messages, None
    if method == "json_mode":
        messages = _with_schema(messages, schema)
    else:
        strict = is_strict(schema)
    structured = chat.with_structured_output(schema, method=method, strict=strict, include_raw=True)
    # Tracing, switched on by a variable of the environment, would send the prompt to one more host.
    with tracing_context(enabled=False):
        await structured.ainvoke([{"role": each.role, "content": each.content} for each in messages])


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


def _with_schema(messages: tuple[Message, ...], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages with the schema in words: json_mode sends it in no other way."""
    wanted = f"Answer with one JSON object, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"
    # After the system messages: some chat templates take these only at the beginning.
    place = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    if place == 0:
        return (Message("system", wanted), *messages)
    last = Message("system", f"{messages[place - 1].content}\n\n{wanted}")
    return (*messages[: place - 1], last, *messages[place:])


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop in which calls wait, in a thread of its own: the thread that asks stays open to interruptions, may have
    a loop itself (a notebook), and connections outlive a question. A daemon: no server keeps the process alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="models", daemon=True).start()
    return loop
