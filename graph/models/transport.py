"""The seam below the models: one request out; a completion, a failure, or nothing yet, back.

Every transport speaks the same language, OpenAI's chat completions: what is sent live, written to a batch file and
recorded for a replay is the same body. A transport makes one attempt; retries, caps and the journal are above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tunesmith.graph.models.calls import FailureKind, Waiting


@dataclass(frozen=True, slots=True)
class Request:
    """custom_id: the call's, "@", its digest; body: a request body of chat completions."""

    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """body: a chat completion with at least one choice; note: what the user should know about its origin."""

    body: dict[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """transient: trying again may help; retry_after: seconds the server asks to wait; rejected: the server does not
    take a request of this form (400, 422), so that another form may help; served: the server may have worked on it,
    and may count it."""

    kind: FailureKind
    detail: str
    transient: bool = False
    retry_after: float | None = None
    rejected: bool = False
    served: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer comes later, from outside."""


class Transport(Protocol):
    kind: Literal["live", "batch", "replay"]

    def send(self, request: Request) -> Completion | Failure | Pending:
        """One attempt. Called from several threads where kind is "live", from one otherwise."""
        ...

    def hold(self, pending: Sequence[Request]) -> Waiting:
        """Writes down what is pending, and says what to do about it."""
        ...


def identify(call_id: str, digest: str) -> str:
    """The custom_id of a request: an answer to another prompt can never pass for one to this."""
    return f"{call_id}@{digest}"


def call_id_of(custom_id: str) -> str:
    """The part of a request's custom_id that names the call."""
    return custom_id.rpartition("@")[0] or custom_id
