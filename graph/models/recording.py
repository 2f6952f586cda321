"""The recording of a run: its requests and answers as files, from which `--model replay:DIR` repeats them.

The files are made of the journal, which is the truth: they are rewritten when a run is opened, so that a kill between
an entry there and a line here loses nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tunesmith.graph.journal.events import ModelAsked, ModelCalled
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.batchfile import ANSWERS, REQUESTS, answer_line, request_line, write_lines
from tunesmith.graph.models.calls import FailureKind
from tunesmith.graph.models.transport import Completion, Failure, Request


class Recording:
    """transcripts/requests.jsonl and transcripts/answers.jsonl; a request's outcome is the last it had."""

    def __init__(self, folder: Path, journal: Store) -> None:
        self._folder = folder
        bodies: dict[str, Request] = {}
        outcomes: dict[str, Completion | Failure] = {}
        for event in RunLog(journal).model_calls():
            if event.body:
                bodies[event.id] = Request(event.id, event.body)
            if not isinstance(event, ModelAsked):
                outcomes[event.id] = recorded_outcome(event)
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


def recorded_outcome(event: ModelCalled) -> Completion | Failure:
    """How an attempt ended, as the journal has it."""
    if event.answer is not None:
        return Completion(event.answer, event.note)
    return Failure(cast(FailureKind, event.status), event.detail)
