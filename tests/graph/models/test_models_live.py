"""A real HTTP server, well and badly behaved: each behaviour is handled, bounded, and never leaks the key."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_openai import CLOSED, HANG, METHODS, Behaviour, FakeOpenAI, answer, status
from opened_models import KEY, Move, Opened, call, kinds

from tunesmith.graph.models.calls import Reply

Live = Callable[..., Opened]


def test_what_is_sent_is_what_is_recorded(live: Live, server: FakeOpenAI) -> None:
    run = live(model_option={"temperature": 0.2, "reasoning_effort": "low"})
    run.reply()
    recorded = json.loads((run.folder / "transcripts" / "requests.jsonl").read_text())
    assert recorded["url"] == "/v1/chat/completions" == server.requests[0].path
    body = server.requests[0].body
    assert body == recorded["body"] and (body["temperature"], body["reasoning_effort"]) == (0.2, "low")
    assert body["max_tokens"] == 16384 and "max_completion_tokens" not in body
    assert body["messages"][-1] == {"role": "user", "content": "What next?"}


def test_calls_go_out_together_and_come_back_in_order(live: Live, server: FakeOpenAI) -> None:
    def by_prompt(seen: Any) -> Any:
        number = int(seen.body["messages"][-1]["content"])
        return answer({"name": f"move-{number}", "factor": number + 1}, delay=0.05 * (6 - number))

    server.answers = by_prompt
    run = live(model_concurrency=3)
    answers = run.ask(*(call(f"moves-{number}", str(number)) for number in range(6)))
    assert [answer.value.name for answer in answers if isinstance(answer, Reply)] == [f"move-{n}" for n in range(6)]
    assert server.most_at_once == 3


def test_a_wrong_key_ends_it_at_once(live: Live, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-wrong-8472GHJ")
    run = live(key_env="OTHER_KEY")
    failed = run.failure()
    assert failed.kind == "unauthorised" and "Incorrect API key" in failed.detail
    assert run.failure(call("more")).kind == "unauthorised"
    assert len(server.requests) == 1, "nobody goes on knocking with a key that is not taken"
    assert "sk-wrong-8472GHJ" not in run.everything() + repr(failed), "the server's answer repeats the key"
    monkeypatch.setenv("OTHER_KEY", KEY)
    live(key_env="OTHER_KEY").reply()  # a corrected key is tried


@pytest.mark.parametrize(
    ("behaviour", "kind", "requests", "said"),
    [
        (status(429, "slow down"), "rate_limited", 2, "slow down"),
        (status(429, "no money", error_code="insufficient_quota"), "rate_limited", 1, "no money"),
        (status(404, "no\r\x1b[2Jsuch\nmodel", error_code="model_not_found"), "server_error", 1, "no [2Jsuch model"),
        (status(400, "too long", error_code="context_length_exceeded"), "server_error", 1, "too long"),
        (status(307, headers={"Location": "http://127.0.0.1:9/v1"}), "server_error", 1, "--base-url"),
        (CLOSED, "unreachable", 2, "closed the connection"),
        (Behaviour(raw=b"<html>It works!</html>"), "server_error", 1, "not a chat completion"),
        (answer("", finish="content_filter"), "refused", 1, "filter"),
        (HANG, "timeout", 2, "no answer within 0.5 s"),
        # A byte now and then defeats any timeout of the HTTP library.
        (Behaviour(drip=5), "timeout", 1, "no answer within 0.5 s"),
    ],
)
def test_failures_are_typed_and_bounded(
    live: Live,
    server: FakeOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: Behaviour,
    kind: str,
    requests: int,
    said: str,
) -> None:
    monkeypatch.setattr("tunesmith.graph.models.chat.GRACE_SECONDS", 0.2)
    server.next(*[behaviour] * 20)
    hangs = kind == "timeout"
    run = live(model_retries=4, model_timeout=0.5) if hangs else live(model_retries=1)
    failed = run.failure()
    assert failed.kind == kind and failed.detail.endswith(".") and len(server.requests) == requests
    assert any(said in line for line in run.said), "the user is told"
    assert all(line.isprintable() for line in run.said) and KEY not in run.everything()
    served = requests if hangs or behaviour in (CLOSED,) or behaviour.code == 200 else 0
    assert run.account.calls == served, "the server may have worked on it, and count it"


@pytest.mark.parametrize(
    ("behaviour", "said", "calls"),
    [(status(429, "slow down", headers={"Retry-After": "60"}), "slow down", 0), (HANG, "No answer had come", 1)],
)
def test_nothing_is_waited_for_beyond_the_time_limit(
    live: Live, server: FakeOpenAI, behaviour: Behaviour, said: str, calls: int
) -> None:
    server.next(behaviour)
    run = live(time_limit=1.5)
    started = time.monotonic()
    failed = run.failure()
    assert failed.kind == "out_of_time" and said in failed.detail and "time limit" in failed.detail
    assert len(server.requests) == 1 and time.monotonic() - started < 10
    assert run.account.failures == {"out_of_time": 1}
    assert run.account.calls == run.account.unaccounted == calls, "the server may have worked on it"
    assert kinds(run.ask(call("later"), call("last"))) == ["out_of_time"] * 2 and len(server.requests) == 1
    live(time_limit=60.0).reply()  # with more time it is asked again


def test_no_turn_is_waited_for_beyond_the_time_limit(live: Live, server: FakeOpenAI) -> None:
    run = live(time_limit=1.5, requests_per_minute=1)
    started = time.monotonic()
    assert sorted(kinds(run.ask(call("first", "1"), call("second", "2")))) == ["ok", "out_of_time"]
    assert len(server.requests) == 1 and time.monotonic() - started < 15


def test_nobody_is_there(open_run: Live) -> None:
    run = open_run(model="tester", base_url="http://127.0.0.1:9/v1", model_retries=1)
    failed = run.failure()
    assert failed.kind == "unreachable" and "127.0.0.1:9 cannot be reached" in failed.detail
    assert run.account.calls == 0, "nobody worked on them"


@pytest.mark.parametrize("text", ['{"name": "unroll", "factor": 400}', ""])
def test_a_wrong_answer_is_shown_to_the_model_once(live: Live, server: FakeOpenAI, text: str) -> None:
    server.next(answer(text))
    run = live()
    reply = run.reply()
    first, second = server.requests
    assert second.body["messages"][: len(first.body["messages"])] == first.body["messages"]
    shown, told = second.body["messages"][-2:]
    assert shown == {"role": "assistant", "content": text or "(nothing)"}
    assert "cannot be used" in told["content"] and ("64" in told["content"]) == ("400" in text)
    assert live().reply() == reply and len(server.requests) == 2, "both are in the journal"


def test_two_wrong_answers_are_enough(live: Live, server: FakeOpenAI) -> None:
    server.next(*[answer("I would rather not say it in JSON.")] * 9)
    failed = live().failure()
    assert failed.kind == "unstructured" and failed.text == "I would rather not say it in JSON."
    assert len(server.requests) == 2
    assert live().failure() == failed and len(server.requests) == 2, "it was paid for: it is not asked again"


@pytest.mark.parametrize("only", METHODS)
def test_auto_finds_the_method_that_a_server_takes(live: Live, server: FakeOpenAI, only: str) -> None:
    server.accepts = (only,)
    assert live().reply().value == Move(name="unroll", factor=4)
    tried = [seen.method for seen in server.requests]
    assert tried == list(METHODS[: METHODS.index(only) + 1])
    live().reply(call("more"))
    assert [seen.method for seen in server.requests[len(tried) :]] == [only], "remembered, also after a resume"


@pytest.mark.parametrize(
    ("method", "said", "requests"),
    [("auto", f"--model-method {', '.join(METHODS)}: ", 3), ("json_schema", "--model-method json_schema: ", 1)],
)
def test_a_server_that_does_not_take_the_method(
    live: Live, server: FakeOpenAI, method: str, said: str, requests: int
) -> None:
    server.accepts = ()
    failed = live(model_method=method).failure()
    assert said in failed.detail and "Unsupported parameter" in failed.detail and len(server.requests) == requests


def test_a_key_in_an_answer_is_hidden(live: Live, server: FakeOpenAI) -> None:
    server.answers = {"Move": {"name": f"echo {KEY}", "factor": 1}}
    run = live()
    assert run.reply().value == Move(name="echo [key]", factor=1)
    assert KEY not in run.everything()


def test_tracing_by_the_environment_sends_nothing_elsewhere(
    live: Live, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_core.tracers.langchain import wait_for_all_tracers
    from langsmith.utils import get_env_var

    with socket.create_server(("127.0.0.1", 0)) as tracer:
        tracer.setblocking(False)
        monkeypatch.setenv("LANGSMITH_TRACING", "true")
        monkeypatch.setenv("LANGSMITH_ENDPOINT", f"http://127.0.0.1:{tracer.getsockname()[1]}")
        monkeypatch.setenv("LANGSMITH_API_KEY", "x")
        get_env_var.cache_clear()
        try:
            live().reply()
            wait_for_all_tracers()
            with pytest.raises(BlockingIOError):  # nobody has called
                tracer.accept()
        finally:
            get_env_var.cache_clear()
