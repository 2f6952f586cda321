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
from contextlib import suppress
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

Outcome = dict[str, Any] | ModelFailed
"""Of a request: a chat completion, or a failure."""


class BatchFileError(TunesmithError):
    """A file of requests or answers cannot be read."""


def write_requests(path: Path, bodies: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the file by requests with these bodies, by custom_id."""
    _write(path, [{"custom_id": name, "method": "POST", "url": URL, "body": body} for name, body in bodies.items()])


def write_answers(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Replaces the file by answers, by custom_id; a failure's kind stands where the batch API has the error's code."""
    lines = []
    for name, outcome in outcomes.items():
        response = error = None
        if isinstance(outcome, ModelFailed):
            error = {"code": outcome.kind, "message": outcome.detail}
        else:
            response = {"status_code": 200, "request_id": "", "body": outcome}
        lines.append({"id": f"tunesmith-{name}", "custom_id": name, "response": response, "error": error})
    _write(path, lines)


def write_recording(folder: Path, bodies: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]) -> None:
    """Replaces the recording of a run: its requests and their last outcomes, by custom_id."""
    write_requests(folder / REQUESTS, {name: bodies[name] for name in outcomes if name in bodies})
    write_answers(folder / ANSWERS, outcomes)


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """At once: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
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
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise BatchFileError(f"{path} cannot be read ({error.strerror}).") from error
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
    response, error = line.get("response") or {}, line.get("error")
    if not isinstance(response, dict):
        raise BatchFileError(f"{place}: response must be an object with status_code and body: {REMEDY}.")
    if error is None and not response:
        raise BatchFileError(f"{place}: it has neither a response nor an error: {REMEDY}.")
    code, body = response.get("status_code", 200), response.get("body")
    if error is not None or code != 200:
        # OpenAI puts an error of the endpoint into the body; vLLM puts it under "error", as the endpoint sent it.
        return _failure(body if error is None else error, code)
    if (wrong := completion_error(body)) is not None:
        raise BatchFileError(f"{place}: response.body is not a chat completion ({wrong}): {REMEDY}.")
    assert isinstance(body, dict)
    return body


def _failure(error: Any, status: Any) -> ModelFailed:
    inner = error.get("error", error) if isinstance(error, Mapping) else error
    about: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
    code, reason = about.get("code") or status, str(about.get("message") or "no reason is given").rstrip(".")
    for known in get_args(FailureKind):
        if code == known:
            return ModelFailed(known, f"{reason}.")
    kinds: dict[str, FailureKind] = {"401": "unauthorised", "403": "unauthorised", "429": "rate_limited"}
    kind = kinds.get(str(code)) or kinds.get(str(status), "server_error")
    return ModelFailed(kind, f"The batch has an error in place of an answer ({code}): {reason}.")


class NoAnswer(Exception):
    """The question has ended, or is pending."""


class FileChatModel(BaseChatModel):
    """A chat model without a server. question: the one that is asked; fields: further fields of its request's body;
    look_up: from request id and body to the outcome, None where it is pending, and a note on its origin."""

    question: Any
    fields: dict[str, Any]
    look_up: Callable[[str, dict[str, Any]], tuple[Outcome | None, str]]

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
        return self.bind(
            tools=[{"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}],
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
        asked = {"model": self.question.model, "messages": convert_to_openai_messages(messages)}
        body = asked | kwargs | self.fields
        if not self.question.begin_now(body):
            raise NoAnswer
        outcome, note = self.look_up(self.question.call.request_id, body)
        if isinstance(outcome, ModelFailed):
            self.question.fail(outcome.kind, outcome.detail)
        if not isinstance(outcome, dict):
            raise NoAnswer
        self.question.answer(outcome, note)
        message = AIMessage(Completion.model_validate(outcome).text)
        return ChatResult(generations=[ChatGeneration(message=message)])


class BatchModels:
    """Models that wait for a file of answers in `folder`. resume: the command that goes on with the run; fields:
    further fields of each request's body."""

    def __init__(self, folder: Path, resume: str, fields: dict[str, Any]) -> None:
        self._requests, self._file, self._resume, self._fields = folder / REQUESTS, folder / ANSWERS, resume, fields
        self._answers = read_answers(self._file) if self._file.exists() else {}
        if self._requests.exists():
            self._write({})

    async def answer(self, question: Question) -> None:
        """Has a question answered, where the file of answers has it."""
        chat = FileChatModel(
            question=question, fields=self._fields, look_up=lambda name, body: (self._answers.get(name), "")
        )
        with suppress(NoAnswer):
            await question.ask(chat)

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

    def _write(self, pending: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds `pending` to the file, and takes answered requests out of it, while no other run changes it."""
        try:
            self._requests.parent.mkdir(parents=True, exist_ok=True)
            # The lock is of a file beside it: the file itself is another one each time it is replaced.
            with FileLock(self._requests.with_name(f".{self._requests.name}.lock")):
                wanted = {**read_requests(self._requests), **pending}
                write_requests(
                    self._requests, {name: body for name, body in wanted.items() if name not in self._answers}
                )
        except OSError as error:
            raise BatchFileError(
                f"{self._requests} cannot be written ({error.strerror}); choose another folder for --model batch:DIR."
            ) from error


MAX_SHOWN = 70
"""Characters of a line that differs, in a note."""


class ReplayError(TunesmithError):
    """The recording lacks what the run asks for."""


class NotRecorded(ReplayError):
    """The run asks for more than was recorded, such as another round."""


class ReplayModels:
    """Models that repeat a recording. folder: with requests.jsonl and answers.jsonl, or a run's with its transcripts/;
    exact: an answer to another prompt is an error, not a note; fields: further fields of each request's body."""

    def __init__(self, folder: Path, *, exact: bool, fields: dict[str, Any]) -> None:
        if not (folder / ANSWERS).exists() and (folder / "transcripts" / ANSWERS).exists():
            folder = folder / "transcripts"
        if not (folder / ANSWERS).exists():
            raise ReplayError(
                f"--model replay: {folder} has no recording ({ANSWERS}); give a run's folder, or one "
                "with its transcripts."
            )
        self._folder, self._exact, self._fields = folder, exact, fields
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

    async def answer(self, question: Question) -> None:
        """Has a question answered from the recording. Raises `ReplayError` where it lacks the answer."""
        with suppress(NoAnswer):
            await question.ask(FileChatModel(question=question, fields=self._fields, look_up=self._look_up))

    def _look_up(self, request_id: str, body: dict[str, Any]) -> tuple[Outcome, str]:
        recorded, name = self._recorded(request_id), _call_name(request_id)
        if recorded is None:
            names = ", ".join(self._by_name) or "nothing"
            raise NotRecorded(f"The recording in {self._folder} has no answer to {name}; it has: {names}.")
        outcome = self._answers[recorded]
        if recorded == request_id:
            return outcome, ""
        difference = f"{name} was recorded with another prompt: {_difference(self._requests.get(recorded), body)}"
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
    for (place, was), (there, now) in zip_longest(_placed(recorded), _placed(body), fillvalue=("", "nothing")):
        if (place, was) != (there, now):
            return f"{there or place}: '{was[:MAX_SHOWN]}' there, '{now[:MAX_SHOWN]}' here"
    return "the messages are the same, the schema of the answer is not"


def _placed(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of a prompt, each behind its place."""
    return [
        (f"message {number} ({message.get('role')}), line {line}", text)
        for number, message in enumerate(body["messages"], 1)
        for line, text in enumerate(str(message.get("content")).splitlines(), 1)
    ]
