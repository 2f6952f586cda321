"""The recording of a run: its requests and answers as files, from which `--model replay:DIR` repeats them.

The files are made of the journal, which is the truth: they are rewritten when a run is opened, so that a kill between
an entry there and a line here loses nothing.
"""

from __future__ import annotations

from pathlib import Path

from tunesmith.graph.models.files.batchfile import ANSWERS, REQUESTS, answer_line, request_line, write_lines
from tunesmith.graph.models.transport import Completion, Failure, Request


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
