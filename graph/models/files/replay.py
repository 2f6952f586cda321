"""The transport of a replay: answers come from a recording, offline.

A call gets the answer to the same prompt, if the recording has it. Prompts hold measured times, which no second run
repeats; so a call gets, failing that, the answer that was given to the call of its name, and a note says where the
prompts differ. With `exact` such a call is an error, as is in any case a call that was never recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.models.files.batchfile import ANSWERS, REQUESTS, read_answers, read_requests
from tunesmith.graph.models.transport import Completion, Failure, Request, call_id_of
from tunesmith.hw.errors import TunesmithError

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
