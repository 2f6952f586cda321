"""The seam between roles and models: what a role asks, and what it gets.

Pure: no network, no LangChain. A role makes `Call`s and hands them to the `Models` of its context, all that it can make
at once together; each comes back as a `Reply` whose value has passed the call's schema, or as a `ModelFailed`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from tunesmith.hw.errors import TunesmithError

FailureKind = Literal[
    "unauthorised",  # the server does not accept the key
    "rate_limited",  # 429 to the end of all retries
    "server_error",  # 5xx, or an answer that is not a chat completion
    "unreachable",  # no connection
    "timeout",
    "truncated",  # the answer ended at the token limit
    "refused",  # the model declined
    "unstructured",  # the answer does not fit the schema, nor does the one after a hint
    "capped",  # a cap on calls, tokens or cost does not allow the call
    "out_of_time",  # the run's time limit does not allow it, or no further try
]
HOPELESS: frozenset[FailureKind] = frozenset({"unauthorised", "capped", "out_of_time"})
"""After these no further call of the session is answered; after the others the next one may be."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@functools.cache
def _schema_of(answer: type[BaseModel]) -> dict[str, Any]:
    """Kept, as pydantic takes 2 ms to write one, and the digest of a call is asked for many times. For reading only."""
    return answer.model_json_schema()


@dataclass(frozen=True, slots=True)
class Call:
    """One question. role: who asks; stage: in which round, such as "round-2"; name: which question of that role in that
    stage, such as "template-1-repair-2", so that the three identify the call in a run; schema: what the answer is."""

    role: str
    stage: str
    name: str
    messages: tuple[Message, ...]
    schema: type[BaseModel]

    @property
    def custom_id(self) -> str:
        return f"{self.stage}.{self.role}.{self.name}"

    @property
    def digest(self) -> str:
        """Hash of all that the model gets to read: an answer fits a call only when this is the same."""
        content: Any = [[message.role, message.content] for message in self.messages]
        payload = json.dumps([content, self.schema.__name__, _schema_of(self.schema)], sort_keys=True)
        return hashlib.sha256(payload.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them, and their cost in US dollars (None where no price is known)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """value: an instance of the call's schema; text: the answer as the model wrote it; model: its name."""

    value: BaseModel
    text: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """No usable answer. detail: one sentence for the user; text: what the model wrote, if it wrote anything; a role may
    show it to the model in another call."""

    kind: FailureKind
    detail: str
    text: str = ""


class Waiting(TunesmithError):
    """The run waits for input from outside; `tunesmith resume` continues it. The message says what it waits for, where
    to put it, and how to continue (exit code 4). requests: the file of requests to answer, where it is that."""

    def __init__(self, message: str, requests: Path | None = None) -> None:
        super().__init__(message)
        self.requests = requests


class Models(Protocol):
    """The models of a run. An answer that is in the journal is never asked for, or paid, again."""

    def ask_all(self, calls: Sequence[Call]) -> list[Reply | ModelFailed]:
        """Answers in the order of `calls`. Where answers come later, by hand or by a batch service, it raises
        `Waiting` after all requests have been written down."""
        ...
