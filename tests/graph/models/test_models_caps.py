"""Caps on calls, tokens and money hold whatever happens, kills included; the account has all that was spent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fake_openai import CLOSED, Behaviour, FakeOpenAI, answer, status
from journal_rows import end_after
from opened_models import Opened, call, kinds

from tunesmith.graph.context import Context
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.roles.planner import calls_left

Live = Callable[..., Opened]


class Killed(Exception):
    """The end of the process."""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text("[models]\ntester = { input = 1.0, cached_input = 0.5, output = 10.0 }\n")
    return str(path)


def test_calls(live: Live, server: FakeOpenAI) -> None:
    run = live(max_calls=3)
    assert sorted(kinds(run.ask(*(call(f"m{n}") for n in range(5))))) == ["capped"] * 2 + ["ok"] * 3
    assert len(server.requests) == 3
    assert kinds(live(max_calls=3).ask(call("late"))) == ["capped"], "the cap is of the run, not of the session"
    assert any("--max-calls 3" in line for line in run.said)


@pytest.mark.parametrize("behaviour", [answer("prose"), CLOSED])
def test_a_second_try_counts(live: Live, server: FakeOpenAI, behaviour: Behaviour) -> None:
    """After a wrong answer, and after none."""
    server.next(behaviour)
    assert live(max_calls=1).failure().kind == "capped" and len(server.requests) == 1


def left(run: Opened) -> int | None:
    """What rules that plan calls take to be left of --max-calls."""
    shared = SimpleNamespace(settings=run.settings, journal=run.journal, log=RunLog(run.journal))
    return calls_left(cast(Context, shared))


def test_a_plan_by_rules_counts_what_the_cap_counts(live: Live, server: FakeOpenAI) -> None:
    server.next(*[status(429)] * 2)
    run = live(max_calls=5, model_retries=1)
    assert run.failure().kind == "rate_limited" and len(server.requests) == 2
    assert left(run) == left(live(max_calls=5)) == 5, "what a server rejected costs nothing"
    server.next(CLOSED)
    assert kinds(run.ask(*(call(f"m{n}", str(n)) for n in range(7)))).count("ok") == 4
    assert left(run) == left(live(max_calls=5)) == 0, "what may have been worked on counts"
    assert left(live(max_calls=9)) == 4, "what was capped does not"


def test_a_plan_by_rules_counts_what_is_under_way(open_run: Live, tmp_path: Path) -> None:
    def run() -> Opened:
        return open_run(model=f"batch:{tmp_path / 'air'}", max_calls=5)

    for _ in range(2):
        with pytest.raises(Waiting):
            run().ask(call("a", "1"), call("b", "2"))
        assert left(run()) == 3


def test_tokens(live: Live, server: FakeOpenAI) -> None:
    run = live(max_tokens=3000, answer_tokens=800)
    answers = run.ask(*(call(f"m{n}", "x" * 400) for n in range(30)))
    assert kinds(answers)[0] == "ok" and kinds(answers)[-1] == "capped"
    spent = run.account
    assert spent["prompt_tokens"] + spent["completion_tokens"] <= 3000
    assert spent["calls"] == len(server.requests) > 3, "the estimate gives way to what was used"


def test_money(live: Live, server: FakeOpenAI, prices: str) -> None:
    run = live(max_cost=0.02, answer_tokens=1000, prices=prices, model_concurrency=8)
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


def test_the_account_by_role_and_model(live: Live, server: FakeOpenAI, prices: str) -> None:
    run = live(model_for={"template": "other"}, prices=prices)
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
