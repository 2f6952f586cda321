"""How the answer in a model's message is read: as a value of the call's schema, or what is wrong with it.

LangChain's own parser is not used for that: it completes JSON that is cut off, which would turn half a kernel into a
valid answer. However an answer came, pydantic validates it here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from tunesmith.graph.models.calls import Call, Message, ModelFailed

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage

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
