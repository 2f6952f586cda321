"""Answers of programs, and of OpenAI's Responses API."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Behaviour, FakeOpenAI
from opened_models import KEY, Move, Opened, call, kinds

from tunesmith.graph.models.opening import destination
from tunesmith.graph.settings import make_settings
from tunesmith.hw.errors import TunesmithError

PROGRAM = """
import json, os, sys
prompt = sys.stdin.read()
assert "You tune kernels." in prompt and '"factor"' in prompt, prompt
print("I thought about it.")
seen = sorted(set(os.environ) & {"OPENAI_API_KEY", "HOME"})
print(json.dumps({"name": f"{len(os.listdir())} files, {seen}", "factor": 8}))
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """The name of a model that is a Python program."""

    def made(text: str) -> str:
        (tmp_path / "agent.py").write_text(text)
        return f"command:{sys.executable} '{tmp_path / 'agent.py'}'"

    return made


def test_a_program_in_an_empty_folder_has_no_key(open_run: Any, program: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = open_run(model=program(PROGRAM))
    value = run.reply().value
    assert isinstance(value, Move) and (value.name, value.factor) == ("0 files, ['HOME']", 8)
    account = run.account
    assert account.calls == 1 and account.where.startswith("command:") and account.prompt_tokens > 0
    # It is in the journal, and not asked for again.
    assert open_run(model=program("raise SystemExit(3)")).reply().value == value
    monkeypatch.delenv("OPENAI_API_KEY")
    said = destination(make_settings(task="scale_add", model=f"command:{sys.executable}"))
    assert (
        said is not None and said.endswith(f"are given to command:{sys.executable}") and KEY not in os.environ.values()
    )


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "import sys; print('no credit', file=sys.stderr); sys.exit(3)",
            "server_error",
            "ended with code 3: no credit",
        ),
        ("print('I would rather not.')", "unstructured", "does not fit the schema"),
    ],
)
def test_a_program_that_gives_no_answer(open_run: Any, program: Any, text: str, kind: str, said: str) -> None:
    begun = time.monotonic()
    failed = open_run(model=program(text), model_timeout=1).failure()
    assert failed.kind == kind and said in failed.detail and time.monotonic() - begun < 60


def test_children_of_a_program_end_with_it(open_run: Any, program: Callable[[str], str], tmp_path: Path) -> None:
    begun = f"open({str(tmp_path / 'begun')!r}, 'w').write(str(child.pid))"
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    text = f"import subprocess, sys, time; child = {child}; {begun}; time.sleep(100)"
    failed = open_run(model=program(text), model_timeout=1).failure()
    assert failed.kind == "timeout" and "gave no answer within 1 s" in failed.detail
    process, deadline = Path("/proc", (tmp_path / "begun").read_text()), time.monotonic() + 30
    # One that has ended and is not collected has no command line any more.
    with suppress(OSError):
        while (process / "cmdline").read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_program_may_play_one_role_and_a_server_the_others(live: Any, server: FakeOpenAI, program: Any) -> None:
    run = live(model_for={"template": program(PROGRAM)})
    assert kinds(run.ask(call("a"), call("b", role="template"))) == ["ok", "ok"]
    assert len(server.requests) == 1
    where = destination(run.settings) or ""
    assert "(tester), with the key" in where and "are given to command:" in where


@pytest.mark.parametrize("model", ["command:", "command:no-such-agent --print", "command:'open", "command:./agent.sh"])
def test_a_program_that_is_not_there_is_a_mistake(open_run: Any, model: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "agent.sh").touch(mode=0o755)  # which the empty folder does not have
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TunesmithError, match="--model: "):
        open_run(model=model)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_the_responses_api(live: Callable[..., Opened], server: FakeOpenAI, method: str) -> None:
    text = json.dumps({"name": "unroll", "factor": 2})
    said = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
    output = {**said, "content": [{"type": "output_text", "text": text, "annotations": []}]}
    if method == "function_calling":
        output = {"type": "function_call", "id": "f", "call_id": "c", "name": "Move", "arguments": text}
    usage = {"input_tokens": 90, "output_tokens": 9, "total_tokens": 99, "input_tokens_details": {"cached_tokens": 50}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    body = {"id": "r", "object": "response", "created_at": 1, "model": "tester", "status": "completed", "error": None}
    body |= {"incomplete_details": None, "output": [output], "usage": usage, "parallel_tool_calls": True, "tools": []}
    server.next(Behaviour(raw=json.dumps(body).encode()))
    run = live(model_api="responses", model_method=method)
    assert run.reply().value == Move(name="unroll", factor=2)
    (seen,) = server.requests
    assert seen.path == "/v1/responses" and seen.body["max_output_tokens"] == 16384 and "max_tokens" not in seen.body
    assert (run.account.prompt_tokens, run.account.completion_tokens) == (90, 9)
    cut = {**body, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    server.next(Behaviour(raw=json.dumps(cut).encode()))
    assert run.failure(call("more")).kind == "truncated"
