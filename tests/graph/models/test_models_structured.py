"""What a schema becomes in strict mode, and what is read out of an answer."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_models import Move, call
from pydantic import BaseModel, Field

from tunesmith.graph.models import ModelFailed
from tunesmith.graph.models.strict import strict_schema
from tunesmith.graph.models.structured import Invalid, Valid, read_answer, request_body

FORBIDDEN = {
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "default",
    "title",
    "oneOf",
    "allOf",
    "discriminator",
    "patternProperties",
    "uniqueItems",
    "prefixItems",
}


class Kind(Enum):
    TILE = "tile"
    VECTOR = "vector"


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    weight: Annotated[float, Field(gt=0)] = 1.0


class Branch(BaseModel):
    kind: Literal["branch"] = "branch"
    children: list[Node] = Field(min_length=1, max_length=4)


Node = Annotated[Union[Leaf, Branch], Field(discriminator="kind")]  # noqa: UP007 - read by pydantic


class Tree(BaseModel):
    """A tree."""

    root: Node
    label: Annotated[str, Field(max_length=20, description="what it is called")] = ""
    size: int | None = None
    kinds: list[Kind] = []
    first: Annotated[Leaf, Field(description="where to begin")]


class Free(BaseModel):
    config: dict[str, int]


class Anything(BaseModel):
    value: Any


def walk(part: Any, path: str = "") -> None:
    """Asserts what OpenAI's strict mode demands of every part."""
    if isinstance(part, list):
        for number, inner in enumerate(part):
            walk(inner, f"{path}[{number}]")
    if not isinstance(part, dict):
        return
    if "properties" in part:
        assert part["additionalProperties"] is False and part["required"] == list(part["properties"]), path
    assert "$ref" not in part or part.keys() == {"$ref"}, path
    for key, inner in part.items():
        if key == "properties" or key == "$defs":
            for name, value in inner.items():
                walk(value, f"{path}.{name}")
        else:
            assert key not in FORBIDDEN, f"{path}: {key}"
            walk(inner, f"{path}.{key}")


def test_strict_mode_gets_what_it_takes() -> None:
    strict = strict_schema(Tree.model_json_schema())
    assert strict is not None
    walk(strict)
    assert strict["properties"]["label"]["description"] == "what it is called (maxLength 20)"
    assert strict["properties"]["first"]["properties"]["weight"]["description"] == "exclusiveMinimum 0"
    assert strict["properties"]["first"]["description"] == "where to begin"
    assert {"type": "null"} in strict["properties"]["size"]["anyOf"]
    value = {
        "root": {"kind": "branch", "children": [{"kind": "leaf", "weight": 2.0}]},
        "label": "",
        "size": None,
        "kinds": ["tile"],
        "first": {"kind": "leaf", "weight": 1.0},
    }
    assert Tree.model_validate(value).kinds == [Kind.TILE]


@pytest.mark.parametrize("schema", [Free, Anything])
def test_what_strict_mode_cannot_say_goes_out_as_it_is(schema: type[BaseModel]) -> None:
    whole = schema.model_json_schema()
    assert strict_schema(whole) is None
    asked = call()
    asked = type(asked)(asked.role, asked.stage, asked.name, asked.messages, schema)
    how: dict[str, Any] = {"answer_tokens": 10, "limit_field": "max_tokens", "options": {}}
    described = request_body(asked, "m", "json_schema", **how)["response_format"]["json_schema"]
    assert described == {"name": schema.__name__, "schema": whole, "strict": False}
    function = request_body(asked, "m", "function_calling", **how)["tools"][0]["function"]
    assert function["strict"] is False and function["parameters"] == whole


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
    read = read_answer(completion(text), Move)
    assert isinstance(read, Valid) and read.value == Move(name="a", factor=2)


def test_a_tool_call_comes_before_the_content() -> None:
    called = [{"function": {"name": "Move", "arguments": '{"name": "a", "factor": 2}'}}]
    assert isinstance(read_answer(completion("I call it.", tool_calls=called), Move), Valid)


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
    read = read_answer(completion(text), Move)
    assert isinstance(read, Invalid) and why in read.why and read.why.endswith(".") and len(read.why) < 2000


def test_half_a_surrogate_pair_can_be_written_down() -> None:
    body = json.loads('{"choices": [{"message": {"content": "{\\"name\\": \\"\\ud800\\", \\"factor\\": 1}"}}]}')
    read = read_answer(body, Move)
    assert not isinstance(read, ModelFailed)
    read.text.encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_answer_is_a_crash(text: str) -> None:
    read = read_answer(completion(text), Move)
    assert isinstance(read, Invalid | Valid)


@settings(max_examples=100, deadline=None)
@given(
    st.text(),
    st.text(alphabet=st.characters(exclude_characters="{}`<>"), max_size=50),
    st.integers(1, 64),
    st.booleans(),
)
def test_an_answer_is_found_in_any_prose(name: str, prose: str, factor: int, fenced: bool) -> None:
    value = Move(name=name, factor=factor)
    text = value.model_dump_json()
    read = read_answer(
        completion(f"{prose}\n```json\n{text}\n```\n{prose}" if fenced else f"{prose} {text} {prose}"), Move
    )
    assert isinstance(read, Valid) and read.value == value
