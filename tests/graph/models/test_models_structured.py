"""How an answer of a schema is asked for, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opened_models import Move, Opened, call
from pydantic import BaseModel

from tunesmith.graph.models.calls import Completion, ModelFailed, Waiting, read_answer
from tunesmith.graph.prompts.answers import PlanAnswer, TemplateAnswer
from tunesmith.graph.settings import Method


class Defaulted(BaseModel, extra="forbid"):
    size: int = 1


class Free(BaseModel):
    config: dict[str, int]


@pytest.mark.parametrize("schema", [PlanAnswer, TemplateAnswer, Free, Defaulted])
def test_a_schema_is_sent_strictly_where_strict_mode_takes_it(
    open_run: Callable[..., Opened], tmp_path: Path, schema: type[BaseModel]
) -> None:
    def asked(method: Method) -> Any:
        folder = tmp_path / method
        with pytest.raises(Waiting):
            open_run(folder.name, model=f"batch:{folder}", model_method=method).ask(replace(call(), schema=schema))
        return json.loads((folder / "requests.jsonl").read_text())["body"]

    strict, whole = schema not in (Free, Defaulted), schema.model_json_schema()
    described = asked("json_schema")["response_format"]["json_schema"]
    assert described["name"] == schema.__name__ and described["strict"] is strict
    assert described["schema"]["properties"] == whole["properties"]
    function = asked("function_calling")["tools"][0]["function"]
    assert function["name"] == schema.__name__ and function["strict"] is strict
    assert function["parameters"]["properties"] == whole["properties"]
    told = asked("json_mode")
    assert told["response_format"] == {"type": "json_object"}
    assert json.dumps(whole["properties"]) in told["messages"][0]["content"], "the model must be told the schema"


def completion(text: Any, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": "stop"}]}


CALLED = [{"function": {"name": "Move", "arguments": '{"name": "a", "factor": 2}'}}]


@pytest.mark.parametrize(
    "answer",
    [
        completion('{"name": "a", "factor": 2}'),
        completion('Here it is:\n```json\n{"name": "a", "factor": 2}\n```\nGood luck!'),
        completion('<think>A set {like this}? Or {"name": "b", "factor": 3}?</think>\n{"name": "a", "factor": 2}'),
        completion('The answer is {"name": "a", "factor": 2}.'),
        completion([{"type": "text", "text": '{"name": "a", '}, {"type": "text", "text": '"factor": 2}'}]),
        completion("I call it.", tool_calls=CALLED),
    ],
)
def test_the_object_is_found(answer: Any) -> None:
    assert read_answer(answer, Move) == Move(name="a", factor=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
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
    assert isinstance(read_answer(body, Move), Move)
    Completion.model_validate(body).text.encode("utf-8")
