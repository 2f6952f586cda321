"""The recording of a run: its requests and answers as files, from which `--model replay:DIR` repeats them.

The files are made of the journal, which is the truth: they are rewritten when a run is opened, so that a kill between
an entry there and a line here loses nothing.
"""

from __future__ import annotations

from pathlib import Path

from tunesmith.graph.journal.store import Event, Store
from tunesmith.graph.models.batchfile import ANSWERS, REQUESTS, answer_line, request_line, write_lines
from tunesmith.graph.models.transport import Completion, Failure, Request


class Recording:
    """transcripts/requests.jsonl and transcripts/answers.jsonl; a request's outcome is the last it had."""

    def __init__(self, folder: Path, journal: Store) -> None:
        self._folder = folder
        bodies: dict[str, Request] = {}
        outcomes: dict[str, Completion | Failure] = {}
        for event in journal.events():
            if event.kind == "model_asked" and event.data["body"]:
                bodies[event.data["id"]] = Request(event.data["id"], event.data["body"])
            elif event.kind == "model_call":
                if event.data["body"]:
                    bodies[event.data["id"]] = Request(event.data["id"], event.data["body"])
                outcomes[event.data["id"]] = recorded_outcome(event)
        self._written = set(outcomes)
        if outcomes:
            write_lines(folder / REQUESTS, [request_line(bodies[name]) for name in outcomes if name in bodies])
            write_lines(folder / ANSWERS, [answer_line(name, outcome) for name, outcome in outcomes.items()])

    def add(self, request: Request, outcome: Completion | Failure) -> None:
        """Records the end of a request; of two for one request the later counts, as in any such file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if request.custom_id not in self._written:
            self._append(REQUESTS, request_line(request))
        self._append(ANSWERS, answer_line(request.custom_id, outcome))
        self._written.add(request.custom_id)

    def _append(self, name: str, line: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def recorded_outcome(event: Event) -> Completion | Failure:
    """The outcome in a `model_call` event."""
    data = event.data
    if data["answer"] is not None:
        return Completion(data["answer"], data["note"])
    return Failure(data["status"], data["detail"])
