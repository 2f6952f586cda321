"""How an answer of a schema is asked for, and what is read out of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_models import Move, Opened, call
from pydantic import BaseModel, ConfigDict

from tunesmith.graph.models import ModelFailed, Waiting
from tunesmith.graph.models.calls import Completion, read_answer
from tunesmith.graph.prompts.answers import ExplainAnswer, PlanAnswer, TemplateAnswer
from tunesmith.graph.settings import Method


class Defaulted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = 1


class Free(BaseModel):
    config: dict[str, int]


class Anything(BaseModel):
    value: Any


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kinds: list[Literal["tile", "vector"]]
    first: Setting
    size: int | None


class Setting(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    default: int | str  # a name that is a word of JSON Schema, too


@pytest.fixture
def asked_for(open_run: Callable[..., Opened], tmp_path: Path) -> Callable[[type[BaseModel], Method], dict[str, Any]]:
    """The body of the request for an answer of a schema."""

    def ask(schema: type[BaseModel], method: Method) -> dict[str, Any]:
        folder = tmp_path / f"{schema.__name__}-{method}"
        with pytest.raises(Waiting):
            open_run(folder.name, model=f"batch:{folder}", model_method=method).ask(replace(call(), schema=schema))
        body: dict[str, Any] = json.loads((folder / "requests.jsonl").read_text())["body"]
        return body

    return ask


@pytest.mark.parametrize("schema", [Move, Closed, PlanAnswer, TemplateAnswer, ExplainAnswer])
def test_a_schema_that_strict_mode_takes_is_strict(asked_for: Any, schema: type[BaseModel]) -> None:
    described = asked_for(schema, "json_schema")["response_format"]["json_schema"]
    assert described["name"] == schema.__name__ and described["strict"] is True
    function = asked_for(schema, "function_calling")["tools"][0]["function"]
    assert function["strict"] is True and function["parameters"] == described["schema"]
    properties = schema.model_json_schema()["properties"]
    assert described["schema"]["properties"] == properties and described["schema"]["additionalProperties"] is False


@pytest.mark.parametrize("schema", [Free, Anything, Defaulted])
def test_what_strict_mode_cannot_say_goes_out_as_it_is(asked_for: Any, schema: type[BaseModel]) -> None:
    whole = schema.model_json_schema()
    described = asked_for(schema, "json_schema")["response_format"]["json_schema"]
    assert described["strict"] is False and described["schema"]["properties"] == whole["properties"]
    function = asked_for(schema, "function_calling")["tools"][0]["function"]
    assert function["strict"] is False and function["parameters"]["properties"] == whole["properties"]
    told = asked_for(schema, "json_mode")
    assert told["response_format"] == {"type": "json_object"} and '"properties"' in told["messages"][0]["content"]


def completion(text: Any, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a", "factor": 2}',
        ' \n{"name": "a", "factor": 2}\n',
        'Here it is:\n```json\n{"name": "a", "factor": 2}\n```\nGood luck!',
        '<think>A set {like this}? Or {"name": "b", "factor": 3}?</think>\n{"name": "a", "factor": 2}',
        'The answer is {"name": "a", "factor": 2}.',
        [{"type": "text", "text": '{"name": "a", '}, {"type": "text", "text": '"factor": 2}'}],
    ],
)
def test_the_object_is_found(text: Any) -> None:
    found = read_answer(completion(text), Move)
    assert found == Move(name="a", factor=2)


def test_a_tool_call_comes_before_the_content() -> None:
    called = [{"function": {"name": "Move", "arguments": '{"name": "a", "factor": 2}'}}]
    assert read_answer(completion("I call it.", tool_calls=called), Move) == Move(name="a", factor=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (None, "empty"),
        ("no", "not a JSON object"),
        ('{"name": "a"', "not a JSON object"),
        ('{"name": "a", "factor": 2, "extra": 1}', "extra"),
        ('```json\n{"name": "a"}\n```', "factor"),
        ("[" * 100_000, "not a JSON object"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "."),
    ],
)
def test_what_is_wrong_is_said(text: Any, why: str) -> None:
    found = read_answer(completion(text), Move)
    assert isinstance(found, ModelFailed) and found.kind == "unstructured"
    assert why in found.detail and found.detail.endswith(".") and len(found.detail) < 2000


def test_half_a_surrogate_pair_can_be_written_down() -> None:
    body = json.loads('{"choices": [{"message": {"content": "{\\"name\\": \\"\\ud800\\", \\"factor\\": 1}"}}]}')
    found = read_answer(body, Move)
    assert isinstance(found, Move)
    Completion.model_validate(body).text.encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_answer_is_a_crash(text: str) -> None:
    found = read_answer(completion(text), Move)
    assert isinstance(found, Move) or (isinstance(found, ModelFailed) and found.kind == "unstructured")
