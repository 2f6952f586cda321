"""Structured answers: how one is asked for, and how it is read.

Three methods, as servers differ (OpenAI's names): a JSON schema as the response format, the arguments of a function,
or any JSON object with the schema told in the prompt. However it came, an answer is validated by pydantic here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from tunesmith.graph.models.calls import Call, Message, ModelFailed
from tunesmith.graph.models.settings import Method
from tunesmith.graph.models.strict import strict_schema

MAX_ERRORS = 8
"""Of a wrong answer, told to the model."""


@dataclass(frozen=True, slots=True)
class Valid:
    value: BaseModel
    text: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """An answer that is not of the schema. why: what is wrong with it, for the model to read."""

    text: str
    why: str


def request_body(
    call: Call,
    model: str,
    method: Method,
    *,
    answer_tokens: int,
    limit_field: Literal["max_tokens", "max_completion_tokens"],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a chat completions request."""
    messages = [{"role": message.role, "content": message.content} for message in call.messages]
    schema = call.schema.model_json_schema()
    body: dict[str, Any] = {"model": model, "messages": messages, limit_field: answer_tokens}
    strict = strict_schema(schema)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.schema.__name__)[:64]
    if method == "json_schema":
        described = {"name": name, "schema": strict or schema, "strict": strict is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    elif method == "function_calling":
        function = {"name": name, "description": "Gives the answer.", "parameters": strict or schema}
        body["tools"] = [{"type": "function", "function": function | {"strict": strict is not None}}]
        body["tool_choice"] = {"type": "function", "function": {"name": name}}
    else:
        told = f"Answer with one JSON object, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"
        # After the system messages: some chat templates take these only at the beginning.
        place = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        if place:
            messages[place - 1] = {"role": "system", "content": f"{messages[place - 1]['content']}\n\n{told}"}
        else:
            messages.insert(0, {"role": "system", "content": told})
        body["response_format"] = {"type": "json_object"}
    return body | dict(options)


def read_answer(completion: Mapping[str, Any], schema: type[BaseModel]) -> Valid | Invalid | ModelFailed:
    """The answer in a chat completion."""
    choice = completion["choices"][0]
    message = choice.get("message") or {}
    text = answer_text(completion)
    if message.get("refusal"):
        return ModelFailed("refused", f"The model declined: {message['refusal']}", str(message["refusal"]))
    if choice.get("finish_reason") == "content_filter":
        return ModelFailed("refused", "The server's content filter stopped the answer.", text)
    if choice.get("finish_reason") == "length":
        return ModelFailed("truncated", "The answer ended at the token limit; raise --answer-tokens.", text)
    return _validate(text, schema)


def answer_text(completion: Mapping[str, Any]) -> str:
    """What the model wrote: the arguments of its tool call, or its content."""
    message = completion["choices"][0].get("message") or {}
    for call in message.get("tool_calls") or ():
        return _clean(call["function"]["arguments"])
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return _clean(content)


def again(call: Call, wrong: Invalid) -> Call:
    """The call once more, with the answer that was wrong and what is wrong with it."""
    told = f"That answer cannot be used: {wrong.why}\nAnswer again with one JSON object that fits the schema."
    messages = (*call.messages, Message("assistant", wrong.text or "(nothing)"), Message("user", told))
    return Call(call.role, call.stage, again_name(call.name), messages, call.schema)


def again_name(name: str) -> str:
    """The name, or custom_id, of the one more try of a call."""
    return f"{name}-again"


def _clean(text: Any) -> str:
    # Half of a surrogate pair, as JSON may carry it, can be written to no file.
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _validate(text: str, schema: type[BaseModel]) -> Valid | Invalid:
    first: ValidationError | None = None
    for candidate in _candidates(text):
        try:
            return Valid(schema.model_validate_json(candidate), text)
        except ValidationError as error:
            # Of several readings, the first that is JSON at all tells most.
            if first is None or _is_no_json(first):
                first = error
    if first is None:
        return Invalid(text, "it is empty.")
    if _is_no_json(first):
        return Invalid(text, "it is not a JSON object.")
    problems = [f"{'.'.join(map(str, e['loc'])) or 'the whole'}: {e['msg']}" for e in first.errors(include_url=False)]
    more = f"; and {len(problems) - MAX_ERRORS} more" if len(problems) > MAX_ERRORS else ""
    return Invalid(text, "; ".join(problems[:MAX_ERRORS]) + more + ".")


def _is_no_json(error: ValidationError) -> bool:
    return error.errors(include_url=False)[0]["type"] == "json_invalid"


def _candidates(text: str) -> Iterator[str]:
    """The readings of a text that may be the JSON: all of it, what follows the model's thoughts, what is fenced, what
    is between the outermost braces."""
    spoken = re.sub(r"\A\s*<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)\n\s*```", spoken, flags=re.DOTALL)
    braced = spoken[spoken.find("{") : spoken.rfind("}") + 1]
    yield from dict.fromkeys(candidate for candidate in (text.strip(), spoken, *fenced, braced) if candidate)
