"""Caps on calls, tokens and money hold whatever happens, kills included; what was spent is told truly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_openai import FakeOpenAI, answer, closed, hang, raw, slow, status
from opened_models import KEY, Opened, call

from tunesmith.graph.context import Context
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models import ModelFailed, Reply, Waiting
from tunesmith.graph.models.opening import models_summary
from tunesmith.graph.roles.planner import calls_left

Live = Callable[..., Opened]

ASK = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from opened_models import call
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.opening import open_models
from tunesmith.graph.settings import make_settings
folder = Path(sys.argv[1])
settings = make_settings(task="x", model="tester", base_url=sys.argv[2], model_concurrency=2)
with Journal(folder, create=True) as journal:
    models = open_models(settings, journal, folder, lambda progress: None)
    print("ready", flush=True)
    for first in range(0, 12, 3):
        models.ask_all([call(f"moves-{n}", str(n)) for n in range(first, first + 3)])
"""


def account(run: Opened) -> dict[str, Any]:
    found = models_summary(run.settings, run.journal)
    assert found is not None
    return found


def kinds(answers: list[Reply | ModelFailed]) -> list[str]:
    return [getattr(answer, "kind", "ok") for answer in answers]


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text("[models]\ntester = { input = 1.0, cached_input = 0.5, output = 10.0 }\n")
    return str(path)


def test_calls(live: Live, server: FakeOpenAI) -> None:
    run = live(max_calls=3)
    assert kinds(run.ask(*(call(f"m{n}") for n in range(5)))) == ["ok"] * 3 + ["capped"] * 2
    assert len(server.requests) == 3
    assert kinds(live(max_calls=3).ask(call("late"))) == ["capped"], "the cap is of the run, not of the session"
    assert any("--max-calls 3" in line for line in run.said)


def test_the_second_try_for_a_wrong_answer_counts(live: Live, server: FakeOpenAI) -> None:
    server.next(answer("prose"))
    assert kinds(live(max_calls=1).ask(call())) == ["capped"] and len(server.requests) == 1


def test_a_cap_stops_the_retries(live: Live, server: FakeOpenAI) -> None:
    server.next(*[closed()] * 5)
    assert kinds(live(max_calls=2, model_retries=4).ask(call())) == ["capped"] and len(server.requests) == 2


def left(run: Opened) -> int | None:
    """What rules that plan calls take to be left of --max-calls."""
    shared = SimpleNamespace(settings=run.settings, journal=run.journal, log=RunLog(run.journal))
    return calls_left(cast(Context, shared))


def test_a_plan_by_rules_counts_what_the_cap_counts(live: Live, server: FakeOpenAI) -> None:
    server.next(*[status(429)] * 5)
    run = live(max_calls=5, model_retries=4)
    assert kinds(run.ask(call())) == ["rate_limited"] and len(server.requests) == 5
    assert left(run) == left(live(max_calls=5)) == 5, "what a server rejected costs nothing"
    server.next(closed())
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
    spent = account(run)
    assert spent["prompt_tokens"] + spent["completion_tokens"] <= 3000
    assert spent["calls"] == len(server.requests) > 3, "the estimate gives way to what was used"


def test_money(live: Live, server: FakeOpenAI, prices: str) -> None:
    run = live(max_cost=0.02, answer_tokens=1000, prices=prices, model_concurrency=8)
    answers = run.ask(*(call(f"m{n}", "x" * 4000) for n in range(30)))
    assert 1 <= kinds(answers).count("ok") < 30 and set(kinds(answers)) == {"ok", "capped"}
    spent = account(run)
    assert 0 < spent["cost"] <= 0.02
    assert server.most_at_once == 1, "together they might cost more than is left"
    expected = spent["prompt_tokens"] / 1e6 * 1.0 + spent["completion_tokens"] / 1e6 * 10.0
    assert spent["cost"] == pytest.approx(expected)


def test_what_may_have_been_worked_on_is_counted(live: Live, server: FakeOpenAI, prices: str) -> None:
    server.next(hang(20), closed(), closed())
    run = live(max_calls=2, model_timeout=3.0, model_retries=1, prices=prices)
    assert kinds(run.ask(call())) == ["unreachable"]
    spent = account(run)
    assert spent["calls"] == spent["unaccounted"] == 2 and spent["cost"] > 0
    assert kinds(run.ask(call("more"))) == ["capped"] and len(server.requests) == 2


def test_a_server_that_tells_no_usage(live: Live, server: FakeOpenAI) -> None:
    server.next(answer({"name": "unroll", "factor": 4}, usage=False))
    run = live()
    usage = run.reply().usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert account(run)["unaccounted"] == 1


@pytest.mark.parametrize("told", ["prompt_tokens", "completion_tokens"])
def test_a_server_that_tells_half_of_the_usage(live: Live, server: FakeOpenAI, told: str) -> None:
    (missing,) = {"prompt_tokens", "completion_tokens"} - {told}
    text = json.dumps({"name": "unroll", "factor": 4})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    server.next(raw(json.dumps({"choices": [choice], "usage": {told: 7}}).encode()))
    run = live()
    run.reply()
    spent = account(run)
    assert spent[told] == 7 and spent[missing] >= len(text) // 4 and spent["unaccounted"] == 1


def test_the_account_by_role_and_model(live: Live, server: FakeOpenAI, prices: str) -> None:
    run = live(model_for={"template": "other"}, prices=prices)
    server.answers = lambda seen: {"name": "x", "factor": 1}
    run.ask(call("a"), call("b", "other text"), call("c", role="template"))
    found = account(run)
    assert found["calls"] == 3 and found["cost"] is None, "a sum with an unknown part is unknown"
    plan, template = found["rows"]
    assert (plan["role"], plan["model"], plan["calls"]) == ("plan", "tester", 2) and plan["cost"] > 0
    assert (template["role"], template["model"], template["cost"]) == ("template", "other", None)
    assert found["where"] == server.base_url.split("/")[2] and found["transport"] == "live"
    assert plan["prompt_tokens"] == sum(
        event["usage"]["prompt_tokens"] for event in run.events("model_call") if event["role"] == "plan"
    )


class Killed(Exception):
    """The end of the process, for tests: nothing catches it."""


def test_ended_after_any_entry_of_the_journal(
    open_run: Live, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends when an entry is on disk and nothing after it has happened, once for every entry."""
    append, left = Journal.append, [0]

    def append_and_end(self: Journal, *arguments: Any) -> int:
        sequence = append(self, *arguments)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return sequence

    monkeypatch.setattr(Journal, "append", append_and_end)
    settings = {"model": "tester", "base_url": server.base_url, "model_concurrency": 1}
    calls = [call("a", "1"), call("b", "2"), call("c", "3")]

    def begin(folder: str, after: int) -> Opened:
        left[0] = 0
        server.requests.clear()
        server.next(answer("prose") if after % 2 else answer({"name": "first", "factor": 2}))
        run = open_run(folder, **settings)
        left[0] = after
        return run

    finished = False
    for after in range(1, 15):
        run = begin(f"run-{after}", after)
        try:
            run.ask(*calls)
            finished = True
        except Killed:
            time.sleep(0.05)  # what was sent arrives
        left[0] = 0
        run = open_run(f"run-{after}", **settings)
        assert kinds(run.ask(*calls)) == ["ok"] * 3
        ended = [event["id"] for event in run.events("model_call")]
        assert len(ended) == len(set(ended)), f"paid twice, ended after entry {after}"
        assert len(server.requests) <= account(run)["calls"] <= len(ended) + 1, f"ended after entry {after}"
    assert finished, "not every entry was tried"


@pytest.mark.slow
def test_killed_again_and_again_no_answer_is_paid_twice(
    live: Live, server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 4
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = lambda seen: slow({"name": "x", "factor": 1}, 0.05)
    command = [sys.executable, "-c", ASK, str(tmp_path / "run"), server.base_url, str(Path(__file__).parent)]
    for number in range(kills + 1):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        if number < kills:
            # In the middle of a call: after the next request has arrived, before its answer is out.
            seen, deadline = len(server.requests), time.monotonic() + 20
            while len(server.requests) <= seen and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.02 * (number % 4))
            process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        assert process.returncode == (-signal.SIGKILL if number < kills else 0), err
    run = live()
    answered = [event["id"] for event in run.events("model_call") if event["status"] == "ok"]
    assert len(answered) == len(set(answered)) == 12
    asked = Counter(seen.body["messages"][-1]["content"] for seen in server.requests)
    again = {prompt: count for prompt, count in asked.items() if count > 1}
    assert sum(asked.values()) - 12 <= 2 * kills, f"more than what was under way was asked again: {again}"
    assert sum(asked.values()) > 12, "no call was under way at any kill: the test shows nothing"
    found = account(run)
    assert found["calls"] >= len(server.requests), "what was under way is counted"
    assert found["calls"] - 12 == found["unaccounted"] <= 2 * kills
    recorded = (run.folder / "transcripts" / "answers.jsonl").read_text().splitlines()
    assert len({json.loads(line)["custom_id"] for line in recorded}) == len(recorded) == 12
