"""Requests and answers as lines of JSON, in the formats of OpenAI's batch API.

A request: {"custom_id", "method", "url", "body"}; an answer: {"id", "custom_id", "response": {"status_code",
"request_id", "body"}, "error"} (https://platform.openai.com/docs/guides/batch). `vllm run-batch` reads and writes the
same, but for failures: it leaves response.body out and puts the server's error, whole, under "error".

The transport of air-gapped nodes: requests go into one file, answers come back in another, in their own time.
The recording of a run: its requests and answers as files, from which `--model replay:DIR` repeats them.
The transport of a replay: answers come from a recording, offline.
Models by files: requests and answers in the formats of OpenAI's batch API, for nodes without a network (`batch`),
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock

from tunesmith.graph.models.calls import FailureKind, Waiting
from tunesmith.graph.models.chat import Completion, Failure, Pending, Request, call_id_of, check_completion
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


class BatchTransport:
    """resume: the command that goes on with the run."""

    kind: Literal["live", "batch", "replay"] = "batch"

    def __init__(self, folder: Path, resume: str) -> None:
        self._requests, self._file, self._resume = folder / REQUESTS, folder / ANSWERS, resume
        self._answers = read_answers(self._file) if self._file.exists() else {}
        if self._requests.exists():
            self._write(())

    async def send(self, request: Request) -> Completion | Failure | Pending:
        return self._answers.get(request.custom_id, Pending())

    def hold(self, pending: Sequence[Request]) -> Waiting:
        self._write(pending)
        count = len(pending)
        known = {custom_id.partition("@")[0] for custom_id in self._answers}
        stale = sum(request.custom_id.partition("@")[0] in known for request in pending)
        others = f" ({stale} answer(s) there now are to another wording of the same question)" if stale else ""
        return Waiting(
            f"{count} request{'s wait for their answers' if count > 1 else ' waits for its answer'}. "
            f"Answer {self._requests} (OpenAI's batch API, `vllm run-batch`, or by hand), put the answers into "
            f"{self._file}{others}, then go on with: {self._resume}",
            self._requests,
        )

    def _write(self, pending: Sequence[Request]) -> None:
        """Adds `pending` to the file, and takes what is answered out of it, while no other run changes it."""
        try:
            with held(self._requests):
                known = read_requests(self._requests) if self._requests.exists() else {}
                wanted = known | {request.custom_id: request for request in pending}
                lines = [request_line(request) for name, request in wanted.items() if name not in self._answers]
                write_lines(self._requests, lines)
        except OSError as error:
            raise BatchFileError(
                f"{self._requests} cannot be written ({error.strerror}); choose another folder for --model batch:DIR."
            ) from error


class Recording:
    """requests.jsonl and answers.jsonl in `folder`; a request's outcome is the last it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Request, Completion | Failure]] = {}

    def know(self, request: Request, outcome: Completion | Failure) -> None:
        """Takes the end of a request that the journal has, for `write`."""
        self._known[request.custom_id] = request, outcome

    def write(self) -> None:
        """Writes all that is known."""
        if self._known:
            write_lines(self._folder / REQUESTS, [request_line(one) for one, _ in self._known.values() if one.body])
            answers = [answer_line(name, outcome) for name, (_, outcome) in self._known.items()]
            write_lines(self._folder / ANSWERS, answers)

    def add(self, request: Request, outcome: Completion | Failure) -> None:
        """Records the end of a request; of two for one request the later counts, as in any such file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if request.custom_id not in self._known:
            self._append(REQUESTS, request_line(request))
        self._append(ANSWERS, answer_line(request.custom_id, outcome))
        self._known[request.custom_id] = request, outcome

    def _append(self, name: str, line: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


SHOWN = 70
"""Characters of a line that differs."""


class ReplayError(TunesmithError):
    """The recording lacks what the run asks for."""


class NotRecorded(ReplayError):
    """The run asks for more than was recorded, such as another round."""


class ReplayTransport:
    """folder: with requests.jsonl and answers.jsonl, or a run's with its transcripts/."""

    kind: Literal["live", "batch", "replay"] = "replay"

    def __init__(self, folder: Path, *, exact: bool) -> None:
        if not (folder / ANSWERS).exists() and (folder / "transcripts" / ANSWERS).exists():
            folder = folder / "transcripts"
        if not (folder / ANSWERS).exists():
            raise ReplayError(
                f"--model replay: {folder} has no recording ({ANSWERS}); give a run's folder, or one "
                "with its transcripts."
            )
        self.folder, self._exact = folder, exact
        self._answers = read_answers(folder / ANSWERS)
        self._requests = read_requests(folder / REQUESTS) if (folder / REQUESTS).exists() else {}
        # Of several answers under one name (a batch folder may hold those of several runs) the last counts.
        self._by_name = {call_id_of(custom_id): custom_id for custom_id in self._answers}

    def model_of(self, custom_id: str) -> str | None:
        """The name of the model that was asked; of the one that answered where the request is not kept."""
        recorded = self._recorded(custom_id) or ""
        for kept in (self._requests.get(recorded), self._answers.get(recorded)):
            if isinstance(kept, Request | Completion) and isinstance(kept.body.get("model"), str):
                return str(kept.body["model"])
        return None

    async def send(self, request: Request) -> Completion | Failure:
        recorded = self._recorded(request.custom_id)
        name = call_id_of(request.custom_id)
        if recorded is None:
            names = ", ".join(self._by_name) or "nothing"
            raise NotRecorded(f"The recording in {self.folder} has no answer to {name}; it has: {names}.")
        outcome = self._answers[recorded]
        if recorded == request.custom_id:
            return outcome
        where = _difference(self._requests.get(recorded), request.body)
        digests = f"{recorded.rpartition('@')[2]} recorded, {request.custom_id.rpartition('@')[2]} asked"
        difference = f"{name} was recorded with another prompt ({digests}): {where}"
        if self._exact:
            raise ReplayError(f"{difference}. Leave --replay-exact out to take its answer all the same.")
        return Completion(outcome.body, note=difference) if isinstance(outcome, Completion) else outcome

    def hold(self, pending: Sequence[Request]) -> Waiting:
        raise AssertionError("a recording answers or does not")

    def _recorded(self, custom_id: str) -> str | None:
        return custom_id if custom_id in self._answers else self._by_name.get(call_id_of(custom_id))


def _difference(recorded: Request | None, body: Mapping[str, Any]) -> str:
    """Where two prompts differ first."""
    if recorded is None:
        return "the recording holds no request of this name to compare with"
    pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]] = zip_longest(
        recorded.body["messages"], body["messages"], fillvalue={}
    )
    for number, (old, new) in enumerate(pairs, 1):
        if old.get("role") != new.get("role"):
            return f"message {number} is of {old.get('role', 'nobody')} there, of {new.get('role', 'nobody')} here"
        lines = zip_longest(str(old["content"]).splitlines(), str(new["content"]).splitlines(), fillvalue="")
        for place, (was, now) in enumerate(lines, 1):
            if was != now:
                return f"message {number} ({new['role']}), line {place}: '{was[:SHOWN]}' there, '{now[:SHOWN]}' here"
    return "the messages are the same, the schema of the answer is not"
