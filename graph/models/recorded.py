"""Answers in files: batches for nodes without a network, and recordings of runs, from which they are repeated.

Requests and answers are lines of JSON in the formats of OpenAI's batch API. A request: {"custom_id", "method", "url",
"body"}; an answer: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}
(https://platform.openai.com/docs/guides/batch). `vllm run-batch` reads and writes the same, but for failures: it leaves
response.body out and puts the server's error, whole, under "error".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from filelock import FileLock

from tunesmith.graph.models.calls import FailureKind, ModelFailed, Outcome, Waiting, completion_error
from tunesmith.hw.errors import TunesmithError, refusals

if TYPE_CHECKING:
    from tunesmith.graph.models.client import Question

REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
T = TypeVar("T")


class NotRecorded(TunesmithError):
    """The run asks for more than was recorded, such as another round."""


def write_recording(folder: Path, bodies: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome]) -> None:
    """Replaces a run's recording: requests and last outcomes by custom_id; a failure's kind is its code."""
    _write_requests(folder / REQUESTS, {name: bodies[name] for name in outcomes if name in bodies})
    lines = []
    for name, outcome in outcomes.items():
        response = error = None
        if isinstance(outcome, ModelFailed):
            error = {"code": outcome.kind, "message": outcome.detail}
        else:
            response = {"status_code": 200, "request_id": "", "body": outcome}
        lines.append({"id": f"tunesmith-{name}", "custom_id": name, "response": response, "error": error})
    _write(folder / ANSWERS, lines)


def _write_requests(path: Path, bodies: Mapping[str, Mapping[str, Any]]) -> None:
    common = {"method": "POST", "url": "/v1/chat/completions"}
    _write(path, [{"custom_id": name, **common, "body": body} for name, body in bodies.items()])


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file at once: a reader sees the old or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    scratch.replace(path)


def read_requests(path: Path) -> dict[str, dict[str, Any]]:
    """Bodies by custom_id, in the file's order; none where the file does not exist."""
    return _read(path, _body)


def read_answers(path: Path) -> dict[str, Outcome]:
    """Answers by custom_id; of two to one request the later counts; empty where the file does not exist."""
    return _read(path, _outcome)


def _read(path: Path, parse: Callable[[dict[str, Any]], T]) -> dict[str, T]:
    """Each line as `parse` reads it, by custom_id."""
    found: dict[str, T] = {}
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n") if path.exists() else []
    except OSError as error:
        raise TunesmithError(f"{path} cannot be read ({error.strerror}).") from error
    for number, raw in enumerate(lines, 1):
        try:
            if not raw.strip():
                continue
            line = json.loads(raw.decode("utf-8"))
            if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
                raise ValueError("it is not a JSON object with a custom_id")
            found[line["custom_id"]] = parse(line)
        except (ValueError, RecursionError) as error:
            why = "fix the line, take it out, or copy the file again"
            raise TunesmithError(f"{path}, line {number} cannot be used ({error}): {why}.") from error
    return found


def _body(line: dict[str, Any]) -> dict[str, Any]:
    if isinstance(found := line.get("body"), dict) and isinstance(found.get("messages"), list):
        return found
    raise ValueError("a request needs a body with messages")


def _outcome(line: Mapping[str, Any]) -> Outcome:
    response, error = line.get("response") or {}, line.get("error")
    if not isinstance(response, dict):
        raise ValueError("response must be an object with status_code and body")
    if error is None and not response:
        raise ValueError("it has neither a response nor an error")
    code, body = response.get("status_code", 200), response.get("body")
    if error is not None or code != 200:
        # OpenAI puts an error of the endpoint into the body; vLLM puts it under "error", as the endpoint sent it.
        return _failure(body if error is None else error, code)
    if (wrong := completion_error(body)) is not None:
        raise ValueError(f"response.body is not a chat completion: {wrong}")
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


class BatchModels:
    """A folder of requests, which waits for a file of answers. resume: the command that goes on with the run."""

    def __init__(self, folder: Path, resume: str) -> None:
        self._requests, self._file, self._resume = folder / REQUESTS, folder / ANSWERS, resume
        self._answers = read_answers(self._file)
        if self._requests.exists():
            self._write({})

    def find(self, question: Question) -> Outcome | None:
        """The outcome of a question; None where it is pending."""
        return self._answers.get(question.call.request_id)

    def hold(self, pending: Mapping[str, Mapping[str, Any]]) -> Waiting:
        """Adds the bodies of pending requests, by custom_id, to the file of requests."""
        self._write(pending)
        many = len(pending) > 1
        return Waiting(
            f"{len(pending)} request{'s wait for their answers' if many else ' waits for its answer'}. "
            f"Answer {self._requests} (OpenAI's batch API, `vllm run-batch`, or by hand), put the answers into "
            f"{self._file}, then go on with: {self._resume}",
            self._requests,
        )

    def _write(self, pending: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds `pending` to the file, and takes answered requests out of it, while no other run changes it."""
        with refusals(f"{self._requests} cannot be written", "choose another folder for --model batch:DIR"):
            self._requests.parent.mkdir(parents=True, exist_ok=True)
            # The lock is on a file beside it, as the file itself is replaced.
            with FileLock(self._requests.with_name(f".{self._requests.name}.lock")):
                wanted = {**read_requests(self._requests), **pending}
                unanswered = {name: body for name, body in wanted.items() if name not in self._answers}
                _write_requests(self._requests, unanswered)


class ReplayModels:
    """A recording to repeat. folder: a run's, or of the two files; exact: an answer to another prompt is an error."""

    def __init__(self, folder: Path, *, exact: bool) -> None:
        places = [place for place in (folder, folder / "transcripts") if (place / ANSWERS).exists()]
        if not places:
            raise TunesmithError(
                f"--model replay: {folder} has no recording ({ANSWERS}); give a run's folder, or one with its "
                "transcripts."
            )
        self._folder, self._exact = places[0], exact
        self._answers, self._requests = read_answers(places[0] / ANSWERS), read_requests(places[0] / REQUESTS)
        # A batch folder may hold the answers of several runs: the last one under a name counts.
        self._by_name = {_call_name(request_id): request_id for request_id in self._answers}

    def model_of(self, request_id: str) -> str | None:
        """The name of the model that was asked; of the model that answered where the request is not kept."""
        recorded = self._recorded(request_id) or ""
        for body in (self._requests.get(recorded), self._answers.get(recorded)):
            if isinstance(body, dict) and isinstance(body.get("model"), str):
                return str(body["model"])
        return None

    def find(self, question: Question) -> Outcome:
        """The recorded outcome of a question. Raises `TunesmithError` where there is none."""
        request_id = question.call.request_id
        recorded, name = self._recorded(request_id), _call_name(request_id)
        if recorded is None:
            names = ", ".join(self._by_name) or "nothing"
            raise NotRecorded(f"The recording in {self._folder} has no answer to {name}; it has: {names}.")
        if recorded != request_id:
            question.note = f"{name} was recorded with another prompt"
            if self._exact:
                raise TunesmithError(f"{question.note}; leave --replay-exact out to take its answer all the same.")
        return self._answers[recorded]

    def _recorded(self, request_id: str) -> str | None:
        return request_id if request_id in self._answers else self._by_name.get(_call_name(request_id))


def _call_name(request_id: str) -> str:
    return request_id.rpartition("@")[0] or request_id
