"""The seam between roles and models: the call that a role makes, and the reply or the typed failure that comes back.

A role makes calls and hands them to the `Models` of its context, as many together as it can; each comes back as a
`Reply` whose value has passed the call's schema, or as a `ModelFailed`. Reading an answer out of a chat completion
belongs here, too. Pure: no network, no files, no LangChain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import AliasPath, BaseModel, Field, NonNegativeInt, ValidationError
from pydantic_core import ErrorDetails

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
"""After these no further call of the session is answered; after the other kinds the next one may be."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ModelCall:
    """A question of `role` in a `stage` such as "round-2"; `name` is unique there, as "template-1-repair-2"."""

    role: str
    stage: str
    name: str
    messages: tuple[Message, ...]
    schema: type[BaseModel]

    @property
    def custom_id(self) -> str:
        return f"{self.stage}.{self.role}.{self.name}"

    @property
    def request_id(self) -> str:
        """The custom_id of its request. It has the digest, as an answer to another prompt is not an answer to this."""
        return f"{self.custom_id}@{self.digest}"

    @cached_property
    def digest(self) -> str:
        """Hash of the messages and the schema: an answer fits a call only when this is the same."""
        content: Any = [[message.role, message.content] for message in self.messages]
        payload = json.dumps([content, self.schema.__name__, self.schema.model_json_schema()], sort_keys=True)
        return hashlib.sha256(payload.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Reply:
    """value: an instance of the call's schema; text: the answer as the model wrote it."""

    value: BaseModel
    text: str


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """No usable answer. detail: one sentence for the user; text: the model's answer, if any."""

    kind: FailureKind
    detail: str
    text: str = ""


Outcome = dict[str, Any] | ModelFailed
"""The result of a request: a chat completion, or a failure."""


class Waiting(TunesmithError):
    """The run waits for input from outside, until `tunesmith resume` (exit code 4); the message names the input, its
    place and the command. requests: the file of requests to answer, if answers are awaited."""

    def __init__(self, message: str, requests: Path | None = None) -> None:
        super().__init__(message)
        self.requests = requests


class Models(Protocol):
    """The models of a run. An answer that is in the journal is never asked for, or paid, again."""

    def ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        """Answers in the order of `calls`. Raises `Waiting`, with all requests written, if answers come later."""
        ...


def _at(first: str, *path: str | int) -> Any:
    """A field of a chat completion that may be missing."""
    return Field(None, validation_alias=AliasPath(first, *path))


class Completion(BaseModel):
    """The fields of a chat completion that are read; servers add others. arguments: of the first tool call."""

    message: dict[str, Any] = Field(validation_alias=AliasPath("choices", 0, "message"))
    content: str | list[dict[str, Any]] | None = _at("choices", 0, "message", "content")
    refusal: str | None = _at("choices", 0, "message", "refusal")
    arguments: str | None = _at("choices", 0, "message", "tool_calls", 0, "function", "arguments")
    finish_reason: str | None = _at("choices", 0, "finish_reason")
    prompt_tokens: NonNegativeInt | None = _at("usage", "prompt_tokens")
    completion_tokens: NonNegativeInt | None = _at("usage", "completion_tokens")
    cached_tokens: NonNegativeInt | None = _at("usage", "prompt_tokens_details", "cached_tokens")
    model: str | None = None

    @property
    def text(self) -> str:
        """The model's refusal or answer: the arguments of the first tool call, or the content."""
        text = self.refusal or self.arguments or self.content or ""
        if self.arguments and not self.refusal:
            # Some models write line breaks into the strings of their arguments, which JSON does not allow.
            with suppress(ValueError, RecursionError):
                text = json.dumps(json.loads(self.arguments, strict=False), ensure_ascii=False)
        if isinstance(text, list):
            text = "".join(str(part.get("text", "")) for part in text)
        # JSON may have half of a surrogate pair, which cannot be written to a file.
        return text.encode("utf-8", "replace").decode("utf-8")


def in_words(schema: Mapping[str, Any]) -> str:
    """The demand for an answer of a schema, where the request itself does not carry it."""
    return f"Answer with one JSON object, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"


def completion_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """A response of OpenAI's Responses API as a chat completion; as it is where it is none."""
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return dict(response)
    parts = [part for item in response["output"] for part in item.get("content") or () if isinstance(part, dict)]
    calls = [item for item in response["output"] if item.get("type") == "function_call"]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part.get("text", "") for part in parts)}
    if refusals := [part["refusal"] for part in parts if "refusal" in part]:
        message["refusal"] = refusals[0]
    if calls:
        message["tool_calls"] = [{"function": {key: one.get(key) for key in ("name", "arguments")}} for one in calls]
    usage = response.get("usage") or {}
    reason = (response.get("incomplete_details") or {}).get("reason")
    return {
        "model": response.get("model"),
        "choices": [{"message": message, "finish_reason": "length" if reason == "max_output_tokens" else reason}],
        "usage": {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details") or {},
        },
    }


def completion_error(body: object) -> str | None:
    """The reason why `body` is not a chat completion with an answer; None if it is."""
    try:
        Completion.model_validate(body)
    except ValidationError as error:
        return problem(error.errors(include_url=False)[0])
    return None


def problem(error: ErrorDetails) -> str:
    """An error of pydantic's with its place."""
    return f"{'.'.join(map(str, error['loc'])) or 'the whole'}: {error['msg']}"


AGAIN = "-again"
"""Ends the name, and the custom_id, of a call's second try."""
MAX_ERRORS = 8
"""Errors of an unusable answer that the model gets to read."""


def read_answer(body: Mapping[str, Any], schema: type[BaseModel]) -> BaseModel | ModelFailed:
    """The answer in a chat completion as a value of `schema`, or why not, with the errors for the model."""
    completion = Completion.model_validate(body)
    text = completion.text
    if completion.refusal:
        return ModelFailed("refused", f"The model declined: {text}", text)
    if completion.finish_reason == "content_filter":
        return ModelFailed("refused", "The server's content filter stopped the answer.", text)
    if completion.finish_reason == "length":
        return ModelFailed("truncated", "The answer ended at the token limit; raise --answer-tokens.", text)
    misfits = []
    for candidate in _candidates(text):
        try:
            return schema.model_validate_json(candidate)
        except ValidationError as error:
            misfits.append(error.errors(include_url=False))
    # Among several readings, the errors of the first JSON object help most.
    errors = next((each for each in misfits if each[0]["type"] != "json_invalid"), None)
    if errors is None:
        return ModelFailed("unstructured", "it is not a JSON object." if misfits else "it is empty.", text)
    more = f"; and {len(errors) - MAX_ERRORS} more" if len(errors) > MAX_ERRORS else ""
    return ModelFailed("unstructured", "; ".join(map(problem, errors[:MAX_ERRORS])) + more + ".", text)


def _candidates(text: str) -> Iterator[str]:
    """The parts that may be the JSON: all, all after the model's thoughts, fenced blocks, outermost braces."""
    spoken = re.sub(r"\A\s*<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)\n\s*```", spoken, flags=re.DOTALL)
    braced = spoken[spoken.find("{") : spoken.rfind("}") + 1]
    yield from dict.fromkeys(candidate for candidate in (text.strip(), spoken, *fenced, braced) if candidate)


def again(call: ModelCall, wrong: ModelFailed) -> ModelCall:
    """The call once more, with the unusable answer and its errors."""
    feedback = f"That answer cannot be used: {wrong.detail}\nAnswer again with one JSON object that fits the schema."
    messages = (*call.messages, Message("assistant", wrong.text or "(nothing)"), Message("user", feedback))
    return ModelCall(call.role, call.stage, call.name + AGAIN, messages, call.schema)
