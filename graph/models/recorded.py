"""Models by files: batches for nodes without a network, and recordings of runs, from which they are repeated.

Requests and answers are lines of JSON in the formats of OpenAI's batch API. A request: {"custom_id", "method", "url",
"body"}; an answer: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}
(https://platform.openai.com/docs/guides/batch). `vllm run-batch` reads and writes the same, but for failures: it leaves
response.body out and puts the server's error, whole, under "error".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from filelock import FileLock
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from tunesmith.graph.models.calls import Completion, FailureKind, ModelFailed, Waiting, completion_error
from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from tunesmith.graph.models.client import Question

URL = "/v1/chat/completions"
REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
REMEDY = "fix the line, or take it out"
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)

Outcome = dict[str, Any] | ModelFailed
"""Of a request: a chat completion, or a failure."""


class BatchFileError(TunesmithError):
    """A file of requests or answers cannot be read."""


def request_line(request_id: str, body: Mapping[str, Any]) -> str:
    return json.dumps({"custom_id": request_id, "method": "POST", "url": URL, "body": body})


def answer_line(request_id: str, outcome: Outcome) -> str:
    """The line for an outcome; a failure's kind stands where the batch API has the error's code."""
    response = error = None
    if isinstance(outcome, ModelFailed):
        error = {"code": outcome.kind, "message": outcome.detail}
    else:
        response = {"status_code": 200, "request_id": "", "body": outcome}
    return json.dumps({"id": f"tunesmith-{request_id}", "custom_id": request_id, "response": response, "error": error})


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces the file at once: a reader sees the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_requests(path: Path) -> dict[str, dict[str, Any]]:
    """Bodies by custom_id, in the file's order; none where the file does not exist."""
    bodies = {}
    for place, line in _lines(path) if path.exists() else ():
        if not isinstance(line.get("body"), dict) or not isinstance(line["body"].get("messages"), list):
            raise BatchFileError(f"{place}: a request needs a body with messages: {REMEDY}.")
        bodies[line["custom_id"]] = line["body"]
    return bodies


def read_answers(path: Path) -> dict[str, Outcome]:
    """By custom_id; of two answers to one request the later counts."""
    return {line["custom_id"]: _outcome(place, line) for place, line in _lines(path)}


def _lines(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Place and object of each line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BatchFileError(f"{path} cannot be read ({error.strerror}).") from error
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        place = f"{path}, line {number}"
        try:
            line = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            cut = number == len(lines)
            why = "the line is cut short: copy the file again" if cut else f"it is not valid JSON ({error}): {REMEDY}"
            raise BatchFileError(f"{place}: {why}.") from error
        if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
            raise BatchFileError(f"{place}: it is not a JSON object with a custom_id: {REMEDY}.")
        yield place, line


def _outcome(place: str, line: Mapping[str, Any]) -> Outcome:
    response, error = line.get("response"), line.get("error")
    if response is not None and not isinstance(response, Mapping):
        raise BatchFileError(f"{place}: response must be an object with status_code and body: {REMEDY}.")
    code = response.get("status_code", 200) if response else None
    body = response.get("body") if response else None
    if error is None and code == 200:
        if not isinstance(body, dict) or (wrong := completion_error(body)) is not None:
            reason = wrong if isinstance(body, dict) else "it is not an object"
            raise BatchFileError(f"{place}: response.body is not a chat completion ({reason}): {REMEDY}.")
        return body
    if error is None and isinstance(body, Mapping):
        error = body  # OpenAI puts what the endpoint answered into the body
    if error is None and code is None:
        raise BatchFileError(f"{place}: it has neither a response nor an error: {REMEDY}.")
    return _failure(error, code)


def _failure(error: Any, code: Any) -> ModelFailed:
    inner = error.get("error", error) if isinstance(error, Mapping) else error
    about: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
    named, reason = about.get("code"), str(about.get("message") or "no reason is given").rstrip(".")
    code = named if isinstance(named, int) else code
    for known in KINDS:
        if named == known:
            return ModelFailed(known, f"{reason}.")
    kind: FailureKind = "server_error"
    if code in (401, 403):
        kind = "unauthorised"
    elif code == 429:
        kind = "rate_limited"
    label = named or code
    return ModelFailed(kind, f"The batch has an error in place of an answer{f' ({label})' if label else ''}: {reason}.")


class NoAnswer(Exception):
    """The question has ended, or is pending."""


class FileChatModel(BaseChatModel):
    """A chat model without a server. fields: further fields of each request's body; exchange: from the body to a chat
    completion; raises `NoAnswer`."""

    model_name: str
    fields: dict[str, Any]
    exchange: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "files"

    def with_structured_output(
        self,
        schema: Any,
        *,
        include_raw: bool = False,
        method: str = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """Answers with messages; the request asks in the way of ChatOpenAI."""
        if method == "json_mode":
            return self.bind(response_format={"type": "json_object"})
        name = schema["title"]
        if method == "json_schema":
            form = {"name": name, "schema": schema, "strict": strict}
            return self.bind(response_format={"type": "json_schema", "json_schema": form})
        function = {"name": name, "parameters": schema, "strict": strict}
        return self.bind(
            tools=[{"type": "function", "function": function}],
            tool_choice={"type": "function", "function": {"name": name}},
            parallel_tool_calls=False,
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked = {"model": self.model_name, "messages": convert_to_openai_messages(messages)}
        completion = self.exchange(asked | kwargs | self.fields)
        message = AIMessage(Completion.model_validate(completion).text)
        return ChatResult(generations=[ChatGeneration(message=message)])


class _Files:
    """Chat models whose answers are looked up. fields: further fields of each request's body."""

    errors: tuple[type[Exception], ...] = (NoAnswer,)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def chat(self, question: Question) -> FileChatModel:
        """A chat model for one question."""

        def exchange(body: dict[str, Any]) -> dict[str, Any]:
            if not question.begin_now(body):
                raise NoAnswer
            outcome, note = self._look_up(question.call.request_id, body)
            if isinstance(outcome, ModelFailed):
                question.fail(outcome.kind, outcome.detail)
            elif outcome is not None:
                question.answer(outcome, note)
                return outcome
            raise NoAnswer

        return FileChatModel(model_name=question.model, fields=self._fields, exchange=exchange)

    def _look_up(self, request_id: str, body: dict[str, Any]) -> tuple[Outcome | None, str]:
        """The outcome of a request, None where it is pending, and a note on its origin."""
        raise NotImplementedError


class BatchModels(_Files):
    """Chat models that wait for a file of answers in `folder`. resume: the command that goes on with the run."""

    def __init__(self, folder: Path, resume: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self._requests, self._file, self._resume = folder / REQUESTS, folder / ANSWERS, resume
        self._answers = read_answers(self._file) if self._file.exists() else {}
        if self._requests.exists():
            self._write({})

    def hold(self, pending: Mapping[str, Mapping[str, Any]]) -> Waiting:
        """Adds the bodies of pending requests, by custom_id, to the file of requests."""
        self._write(pending)
        count = len(pending)
        known = {request_id.partition("@")[0] for request_id in self._answers}
        stale = sum(request_id.partition("@")[0] in known for request_id in pending)
        others = f" ({stale} answer(s) there now are to another wording of the same question)" if stale else ""
        return Waiting(
            f"{count} request{'s wait for their answers' if count > 1 else ' waits for its answer'}. "
            f"Answer {self._requests} (OpenAI's batch API, `vllm run-batch`, or by hand), put the answers into "
            f"{self._file}{others}, then go on with: {self._resume}",
            self._requests,
        )

    def _look_up(self, request_id: str, body: dict[str, Any]) -> tuple[Outcome | None, str]:
        return self._answers.get(request_id), ""

    def _write(self, pending: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds `pending` to the file, and takes answered requests out of it, while no other run changes it."""
        try:
            self._requests.parent.mkdir(parents=True, exist_ok=True)
            # The lock is of a file beside it: the file itself is another one each time it is replaced.
            with FileLock(self._requests.with_name(f".{self._requests.name}.lock")):
                wanted = {**read_requests(self._requests), **pending}
                lines = [request_line(name, body) for name, body in wanted.items() if name not in self._answers]
                write_lines(self._requests, lines)
        except OSError as error:
            raise BatchFileError(
                f"{self._requests} cannot be written ({error.strerror}); choose another folder for --model batch:DIR."
            ) from error


def write_recording(folder: Path, bodies: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]) -> None:
    """Replaces the recording of a run: its requests and their last outcomes, by custom_id."""
    write_lines(folder / REQUESTS, [request_line(name, bodies[name]) for name in outcomes if name in bodies])
    write_lines(folder / ANSWERS, [answer_line(*item) for item in outcomes.items()])


MAX_SHOWN = 70
"""Characters of a line that differs, in a note."""


class ReplayError(TunesmithError):
    """The recording lacks what the run asks for."""


class NotRecorded(ReplayError):
    """The run asks for more than was recorded, such as another round."""


class ReplayModels(_Files):
    """Chat models that repeat a recording. folder: with requests.jsonl and answers.jsonl, or a run's with its
    transcripts/; exact: an answer to another prompt is an error, not a note."""

    def __init__(self, folder: Path, *, exact: bool, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        if not (folder / ANSWERS).exists() and (folder / "transcripts" / ANSWERS).exists():
            folder = folder / "transcripts"
        if not (folder / ANSWERS).exists():
            raise ReplayError(
                f"--model replay: {folder} has no recording ({ANSWERS}); give a run's folder, or one "
                "with its transcripts."
            )
        self._folder, self._exact = folder, exact
        self._answers, self._requests = read_answers(folder / ANSWERS), read_requests(folder / REQUESTS)
        # Of several answers under one name (a batch folder may hold those of several runs) the last counts.
        self._by_name = {_call_name(request_id): request_id for request_id in self._answers}

    def model_of(self, request_id: str) -> str | None:
        """The name of the model that was asked; of the model that answered where the request is not kept."""
        recorded = self._recorded(request_id) or ""
        for body in (self._requests.get(recorded), self._answers.get(recorded)):
            if isinstance(body, dict) and isinstance(body.get("model"), str):
                return str(body["model"])
        return None

    def _look_up(self, request_id: str, body: dict[str, Any]) -> tuple[Outcome | None, str]:
        recorded, name = self._recorded(request_id), _call_name(request_id)
        if recorded is None:
            names = ", ".join(self._by_name) or "nothing"
            raise NotRecorded(f"The recording in {self._folder} has no answer to {name}; it has: {names}.")
        outcome = self._answers[recorded]
        if recorded == request_id:
            return outcome, ""
        where = _difference(self._requests.get(recorded), body)
        digests = f"{recorded.rpartition('@')[2]} recorded, {request_id.rpartition('@')[2]} asked"
        difference = f"{name} was recorded with another prompt ({digests}): {where}"
        if self._exact:
            raise ReplayError(f"{difference}. Leave --replay-exact out to take its answer all the same.")
        return outcome, difference

    def _recorded(self, request_id: str) -> str | None:
        return request_id if request_id in self._answers else self._by_name.get(_call_name(request_id))


def _call_name(request_id: str) -> str:
    return request_id.rpartition("@")[0] or request_id


def _difference(recorded: Mapping[str, Any] | None, body: Mapping[str, Any]) -> str:
    """Where two prompts differ first."""
    if recorded is None:
        return "the recording holds no request of this name to compare with"
    pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]] = zip_longest(
        recorded["messages"], body["messages"], fillvalue={}
    )
    for number, (old, new) in enumerate(pairs, 1):
        if old.get("role") != new.get("role"):
            return f"message {number} is of {old.get('role', 'nobody')} there, of {new.get('role', 'nobody')} here"
        lines = zip_longest(str(old["content"]).splitlines(), str(new["content"]).splitlines(), fillvalue="")
        for place, (was, now) in enumerate(lines, 1):
            if was != now:
                was, now = was[:MAX_SHOWN], now[:MAX_SHOWN]
                return f"message {number} ({new['role']}), line {place}: '{was}' there, '{now}' here"
    return "the messages are the same, the schema of the answer is not"
