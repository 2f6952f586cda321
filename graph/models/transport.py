"""The seam below the models: one request out; a completion, a failure, or nothing yet, back.

Every transport speaks OpenAI's chat completions: what is sent live, written to a batch file and recorded for a replay
is the same body, composed by LangChain (`chat`). A transport makes one attempt; retries, caps and journal are above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from tunesmith.graph.models.calls import FailureKind, Waiting


@dataclass(frozen=True, slots=True)
class Request:
    """custom_id: the call's, "@", its digest; body: a request body of chat completions."""

    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """body: a chat completion that `check_completion` accepts; note: what the user should know about its origin."""

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

    async def send(self, request: Request) -> Completion | Failure | Pending:
        """One attempt; several may be under way at once where kind is "live"."""
        ...

    def hold(self, pending: Sequence[Request]) -> Waiting:
        """Writes down what is pending, and says what to do about it."""
        ...


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Function(_Part):
    name: str = ""
    arguments: str


class _ToolCall(_Part):
    function: _Function


class _Message(_Part):
    role: Literal["assistant"] = "assistant"
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(_Part):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Part):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None
    prompt_tokens_details: dict[str, NonNegativeInt | None] | None = None
    completion_tokens_details: dict[str, NonNegativeInt | None] | None = None


class _Completion(_Part):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
    model: str | None = None


def check_completion(body: object) -> str | None:
    """What keeps `body` from being a chat completion whose answer can be read; None if nothing does."""
    try:
        _Completion.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    return None


def identify(call_id: str, digest: str) -> str:
    """The custom_id of a request: an answer to another prompt can never pass for one to this."""
    return f"{call_id}@{digest}"


def call_id_of(custom_id: str) -> str:
    """The part of a request's custom_id that names the call."""
    return custom_id.rpartition("@")[0] or custom_id
