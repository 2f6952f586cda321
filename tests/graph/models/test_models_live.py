"""A real HTTP server, well and badly behaved: each behaviour is handled, bounded, and never leaks the key. Caps on
calls, tokens and money hold whatever happens, kills included; the account has all that was spent."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fake_openai import CLOSED, HANG, METHODS, Behaviour, FakeOpenAI, answer, status
from journal_rows import end_after
from opened_models import KEY, Move, Opened, call, kinds

from tunesmith.graph.models.calls import Reply

Live = Callable[..., Opened]


def test_calls_go_out_together_and_come_back_in_order(live: Live, server: FakeOpenAI) -> None:
    def by_prompt(seen: Any) -> Any:
        number = int(seen.body["messages"][-1]["content"])
        return answer({"name": f"move-{number}", "factor": number + 1}, delay=0.05 * (6 - number))

    server.answers = by_prompt
    run = live(model_concurrency=3)
    answers = run.ask(*(call(f"moves-{number}", str(number)) for number in range(6)))
    assert [answer.value.name for answer in answers if isinstance(answer, Reply)] == [f"move-{n}" for n in range(6)]
    assert server.most_at_once == 3
    # What is sent is what is recorded.
    server.answers = {"Move": {"name": "unroll", "factor": 4}}
    run = live(folder="recorded", model_option={"temperature": 0.2, "reasoning_effort": "low"})
    run.reply()
    recorded, seen = json.loads((run.folder / "transcripts" / "requests.jsonl").read_text()), server.requests[-1]
    assert recorded["url"] == "/v1/chat/completions" == seen.path
    body = seen.body
    assert body == recorded["body"] and (body["temperature"], body["reasoning_effort"]) == (0.2, "low")
    assert body["max_tokens"] == 16384 and "max_completion_tokens" not in body
    assert body["messages"][-1] == {"role": "user", "content": "What next?"}


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
    live: Live, server: Any, monkeypatch: Any, behaviour: Any, kind: str, requests: int, said: str
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
def test_nothing_is_waited_for_beyond_the_limit(live: Live, server: Any, behaviour: Any, said: str, calls: int) -> None:
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


def test_nobody_is_there_and_a_key_in_an_answer_is_hidden(open_run: Live, live: Live, server: FakeOpenAI) -> None:
    run = open_run("nobody", model="tester", base_url="http://127.0.0.1:9/v1", model_retries=1)
    failed = run.failure()
    assert failed.kind == "unreachable" and "127.0.0.1:9 cannot be reached" in failed.detail
    assert run.account.calls == 0, "nobody worked on them"
    server.answers = {"Move": {"name": f"echo {KEY}", "factor": 1}}
    run = live()
    assert run.reply().value == Move(name="echo [key]", factor=1) and KEY not in run.everything()


@pytest.mark.parametrize("text", ['{"name": "unroll", "factor": 400}', ""])
def test_a_wrong_answer_is_shown_to_the_model_once_and_two_suffice(live: Live, server: FakeOpenAI, text: str) -> None:
    server.next(answer(text))
    run = live()
    reply = run.reply()
    first, second = server.requests
    assert second.body["messages"][: len(first.body["messages"])] == first.body["messages"]
    shown, told = second.body["messages"][-2:]
    assert shown == {"role": "assistant", "content": text or "(nothing)"}
    assert "cannot be used" in told["content"] and ("64" in told["content"]) == ("400" in text)
    assert live().reply() == reply and len(server.requests) == 2, "both are in the journal"
    server.next(*[answer("I would rather not say it in JSON.")] * 9)
    failed = run.failure(call("more"))
    assert failed.kind == "unstructured" and failed.text == "I would rather not say it in JSON."
    assert len(server.requests) == 4
    assert live().failure(call("more")) == failed and len(server.requests) == 4, "paid for, it is not asked again"


@pytest.mark.parametrize("only", METHODS)
def test_auto_finds_the_method_that_a_server_takes(live: Live, server: FakeOpenAI, only: str) -> None:
    server.accepts = (only,)
    assert live().reply().value == Move(name="unroll", factor=4)
    tried = [seen.method for seen in server.requests]
    assert tried == list(METHODS[: METHODS.index(only) + 1])
    live().reply(call("more"))
    assert [seen.method for seen in server.requests[len(tried) :]] == [only], "remembered, also after a resume"


def test_a_server_that_does_not_take_the_method(live: Live, server: FakeOpenAI) -> None:
    server.accepts = ()
    for method, said, requests in (("json_schema", "json_schema: ", 1), ("auto", f"{', '.join(METHODS)}: ", 1 + 3)):
        failed = live(model_method=method).failure(call(method))
        assert f"--model-method {said}" in failed.detail and "Unsupported parameter" in failed.detail
        assert len(server.requests) == requests


def test_tracing_by_the_environment_sends_nothing_elsewhere(live: Live, server: FakeOpenAI, monkeypatch: Any) -> None:
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


class Killed(Exception):
    """The end of the process."""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text("[models]\ntester = { input = 1.0, cached_input = 0.5, output = 10.0 }\n")
    return str(path)


def test_calls(live: Live, server: FakeOpenAI, prices: str) -> None:
    """A second try counts, after a wrong answer, and after none."""
    run = live(max_calls=3)
    assert sorted(kinds(run.ask(*(call(f"m{n}") for n in range(5))))) == ["capped"] * 2 + ["ok"] * 3
    assert len(server.requests) == 3
    assert kinds(live(max_calls=3).ask(call("late"))) == ["capped"], "the cap is of the run, not of the session"
    assert any("--max-calls 3" in line for line in run.said)
    for count, behaviour in enumerate((answer("prose"), CLOSED), 4):
        server.next(behaviour)
        assert live(max_calls=count).failure(call(f"again-{count}")).kind == "capped" and len(server.requests) == count
    run = live(folder="accounts", model_for={"template": "other"}, prices=prices)
    server.answers = lambda seen: {"name": "x", "factor": 1}
    run.ask(call("a"), call("b", "other text"), call("c", role="template"))
    found = run.account
    assert found["calls"] == 3 and found["cost"] is None, "a sum with an unknown part is unknown"
    plan, template = found["rows"]
    assert (plan["role"], plan["model"], plan["calls"]) == ("plan", "tester", 2) and plan["cost"] > 0
    assert (template["role"], template["model"], template["cost"]) == ("template", "other", None)
    assert found["where"] == server.base_url.split("/")[2] and found["transport"] == "live"
    assert plan["prompt_tokens"] == sum(
        event["usage"]["prompt_tokens"] for event in run.events("model_call") if event["role"] == "plan"
    )


def test_a_plan_by_rules_counts_what_the_cap_counts(live: Live, server: FakeOpenAI) -> None:
    server.next(*[status(429)] * 2)
    run = live(max_calls=5, model_retries=1)
    assert run.failure().kind == "rate_limited" and len(server.requests) == 2
    assert run.calls_left == live(max_calls=5).calls_left == 5, "what a server rejected costs nothing"
    server.next(CLOSED)
    assert kinds(run.ask(*(call(f"m{n}", str(n)) for n in range(7)))).count("ok") == 4
    assert run.calls_left == live(max_calls=5).calls_left == 0, "what may have been worked on counts"
    assert live(max_calls=9).calls_left == 4, "what was capped does not"


def test_tokens_and_money(live: Live, server: FakeOpenAI, prices: str) -> None:
    run = live(max_tokens=3000, answer_tokens=800)
    answers = run.ask(*(call(f"m{n}", "x" * 400) for n in range(30)))
    assert kinds(answers)[0] == "ok" and kinds(answers)[-1] == "capped"
    spent = run.account
    assert spent["prompt_tokens"] + spent["completion_tokens"] <= 3000
    assert spent["calls"] == len(server.requests) > 3, "the estimate gives way to what was used"
    server.most_at_once = 0
    run = live(folder="money", max_cost=0.02, answer_tokens=1000, prices=prices, model_concurrency=8)
    answers = run.ask(*(call(f"m{n}", "x" * 4000) for n in range(12)))
    assert 1 <= kinds(answers).count("ok") < 12 and set(kinds(answers)) == {"ok", "capped"}
    spent = run.account
    assert 0 < spent["cost"] <= 0.02
    assert server.most_at_once == 1, "together they might cost more than is left"
    expected = spent["prompt_tokens"] / 1e6 * 1.0 + spent["completion_tokens"] / 1e6 * 10.0
    assert spent["cost"] == pytest.approx(expected)


@pytest.mark.parametrize("told", [None, "prompt_tokens", "completion_tokens"])
def test_a_server_that_tells_not_all_of_the_usage(live: Live, server: FakeOpenAI, told: str | None) -> None:
    text = json.dumps({"name": "unroll", "factor": 4})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {} if told is None else {"usage": {told: 7}}
    server.next(Behaviour(raw=json.dumps({"choices": [choice]} | usage).encode()))
    run = live()
    run.reply()
    assert run.account.unaccounted == 1
    for part in ("prompt_tokens", "completion_tokens"):
        assert run.account[part] == 7 if part == told else run.account[part] >= len(text) // 4


def test_ended_after_any_entry(open_run: Live, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends when an entry is on disk and nothing after it has happened, once for every entry."""
    settings = {"model": "tester", "base_url": server.base_url, "model_concurrency": 1}
    calls = [call("a", "1"), call("b", "2")]
    for after in range(1, 9):
        server.requests.clear()
        server.next(answer("prose") if after % 2 else answer({"name": "first", "factor": 2}))
        run = open_run(f"run-{after}", **settings)
        with monkeypatch.context() as patch:
            end_after(patch, after, Killed)
            whole = 7 if after % 2 else 5
            with pytest.raises(Killed) if after <= whole else nullcontext():
                run.ask(*calls)
        time.sleep(0.05)  # what was sent arrives
        run = open_run(f"run-{after}", **settings)
        assert kinds(run.ask(*calls)) == ["ok"] * 2
        ended = [event["id"] for event in run.events("model_call")]
        assert len(ended) == len(set(ended)), f"paid twice, ended after entry {after}"
        assert len(server.requests) <= run.account.calls <= len(ended) + 1, f"ended after entry {after}"
