"""The transport of air-gapped nodes: requests go into one file, answers come back in another, in their own time.

DIR/requests.jsonl holds what is not answered yet; DIR/answers.jsonl is read when a run begins or is resumed. Answers
may be appended to the file or replace it: the journal keeps those that were read. Several runs may share a DIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.models.files.batchfile import (
    ANSWERS,
    REQUESTS,
    BatchFileError,
    held,
    read_answers,
    read_requests,
    request_line,
    write_lines,
)
from tunesmith.graph.models.transport import Completion, Failure, Pending, Request


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
