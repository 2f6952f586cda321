"""Answers of a schema: how they are asked for and read; on air-gapped nodes by files, also as editors and other systems
change them."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serve
from hypothesis import HealthCheck, given, settings
from mutations import json_texts
from opened_models import Move, Opened, call, kinds
from pydantic import BaseModel

from tunesmith.graph.models import recorded
from tunesmith.graph.models.calls import Completion, ModelFailed, Waiting, read_answer
from tunesmith.graph.models.recorded import BatchModels, read_answers
from tunesmith.graph.roles.planner import PlanAnswer
from tunesmith.graph.roles.templater import TemplateAnswer
from tunesmith.graph.settings import Method
from tunesmith.hw.errors import TunesmithError

CALLS = [call("a", "1"), call("b", "2"), call("c", "3")]


def completion(text: Any, **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": "stop"}]}


@pytest.fixture
def air(tmp_path: Path) -> Path:
    return tmp_path / "air"


@pytest.fixture
def batch(open_run: Callable[..., Opened], air: Path) -> Callable[..., Opened]:
    return lambda folder="run", **values: open_run(folder, **({"model": f"batch:{air}"} | values))


@pytest.fixture
def waiting(batch: Any, air: Path) -> str:
    """The custom_id of a request that a run waits for."""
    with pytest.raises(Waiting):
        batch().ask()
    (line,) = requests(air)
    return str(line["custom_id"])


def requests(air: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (air / "requests.jsonl").read_text().splitlines()]


def write_answer(air: Path, custom_id: str, text: str = '{"name": "a", "factor": 1}', **line: Any) -> None:
    whole = {"id": "1", "custom_id": custom_id, "response": {"status_code": 200, "body": completion(text)}}
    with (air / "answers.jsonl").open("a") as file:
        file.write(json.dumps(whole | {"error": None} | line) + "\n")


def test_requests_have_the_format_of_the_batch_api(batch: Any, air: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")  # nothing is sent, so that no proxy matters
    monkeypatch.setenv("OPENAI_PROXY", "http://127.0.0.1:9")
    with pytest.raises(Waiting) as waiting:
        batch(batch_model="gpt-5", model_for={"template": "gpt-5-mini"}).ask(call(), call(role="template"))
    told = str(waiting.value)
    assert str(air / "requests.jsonl") in told and str(air / "answers.jsonl") in told and "2 requests" in told
    first, second = requests(air)
    assert first.keys() == {"custom_id", "method", "url", "body"}
    assert (first["method"], first["url"]) == ("POST", "/v1/chat/completions")
    assert first["custom_id"] == f"round-1.plan.moves@{call().digest}" != second["custom_id"]
    assert first["body"]["model"] == "gpt-5" and second["body"]["model"] == "gpt-5-mini"
    assert first["body"]["response_format"]["json_schema"]["strict"] is True
    assert first["body"]["max_completion_tokens"] == 16384


def test_nothing_of_the_file_is_lost_or_repeated(batch: Any, air: Path) -> None:
    with pytest.raises(Waiting):
        batch(time_limit=1e-9).ask(*CALLS)  # files take none of the run's time
    ids = [line["custom_id"] for line in requests(air)]
    write_answer(air, ids[1])
    with pytest.raises(Waiting, match="2 requests"):
        batch().ask(*CALLS)
    assert [line["custom_id"] for line in requests(air)] == [ids[0], ids[2]], "what is answered is asked no more"
    (air / "answers.jsonl").unlink()  # a new file takes the place of the old: the journal has what was read
    write_answer(air, ids[0], response=None, error={"code": "batch_expired", "message": "too late"})
    write_answer(air, ids[0])  # the later of two answers counts
    by_hand = {"custom_id": ids[2], "response": {"body": completion('{"name": "a", "factor": 1}')}, "error": None}
    with (air / "answers.jsonl").open("a") as file:
        file.write(json.dumps(by_hand))
    run = batch(time_limit=1e-9)
    assert kinds(run.ask(*CALLS)) == ["ok"] * 3 and requests(air) == []
    asked = [event["id"] for event in run.events("model_asked")]
    assert sorted(asked) == sorted(ids), "each was asked once, however often the run was resumed"
    (air / "answers.jsonl").unlink()
    write_answer(air, call(text="old").request_id)
    with pytest.raises(Waiting):
        batch().ask(call(text="new"))


def test_runs_that_share_a_folder_may_write_at_the_same_time(air: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = recorded.read_requests

    def read_slowly(path: Path) -> Any:
        found = read(path)
        time.sleep(0.01)
        return found

    def write(run: str) -> None:
        models = BatchModels(air, "resume")
        for number in range(8):
            models.hold({f"{run}-{number}": {"messages": []}})

    monkeypatch.setattr(recorded, "read_requests", read_slowly)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, ("one", "two", "three")))
    written = {f"{name}-{number}" for name in ("one", "two", "three") for number in range(8)}
    assert {line["custom_id"] for line in requests(air)} == written


def test_an_answer_that_cannot_be_used_is_said_with_the_reason(batch: Any, air: Path, waiting: str) -> None:
    """Until the answer to the second question is there."""
    write_answer(air, waiting, "I would unroll it.")
    for _ in range(2):
        opened = batch()
        with pytest.raises(Waiting):
            opened.ask()
        assert "the answer to round-1.plan.moves is not usable: it is not a JSON object; asked again" in opened.said
    write_answer(air, requests(air)[0]["custom_id"])
    reply = batch().reply()
    opened = batch()
    assert opened.reply() == reply and opened.said == []


FAILED = {"status_code": 400, "request_id": "1", "body": None}
NO_MODEL = {"code": 400, "message": "no such model"}


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ({"response": None, "error": {"code": "batch_expired", "message": "late."}}, "server_error", "batch_expired"),
        ({"response": {"status_code": 429, "body": {"error": {"message": "slower"}}}}, "rate_limited", "slower"),
        ({"response": FAILED, "error": {"error": NO_MODEL}}, "server_error", "no such model"),
        ({"response": None, "error": "gone"}, "server_error", "gone"),
    ],
)
def test_an_error_line_is_a_failure(batch: Any, air: Path, waiting: str, line: Any, kind: str, said: str) -> None:
    write_answer(air, waiting, **line)
    failed = batch().failure()
    assert failed.kind == kind and said in failed.detail
    (air / "answers.jsonl").unlink()
    assert batch().failure() == failed, "what the roles have seen stays"


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_answer(tmp_path, "good")
    good, choice = path.read_bytes(), '{"custom_id": "a", "response": {"body": {"choices": [{}]}}}\n'
    for text, said in (
        ('{"custom_id": "a", "respo', "Unterminated string"),
        ("[1, 2]\n", "it is not a JSON object with a custom_id"),
        ('{"response": null}\n', "it is not a JSON object with a custom_id"),
        ('{"custom_id": "a"}\n', "it has neither a response nor an error"),
        ('{"custom_id": "a", "response": "yes"}\n', "response must be an object"),
        (choice, "response.body is not a chat completion: choices.0.message"),
        ("\xff\xfe\n", "'utf-8' codec can't decode"),
    ):
        path.write_bytes(good + text.encode("latin-1"))
        with pytest.raises(TunesmithError) as raised:
            read_answers(path)
        assert f"answers.jsonl, line 2 cannot be used ({said}" in str(raised.value)
        assert str(raised.value).endswith("): fix the line, take it out, or copy the file again.")
    path.write_bytes(good.rstrip() + b"\r\n\r\n")
    assert read_answers(path).keys() == {"good"}


def test_caps_hold_for_what_is_written_down(batch: Any, air: Path, server: FakeOpenAI) -> None:
    for _ in range(2):
        with pytest.raises(Waiting):
            (opened := batch(max_calls=2)).ask(*CALLS)
        assert len(requests(air)) == 2 and opened.calls_left == 0, "a plan by rules counts what is under way"
    serve(air, server)
    assert kinds(batch(max_calls=2).ask(*CALLS)) == ["ok", "ok", "capped"]


CALLED = {"function": {"name": "Move", "arguments": "{}"}}
COMPLETION = {"choices": [{"message": {"content": "{}", "tool_calls": [CALLED]}}], "usage": {"prompt_tokens": 1}}
ANSWER = {"custom_id": "a", "response": {"status_code": 200, "body": COMPLETION}, "error": {"error": {"code": "1"}}}


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_texts(ANSWER) | json_texts(ANSWER | {"error": None}))
def test_no_line_is_a_crash(tmp_path: Path, text: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        for found in read_answers(path).values():
            if isinstance(found, dict):
                read_answer(found, Move)
    except TunesmithError as error:
        assert "line " in str(error)


class Defaulted(BaseModel, extra="forbid"):
    size: int = 1


class Free(BaseModel):
    config: dict[str, int]


@pytest.mark.parametrize("schema", [PlanAnswer, TemplateAnswer, Free, Defaulted])
def test_a_schema_is_sent_strictly_where_strict_mode_takes_it(open_run: Any, tmp_path: Path, schema: Any) -> None:
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


def test_the_object_is_found_or_what_is_wrong_is_said() -> None:
    called = {"function": {"name": "Move", "arguments": '{"name": "a", "factor": 2}'}}
    for answer in (
        completion('{"name": "a", "factor": 2}'),
        completion('Here it is:\n```json\n{"name": "a", "factor": 2}\n```\nGood luck!'),
        completion('<think>A set {like this}? Or {"name": "b", "factor": 3}?</think>\n{"name": "a", "factor": 2}'),
        completion('The answer is {"name": "a", "factor": 2}.'),
        completion([{"type": "text", "text": '{"name": "a", '}, {"type": "text", "text": '"factor": 2}'}]),
        completion("I call it.", tool_calls=[called]),
    ):
        assert read_answer(answer, Move) == Move(name="a", factor=2)
    # Half a surrogate pair can be written down.
    body = json.loads('{"choices": [{"message": {"content": "{\\"name\\": \\"\\ud800\\", \\"factor\\": 1}"}}]}')
    assert isinstance(read_answer(body, Move), Move)
    Completion.model_validate(body).text.encode("utf-8")
    for text, why in (
        (None, "empty"),
        ("no", "not a JSON object"),
        ('{"name": "a"', "not a JSON object"),
        ('{"name": "a", "factor": 2, "extra": 1}', "extra"),
        ('```json\n{"name": "a"}\n```', "factor"),
        ("[" * 100_000, "not a JSON object"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "."),
    ):
        found = read_answer(completion(text), Move)
        assert isinstance(found, ModelFailed) and found.kind == "unstructured"
        assert why in found.detail and found.detail.endswith(".") and len(found.detail) < 2000
