"""Air-gapped nodes: what is written, what is read, and what a file may look like after its journey."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from batch_service import serve
from fake_openai import FakeOpenAI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opened_models import KEY, Move, Opened, call

from tunesmith.graph.models import ModelFailed, Reply, Waiting
from tunesmith.graph.models.calls import read_answer
from tunesmith.graph.models.recorded import BatchFileError, read_answers

GOOD = {"choices": [{"index": 0, "message": {"role": "assistant", "content": '{"name": "a", "factor": 1}'}}]}


@pytest.fixture
def air(tmp_path: Path) -> Path:
    return tmp_path / "air"


@pytest.fixture
def batch(open_run: Callable[..., Opened], air: Path) -> Callable[..., Opened]:
    return lambda folder="run", **values: open_run(folder, **({"model": f"batch:{air}"} | values))


def requests(air: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (air / "requests.jsonl").read_text().splitlines()]


def write_answer(air: Path, custom_id: str, body: Any = None, **line: Any) -> None:
    whole = {"id": "1", "custom_id": custom_id, "response": {"status_code": 200, "body": body or GOOD}, "error": None}
    with (air / "answers.jsonl").open("a") as file:
        file.write(json.dumps(whole | line) + "\n")


def test_requests_have_the_format_of_the_batch_api(batch: Any, air: Path) -> None:
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
    calls = [call("a", "1"), call("b", "2"), call("c", "3")]
    with pytest.raises(Waiting):
        batch().ask(*calls)
    ids = [line["custom_id"] for line in requests(air)]
    write_answer(air, ids[1])
    with pytest.raises(Waiting, match="2 requests"):
        batch().ask(*calls)
    assert [line["custom_id"] for line in requests(air)] == [ids[0], ids[2]], "what is answered is asked no more"
    (air / "answers.jsonl").unlink()  # a new file takes the place of the old: the journal has what was read
    write_answer(air, ids[0])
    write_answer(air, ids[2])
    run = batch()
    assert all(isinstance(answer, Reply) for answer in run.ask(*calls))
    assert requests(air) == []
    asked = [event["id"] for event in run.events("model_asked")]
    assert sorted(asked) == sorted(ids), "each was asked once, however often the run was resumed"


WRITE = """
import sys, time
from pathlib import Path
from tunesmith.graph.models import recorded as batch
read = batch.read_requests
def read_slowly(path):
    found = read(path)
    time.sleep(0.02)
    return found
batch.read_requests = read_slowly
models = batch.BatchModels(Path(sys.argv[1]), "resume")
print("ready", flush=True)
sys.stdin.readline()
for number in range(8):
    models.hold({f"{sys.argv[2]}-{number}": {"messages": []}})
"""


def test_runs_that_share_a_folder_may_write_at_the_same_time(air: Path) -> None:
    with ExitStack() as stack:
        runs = []
        for name in ("one", "two", "three"):
            command = [sys.executable, "-c", WRITE, str(air), name]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            runs.append(stack.enter_context(process))
        for process in runs:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in runs:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in runs:
            assert process.wait(60) == 0
    written = {f"{name}-{number}" for name in ("one", "two", "three") for number in range(8)}
    assert {line["custom_id"] for line in requests(air)} == written


def test_files_take_none_of_the_run_s_time(batch: Any, air: Path) -> None:
    with pytest.raises(Waiting):
        batch(time_limit=1e-9).ask(call())
    by_hand = {"custom_id": requests(air)[0]["custom_id"], "response": {"body": GOOD}, "error": None}
    (air / "answers.jsonl").write_text(json.dumps(by_hand))
    assert isinstance(batch(time_limit=1e-9).ask(call())[0], Reply)


def test_a_folder_of_batches_is_a_recording(batch: Any, air: Path, server: FakeOpenAI, open_run: Any) -> None:
    with pytest.raises(Waiting):
        batch(batch_model="tester").ask(call())
    serve(air, server.base_url, key=KEY)
    reply = batch(batch_model="tester").ask(call())
    again = open_run("again", model=f"replay:{air}", replay_exact=True)
    assert again.ask(call()) == reply
    assert again.events("model_call")[0]["model"] == "tester"


@pytest.mark.parametrize(("name", "spoken_of"), [("round-1.plan.moves", True), ("round-0.plan.moves", False)])
def test_an_answer_to_another_prompt_is_none_to_this(batch: Any, air: Path, name: str, spoken_of: bool) -> None:
    air.mkdir()
    write_answer(air, f"{name}@{call(text='old').digest}")
    with pytest.raises(Waiting) as waiting:
        batch().ask(call(text="new"))
    assert ("another wording of the same question" in str(waiting.value)) == spoken_of


def test_an_answer_that_cannot_be_used_is_said_with_the_reason(batch: Any, air: Path) -> None:
    """Until the answer to the second question is there."""
    with pytest.raises(Waiting):
        batch().ask()
    prose = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "I would unroll it."}}]}
    write_answer(air, requests(air)[0]["custom_id"], prose)
    for _ in range(2):
        opened = batch()
        with pytest.raises(Waiting):
            opened.ask()
        assert "the answer to round-1.plan.moves is not usable: it is not a JSON object; asked again" in opened.said
    write_answer(air, requests(air)[0]["custom_id"])
    reply = batch().reply()
    opened = batch()
    assert opened.reply() == reply and opened.said == []


def test_the_later_of_two_answers_counts(batch: Any, air: Path) -> None:
    with pytest.raises(Waiting):
        batch().ask(call())
    (line,) = requests(air)
    write_answer(air, line["custom_id"], response=None, error={"code": "batch_expired", "message": "too late"})
    write_answer(air, line["custom_id"])
    assert isinstance(batch().ask(call())[0], Reply)


FAILED = {"status_code": 400, "request_id": "1", "body": None}
NO_MODEL = {"code": 400, "message": "no such model"}


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ({"response": None, "error": {"code": "batch_expired", "message": "late."}}, "server_error", "batch_expired"),
        ({"response": {"status_code": 429, "body": {"error": {"message": "slower"}}}}, "rate_limited", "slower"),
        ({"response": {"status_code": 401, "body": {"error": {"message": "who?"}}}}, "unauthorised", "who?"),
        ({"response": FAILED, "error": {"object": "error"} | NO_MODEL}, "server_error", "no such model"),
        ({"response": FAILED, "error": {"error": NO_MODEL}}, "server_error", "no such model"),
        ({"response": None, "error": "gone"}, "server_error", "gone"),
    ],
)
def test_an_error_line_is_a_failure(batch: Any, air: Path, line: Any, kind: str, said: str) -> None:
    with pytest.raises(Waiting):
        batch().ask(call())
    write_answer(air, requests(air)[0]["custom_id"], **line)
    failed = batch().ask(call())[0]
    assert isinstance(failed, ModelFailed) and failed.kind == kind and said in failed.detail
    (air / "answers.jsonl").unlink()
    assert batch().ask(call())[0] == failed, "what the roles have seen stays"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"custom_id": "a", "respo', "line 2: the line is cut short"),
        ("no JSON\n", "line 2: it is not valid JSON"),
        ("[1, 2]\n", "line 2: it is not a JSON object with a custom_id"),
        ('{"response": null}\n', "line 2: it is not a JSON object with a custom_id"),
        ('{"custom_id": "a"}\n', "line 2: it has neither a response nor an error"),
        ('{"custom_id": "a", "response": "yes"}\n', "line 2: response must be an object"),
        ('{"custom_id": "a", "response": {"body": "{}"}}\n', "line 2: response.body is not a chat completion"),
        (
            '{"custom_id": "a", "response": {"body": {"choices": []}}}\n',
            "line 2: response.body is not a chat completion (choices",
        ),
        (
            '{"custom_id": "a", "response": {"body": {"choices": [{}]}}}\n',
            "line 2: response.body is not a chat completion (choices.0.message",
        ),
        ("\xff\xfe\n", "line 2: it is not valid JSON"),
    ],
)
def test_a_broken_line_is_named(batch: Any, air: Path, text: str, said: str) -> None:
    with pytest.raises(Waiting):
        batch().ask(call())
    good = requests(air)[0]["custom_id"]
    write_answer(air, good)
    with (air / "answers.jsonl").open("ab") as file:
        file.write(text.encode("latin-1"))
    with pytest.raises(BatchFileError) as raised:
        batch()
    assert f"answers.jsonl, {said}" in str(raised.value) and str(raised.value).endswith(".")
    assert any(remedy in str(raised.value) for remedy in ("fix the line, or take it out", "copy the file again"))
    lines = (air / "answers.jsonl").read_bytes().split(b"\n")
    (air / "answers.jsonl").write_bytes(lines[0] + b"\r\n\r\n")
    assert isinstance(batch().ask(call())[0], Reply), "repaired, it goes on"


def test_caps_hold_for_what_is_written_down(batch: Any, air: Path, server: FakeOpenAI) -> None:
    calls = [call("a", "1"), call("b", "2"), call("c", "3")]
    for _ in range(2):
        with pytest.raises(Waiting):
            batch(max_calls=2).ask(*calls)
        assert len(requests(air)) == 2
    serve(air, server.base_url, key=KEY)
    answers = batch(max_calls=2).ask(*calls)
    assert [type(answer) for answer in answers] == [Reply, Reply, ModelFailed]
    assert answers[2].kind == "capped"


TEXT = st.text(max_size=40)
KEYS = ("response", "body", "choices", "message", "tool_calls", "error", "code", "status_code", "usage", "function")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "arguments", "content"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(["response", "error"]), JSON), st.binary(max_size=20))
def test_no_line_is_a_crash(tmp_path: Path, line: dict[str, Any], rest: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(json.dumps(line | {"custom_id": "a"}).encode() + b"\n" + rest)
    try:
        answers = read_answers(path)
        assert set(answers) == {"a"}
        if isinstance(found := answers["a"], dict):
            read_answer(found, Move)
    except BatchFileError as error:
        assert "line " in str(error)
