"""The seam between roles and models: what a role asks, and what it gets.

Pure: no network, no LangChain. A role makes `Call`s and hands them to the `Models` of its context, all that it can make
at once together; each comes back as a `Reply` whose value has passed the call's schema, or as a `ModelFailed`.

How the answer in a model's message is read: as a value of the call's schema, or what is wrong with it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ValidationError

from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage


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


MAX_ERRORS = 8
"""Of a wrong answer, shown to the model."""


@dataclass(frozen=True, slots=True)
class Valid:
    value: BaseModel
    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """An answer that does not fit the schema. why: what is wrong with it, for the model to read."""

    text: str
    why: str


def read_answer(message: AIMessage, schema: type[BaseModel]) -> Valid | Invalid | ModelFailed:
    """The answer in a message."""
    text = answer_text(message)
    refusal = message.additional_kwargs.get("refusal")
    ending = message.response_metadata.get("finish_reason")
    if refusal:
        return ModelFailed("refused", f"The model declined: {refusal}", str(refusal))
    if ending == "content_filter":
        return ModelFailed("refused", "The server's content filter stopped the answer.", text)
    if ending == "length":
        return ModelFailed("truncated", "The answer ended at the token limit; raise --answer-tokens.", text)
    return _validate(text, schema)


def answer_text(message: AIMessage) -> str:
    """What the model wrote: the arguments of its tool call, or its content."""
    if message.tool_calls:
        text = json.dumps(message.tool_calls[0]["args"], ensure_ascii=False)
    elif message.invalid_tool_calls:
        text = message.invalid_tool_calls[0]["args"] or ""
    else:
        text = message.text
    # Half of a surrogate pair, as JSON may carry it, cannot be written to a file.
    return str(text).encode("utf-8", "replace").decode("utf-8")


def again(call: Call, wrong: Invalid) -> Call:
    """The call once more, with the answer that was wrong and what is wrong with it."""
    objection = f"That answer cannot be used: {wrong.why}\nAnswer again with one JSON object that fits the schema."
    messages = (*call.messages, Message("assistant", wrong.text or "(nothing)"), Message("user", objection))
    return Call(call.role, call.stage, again_name(call.name), messages, call.schema)


def again_name(name: str) -> str:
    """The name, or custom_id, of a call's second try."""
    return f"{name}-again"


def _validate(text: str, schema: type[BaseModel]) -> Valid | Invalid:
    first: ValidationError | None = None
    for candidate in _candidates(text):
        try:
            return Valid(schema.model_validate_json(candidate), text)
        except ValidationError as error:
            # Of several readings, the first that is JSON at all says most.
            if first is None or _is_not_json(first):
                first = error
    if first is None:
        return Invalid(text, "it is empty.")
    if _is_not_json(first):
        return Invalid(text, "it is not a JSON object.")
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}" for e in first.errors(include_url=False)]
    more = f"; and {len(problems) - MAX_ERRORS} more" if len(problems) > MAX_ERRORS else ""
    return Invalid(text, "; ".join(problems[:MAX_ERRORS]) + more + ".")


def _is_not_json(error: ValidationError) -> bool:
    return error.errors(include_url=False)[0]["type"] == "json_invalid"


def _candidates(text: str) -> Iterator[str]:
    """The readings of a text that may be the JSON: all of it, what follows the model's thoughts, what is fenced, what
    is between the outermost braces."""
    spoken = re.sub(r"\A\s*<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)\n\s*```", spoken, flags=re.DOTALL)
    braced = spoken[spoken.find("{") : spoken.rfind("}") + 1]
    yield from dict.fromkeys(candidate for candidate in (text.strip(), spoken, *fenced, braced) if candidate)
