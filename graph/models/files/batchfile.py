"""Requests and answers as lines of JSON, in the formats of OpenAI's batch API.

A request: {"custom_id", "method", "url", "body"}; an answer: {"id", "custom_id", "response": {"status_code",
"request_id", "body"}, "error"} (https://platform.openai.com/docs/guides/batch). `vllm run-batch` reads and writes the
same, but for failures: it leaves response.body out and puts the server's error, whole, under "error".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock

from tunesmith.graph.models.calls import FailureKind
from tunesmith.graph.models.transport import Completion, Failure, Request, check_completion
from tunesmith.hw.errors import TunesmithError

URL = "/v1/chat/completions"
REQUESTS, ANSWERS = "requests.jsonl", "answers.jsonl"
REMEDY = "fix the line, or take it out"
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


class BatchFileError(TunesmithError):
    """A file of requests or answers cannot be read."""


def request_line(request: Request) -> str:
    return json.dumps({"custom_id": request.custom_id, "method": "POST", "url": URL, "body": request.body})


def answer_line(custom_id: str, outcome: Completion | Failure) -> str:
    """The line for an outcome; a failure's kind stands where the batch API has the error's code."""
    response = error = None
    if isinstance(outcome, Completion):
        response = {"status_code": 200, "request_id": "", "body": outcome.body}
    else:
        error = {"code": outcome.kind, "message": outcome.detail}
    return json.dumps({"id": f"tunesmith-{custom_id}", "custom_id": custom_id, "response": response, "error": error})


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lets one process at a time read and replace the file; others wait. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock is of a file beside it: the file itself is another one each time it is replaced.
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replaces the file at once: a reader sees the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_requests(path: Path) -> dict[str, Request]:
    """By custom_id, in the file's order."""
    found = {}
    for place, line in _lines(path):
        if not isinstance(line.get("body"), dict) or not isinstance(line["body"].get("messages"), list):
            raise BatchFileError(f"{place}: a request needs a body with messages: {REMEDY}.")
        found[line["custom_id"]] = Request(line["custom_id"], line["body"])
    return found


def read_answers(path: Path) -> dict[str, Completion | Failure]:
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


def _outcome(place: str, line: Mapping[str, Any]) -> Completion | Failure:
    response, error = line.get("response"), line.get("error")
    if response is not None and not isinstance(response, Mapping):
        raise BatchFileError(f"{place}: response must be an object with status_code and body: {REMEDY}.")
    code = response.get("status_code", 200) if response else None
    body = response.get("body") if response else None
    if error is None and code == 200:
        if not isinstance(body, dict) or (wrong := check_completion(body)) is not None:
            reason = wrong if isinstance(body, dict) else "it is not an object"
            raise BatchFileError(f"{place}: response.body is not a chat completion ({reason}): {REMEDY}.")
        return Completion(body)
    if error is None and isinstance(body, Mapping):
        error = body  # OpenAI puts what the endpoint answered into the body
    if error is None and code is None:
        raise BatchFileError(f"{place}: it has neither a response nor an error: {REMEDY}.")
    return _failure(error, code)


def _failure(error: Any, code: Any) -> Failure:
    inner = error.get("error", error) if isinstance(error, Mapping) else error
    about: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
    named, reason = about.get("code"), str(about.get("message") or "no reason is given").rstrip(".")
    code = named if isinstance(named, int) else code
    for known in KINDS:
        if named == known:
            return Failure(known, f"{reason}.")
    kind: FailureKind = "server_error"
    if code in (401, 403):
        kind = "unauthorised"
    elif code == 429:
        kind = "rate_limited"
    label = named or code
    return Failure(kind, f"The batch has an error in place of an answer{f' ({label})' if label else ''}: {reason}.")
