"""The models of a run over any source of answers: the caps, the journal of calls, a second try for an unusable answer.

Each attempt is allowed by the caps and the time limit, and journalled, before it is made, and journalled after it.
Calls without an answer that a server may have worked on (timeouts, a killed process) count at their upper bound."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tunesmith.graph.journal.events import ModelAsked, ModelCalled, ModelMethodFound, ModelsUsage, RoleUsage, Tokens
from tunesmith.graph.journal.log import Entry, Journal, RunLog
from tunesmith.graph.models.calls import AGAIN, Completion, ModelCall, ModelFailed, Reply, again, problem, read_answer
from tunesmith.graph.models.recorded import BatchModels, ReplayModels, write_recording
from tunesmith.graph.progress import Listener, Progress
from tunesmith.graph.settings import METHODS, Method, Settings
from tunesmith.hw.errors import TunesmithError

PACKAGED = Path(__file__).with_name("prices.toml")
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel, frozen=True, extra="forbid"):
    """US dollars for a million tokens of a model."""

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None

    def of(self, prompt: int, completion: int, cached: int = 0) -> float:
        """US dollars for tokens; `cached` of the prompt's are from the cache."""
        cheap = self.input if self.cached_input is None else self.cached_input
        cached = min(cached, prompt)
        return ((prompt - cached) * self.input + cached * cheap + completion * self.output) / 1e6


Prices = dict[str, Price]
"""The prices by the names of models."""


def price_of(prices: Prices, model: str) -> Price | None:
    """The price of a model; a dated version costs what its name without the date does."""
    return prices.get(model) or prices.get(re.sub(r"-\d{4}-\d{2}-\d{2}$", "", model))


def load_prices(path: str | None) -> Prices:
    """The packaged prices, which the prices in the file `path` replace."""
    return _read_prices(PACKAGED) | ({} if path is None else _read_prices(Path(path)))


def _read_prices(path: Path) -> Prices:
    try:
        models = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("models")
        return TypeAdapter(Prices).validate_python(models)
    except OSError as error:
        raise TunesmithError(f"--prices: {path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        why = f"models.{problem(error.errors()[0])}" if isinstance(error, ValidationError) else error
        form = '[models] and a line such as "name" = { input = 1.0, output = 4.0 }'
        raise TunesmithError(f"--prices: {path}: {why}; write it as TOML with {form}.") from error


class Ledger:
    """The model calls of a run in order, and their cost. live: from a server, so that calls without an end were cut
    off. By request id: attempts; under_way: requests without an end; ends: the last ones; bodies."""

    def __init__(self, journal: Journal, *, live: bool) -> None:
        self._live = live
        self.attempts: Counter[str] = Counter()
        self.under_way: dict[str, ModelAsked] = {}
        self.ends: dict[str, ModelCalled] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self._spent: list[tuple[ModelAsked | ModelCalled, Tokens]] = []
        self._ended: list[ModelCalled] = []
        calls: Iterator[Entry[ModelAsked | ModelCalled]] = journal.entries(ModelAsked, ModelCalled)
        for entry in calls:
            self.add(entry.event)
        if live:
            for request_id in list(self.under_way):
                self._count_cut_off(request_id)

    def add(self, event: ModelAsked | ModelCalled) -> None:
        """The event was written."""
        if event.body:
            self.bodies[event.id] = event.body
        if isinstance(event, ModelAsked):
            self._count_cut_off(event.id)
            self.attempts[event.id], self.under_way[event.id] = event.attempt, event
            return
        self._ended.append(event)
        if event.usage is not None:
            self._spent.append((event, event.usage))
        elif event.served:
            self._count_cut_off(event.id)
        self.under_way.pop(event.id, None)
        if event.final:
            self.ends[event.id] = event

    def _count_cut_off(self, request_id: str) -> None:
        """Counts the attempt under way, if there is one, which ended without a known cost."""
        if (asked := self.under_way.pop(request_id, None)) is not None:
            self._spent.append((asked, asked.worst.model_copy(update={"estimated": True})))

    def known(self, request_id: str) -> ModelCalled | None:
        """The end of a request that is not to be made again; a server's failure may have passed by the next session."""
        end = self.ends.get(request_id)
        return None if end is None or (end.answer is None and self._live) else end

    def calls(self) -> int:
        """Calls that count against a cap, with those under way."""
        return len(self._spent) + len(self.under_way)

    def cap_reached(self, settings: Settings, bound: Tokens) -> str | None:
        """The cap that forbids a call of at most `bound`, in a sentence, or None; open calls count in full."""
        spent = [*(usage for _, usage in self._spent), *(event.worst for event in self.under_way.values())]
        tokens, cost = map(_tokens, spent), (usage.cost or 0.0 for usage in spent)
        for name, cap, taken, needed in (
            ("calls", settings.max_calls, len(spent), 1),
            ("tokens", settings.max_tokens, sum(tokens), _tokens(bound)),
            ("cost", settings.max_cost, sum(cost), bound.cost or 0.0),
        ):
            if cap is not None and taken + needed > cap:
                why = f"{taken:.6g} is spent, and it may take {needed:.6g}"
                return f"--max-{name} {cap} does not allow the call: {why}."
        return None

    def summary(self, transport: str, where: str) -> ModelsUsage:
        """The account of a run, with totals."""
        last = {event.custom_id: event for event in self._ended}
        # A call with a second try ended as its second try did.
        failed = [one for name, one in last.items() if one.status != "ok" and name + AGAIN not in last]

        def totals(*about: str) -> dict[str, Any]:
            """The totals of a role and a model, or of all."""

            def own(event: ModelAsked | ModelCalled) -> bool:
                return not about or (event.role, event.model) == about

            spent = [usage for event, usage in self._spent if own(event)]
            costs = [usage.cost for usage in spent]
            return {
                "calls": len(spent),
                "unaccounted": sum(usage.estimated for usage in spent),
                "failed": sum(map(own, failed)),
                "prompt_tokens": sum(usage.prompt_tokens for usage in spent),
                "completion_tokens": sum(usage.completion_tokens for usage in spent),
                "cost": None if None in costs else math.fsum(filter(None, costs)),
                "seconds": sum(event.seconds for event in self._ended if own(event)),
            }

        pairs = {(event.role, event.model) for event in (*self._ended, *(event for event, _ in self._spent))}
        rows = tuple(RoleUsage(role=role, model=model, **totals(role, model)) for role, model in sorted(pairs))
        failures = dict(Counter(event.status for event in failed))
        return ModelsUsage(transport=transport, where=where, failures=failures, rows=rows, **totals())


def _tokens(usage: Tokens) -> int:
    return usage.prompt_tokens + usage.completion_tokens


BYTES_PER_TOKEN = 2
"""Tokenizers need 3 to 4 bytes for a token of source code or English, so that an estimate by this is high."""
PROMPT_OVERHEAD_TOKENS = 64
"""Tokens that chat templates add around the messages."""


class Question:
    """A request for an answer to `call` in the form of one `method`. A source has it answered, and reports each attempt
    by `begin` and `end`.

    retries: at most; note: to the user, on the answer's origin; timeouts: attempts that timed out; under_way: an
    attempt has begun and not ended. Of the last attempt: outcome; seconds; served: the server may have worked on it;
    rejected: the server takes no request of this form, and may take another form."""

    def __init__(self, client: ModelClient, call: ModelCall, model: str, method: Method, retries: int) -> None:
        self._client = client
        self.call, self.model, self.method, self.retries = call, model, method, retries
        self.body: dict[str, Any] = {}
        self.outcome: dict[str, Any] | ModelFailed | None = None
        self.note = ""
        self.under_way = self.served = self.rejected = False
        self.timeouts, self.seconds, self._started = 0, 0.0, 0.0

    async def begin(self, body: dict[str, Any]) -> bool:
        """Waits until the caps allow an attempt, and journals it; False where it must not be made."""
        client, ledger, request_id = self._client, self._client.ledger, self.call.request_id
        if isinstance(self.outcome, ModelFailed):
            client.say(f"{self.call.custom_id}: {self.outcome.detail} Trying again.")
            self.close(final=False)
        self.body, bound = body, client.bound(body)
        if request_id not in ledger.under_way:  # else of an earlier session
            if (refusal := await client.refusal(bound)) is not None:
                self.end(refusal)
                return False
            attempt = ledger.attempts[request_id] + 1
            client.write(ModelAsked(**self._about(), attempt=attempt, worst=bound), self.call.stage)
        self.under_way, self._started = True, time.monotonic()
        return True

    def end(self, outcome: dict[str, Any] | ModelFailed, *, served: bool = False, rejected: bool = False) -> None:
        """Takes a chat completion that `completion_error` accepts, or the failure of the attempt or of the question."""
        if self.under_way:
            self.seconds, self.served = time.monotonic() - self._started, served or isinstance(outcome, dict)
        self.outcome, self.under_way, self.rejected = outcome, False, rejected

    def close(self, *, final: bool) -> ModelCalled:
        """Journals the end of the attempt, or why none was made. final: no other one follows."""
        client, completion = self._client, self.outcome if isinstance(self.outcome, dict) else None
        read = Completion.model_validate(completion) if completion else None
        answer = read_answer(completion, self.call.schema) if completion else self.outcome
        status, detail = (answer.kind, answer.detail) if isinstance(answer, ModelFailed) else ("ok", "")
        event = ModelCalled(
            **self._about(),
            attempt=client.ledger.attempts[self.call.request_id],
            status=status,
            detail=f"The answer cannot be used: {detail}" if status == "unstructured" else detail,
            final=final,
            answer=completion,
            text=read.text if read else "",
            usage=client.usage(self, read) if read else None,
            served=self.served,
            seconds=round(self.seconds, 3),
            note=self.note,
        )
        self.outcome, self.served, self.seconds = None, False, 0.0
        client.write(event, self.call.stage)
        return event

    def _about(self) -> dict[str, Any]:
        """The fields that all events share; the body only where it is new."""
        call, known = self.call, self._client.ledger.bodies.get(self.call.request_id)
        about = {"id": call.request_id, "custom_id": call.custom_id, "digest": call.digest, "role": call.role}
        return {**about, "model": self.model, "body": None if self.body == known else self.body}


def _failure_of(event: ModelCalled) -> ModelFailed:
    return ModelFailed(cast(Any, event.status), event.detail)


class ModelClient:
    """The `Models` of a run. source: has a question answered; without an outcome it stays pending. files: with the
    answers; None for a server. folder: of the recording; seconds_left: until the run's time limit."""

    def __init__(
        self,
        settings: Settings,
        source: Callable[[Question], Awaitable[None]],
        files: BatchModels | ReplayModels | None,
        journal: Journal,
        prices: Prices,
        folder: Path,
        listener: Listener,
        seconds_left: Callable[[], float],
    ) -> None:
        self._settings, self._source, self._journal, self._prices = settings, source, journal, prices
        self._files, self._folder, self._listener = files, folder, listener
        self._live = files is None
        self._seconds_left = seconds_left if self._live else lambda: math.inf
        self.ledger = Ledger(journal, live=self._live)
        self._write_recording()
        found = RunLog(journal).events(ModelMethodFound)
        self._methods: dict[str, Method] = {event.model: event.method for event in found}
        self._closed: ModelFailed | None = None
        """Why the server refuses all calls, such as a wrong key."""
        # Answers from files come in the order of the calls.
        self._slots = asyncio.Semaphore(settings.model_concurrency if self._live else 1)
        self._written = asyncio.Event()

    def ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        """See `Models`."""
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(calls), _event_loop())
        try:
            return asking.result()
        finally:
            asking.cancel()  # after an interruption; without effect on a call that has ended

    def bound(self, body: Mapping[str, Any]) -> Tokens:
        """The upper bound of a request's tokens and cost."""
        size = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
        prompt, written = math.ceil(size / BYTES_PER_TOKEN) + PROMPT_OVERHEAD_TOKENS, self._settings.answer_tokens
        price = price_of(self._prices, body["model"])
        return Tokens(prompt_tokens=prompt, completion_tokens=written, cost=price and price.of(prompt, written))

    def usage(self, question: Question, answer: Completion) -> Tokens:
        """Tokens as the server counts them; each of the two counts is estimated where it does not."""
        # Prompts and texts have at least one token: a count of 0 means that the server did not count.
        prompt = answer.prompt_tokens or self.bound(question.body).prompt_tokens
        written = answer.completion_tokens or math.ceil(len(answer.text.encode()) / BYTES_PER_TOKEN)
        cached, price = answer.cached_tokens or 0, price_of(self._prices, question.model)
        return Tokens(
            prompt_tokens=prompt,
            completion_tokens=written,
            cached_tokens=cached,
            estimated=not answer.prompt_tokens or bool(written and not answer.completion_tokens),
            cost=price and price.of(prompt, written, cached),
        )

    async def refusal(self, bound: Tokens) -> ModelFailed | None:
        """Why an attempt must not be made; None if it may. Caps are checked here only: a call that they forbid waits
        for open calls, which may turn out cheaper."""
        while self._live and self.ledger.under_way and self.ledger.cap_reached(self._settings, bound) is not None:
            self._written.clear()
            await self._written.wait()
        reason = self.ledger.cap_reached(self._settings, bound)
        if reason is not None and not isinstance(self._files, ReplayModels):
            return ModelFailed("capped", reason)
        if self._closed is None and self._seconds_left() <= 0:
            return ModelFailed("out_of_time", "The time limit leaves no time to ask the model.")
        return self._closed

    def write(self, event: ModelAsked | ModelCalled, stage: str) -> None:
        """Journals an event; the last one of a question also enters the recording."""
        self._journal.append(event, stage)
        self.ledger.add(event)
        self._written.set()
        if isinstance(event, ModelCalled) and event.final:
            self._write_recording()

    def say(self, message: str) -> None:
        """Tells the user."""
        # Text of servers and models must not move the cursor or begin a line.
        shown = "".join(sign if sign.isprintable() else " " for sign in message)
        self._listener(Progress("model", " ".join(shown.split())))

    def _write_recording(self) -> None:
        if ends := self.ledger.ends:
            outcomes = {name: event.answer or _failure_of(event) for name, event in ends.items()}
            write_recording(self._folder, self.ledger.bodies, outcomes)

    async def _ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        if self._live and calls:
            names = ", ".join(dict.fromkeys(map(self._model_for, calls)))
            self.say(f"asking {names}: {', '.join(call.custom_id for call in calls)}")
        unique = {call.request_id: call for call in calls}
        tasks = [asyncio.ensure_future(self._ask(call)) for call in unique.values()]
        try:
            results = dict(zip(unique, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()
        if None in results.values():
            assert isinstance(self._files, BatchModels)
            raise self._files.hold({name: self.ledger.bodies[name] for name in self.ledger.under_way})
        return [found for call in calls if (found := results[call.request_id]) is not None]

    async def _ask(self, call: ModelCall) -> Reply | ModelFailed | None:
        """The result of a call, after a second try where the first answer is unusable; None where it comes later."""
        asked = call
        while True:
            if (ended := await self._settle(asked)) is None:
                return None
            found = _failure_of(ended) if ended.answer is None else read_answer(ended.answer, call.schema)
            if not isinstance(found, ModelFailed):
                return Reply(found, ended.text)
            if found.kind != "unstructured" or asked is not call:
                break
            asked = again(call, found)
            if self.ledger.known(asked.request_id) is None:
                self.say(f"the answer to {call.custom_id} is not usable: {found.detail.rstrip('.')}; asked again")
        if found.kind == "unstructured":
            detail = f"The answer does not fit the schema, and neither did the one after a hint: {found.detail}"
            found = ModelFailed("unstructured", detail, found.text)
        self.say(f"{asked.custom_id}: {found.detail}")
        return found

    async def _settle(self, call: ModelCall) -> ModelCalled | None:
        """The final entry of a call in the journal, after all its attempts; None where the answer comes later."""
        if (known := self.ledger.known(call.request_id)) is not None:
            return known
        model = self._model_for(call)
        # The known method comes first.
        methods = sorted(METHODS, key=lambda method: method != self._methods.get(model))
        if self._settings.model_method != "auto":
            methods = [self._settings.model_method]
        for method in methods:
            question = Question(self, call, model, method, self._settings.model_retries if self._live else 0)
            async with self._slots:
                await self._run(question)
            if not question.rejected or method == methods[-1]:
                break
            question.close(final=False)
        outcome = question.outcome
        if outcome is None:
            return None
        if isinstance(outcome, dict):
            if self._live and len(methods) > 1 and self._methods.get(model) != question.method:
                self._methods[model] = question.method
                self._journal.append(ModelMethodFound(model=model, method=question.method), call.stage)
            if question.note:
                self.say(question.note)
        elif question.rejected:
            tried = f"The server takes no request by --model-method {', '.join(methods)}"
            question.outcome = ModelFailed("server_error", f"{tried}: {outcome.detail}")
        elif self._live and outcome.kind == "unauthorised":
            self._closed = outcome
        return question.close(final=True)

    async def _run(self, question: Question) -> None:
        """Has a question answered, or fail, within the time limit."""
        left = self._seconds_left()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                await self._source(question)
        except TimeoutError:
            before = question.outcome.detail if isinstance(question.outcome, ModelFailed) else "No answer had come."
            question.end(ModelFailed("out_of_time", f"{before} The time limit is reached."), served=True)

    def _model_for(self, call: ModelCall) -> str:
        recorded = self._files.model_of(call.request_id) if isinstance(self._files, ReplayModels) else None
        return recorded or self._settings.name_for(call.role)


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop in which calls wait, in a thread of its own: the thread that asks stays open to interruptions, may have
    a loop itself (a notebook), and connections outlive a question. A daemon: no server keeps the process alive."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="models", daemon=True).start()
    return loop
