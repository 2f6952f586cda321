"""Replays: offline, deterministic, and honest about what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, status
from opened_models import Move, Opened, call, kinds

from tunesmith.hw.errors import TunesmithError


@pytest.fixture
def replay(
    live: Callable[..., Opened], open_run: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Opened]:
    """Opens the recording of two calls."""
    run = live()
    run.ask(call("moves", "The baseline takes 12.5 us.\nWhat next?"), call("seeds", "Seeds?"))
    monkeypatch.delenv("OPENAI_API_KEY")
    return lambda **values: open_run("replayed", **({"model": f"replay:{run.folder}"} | values))


def test_another_measurement_gets_the_same_answer_and_a_note(replay: Any) -> None:
    run, asked = replay(), call("moves", "The baseline takes 13.1 us.\nWhat next?")
    assert run.reply(asked).value == Move(name="unroll", factor=4)
    (event,) = run.events("model_call")
    assert event["note"] == "round-1.plan.moves was recorded with another prompt" and event["note"] in run.said
    with pytest.raises(TunesmithError, match=r"no answer to round-1\.plan\.other; it has: .*plan\.moves"):
        run.ask(call("other"))


def test_exactly_means_exactly(replay: Any) -> None:
    with pytest.raises(TunesmithError, match="was recorded with another prompt; leave --replay-exact out"):
        replay(replay_exact=True).ask(call("moves", "The baseline takes 13.1 us.\nWhat next?"))


def test_failures_are_replayed_without_caps_or_waits(live: Any, open_run: Any, server: FakeOpenAI) -> None:
    server.next(status(503), status(503))
    first = live(model_retries=1, max_calls=1)
    answers = [first.ask(call(name))[0] for name in ("a", "b", "c")]
    assert kinds(answers) == ["server_error", "ok", "capped"]
    again = open_run("again", model=f"replay:{first.folder}")
    assert [again.ask(call(name))[0] for name in ("a", "b", "c")] == answers


def test_a_recording_is_whole_after_a_kill(live: Any, open_run: Any) -> None:
    """Killed between the journal and the file, or in the middle of a line."""
    run = live()
    reply = run.reply()
    transcripts = run.folder / "transcripts"
    (transcripts / "answers.jsonl").write_text('{"custom_id": "round-1.pl')
    (transcripts / "requests.jsonl").unlink()
    live()
    assert open_run("again", model=f"replay:{run.folder}", replay_exact=True).reply() == reply
    assert len((transcripts / "requests.jsonl").read_text().splitlines()) == 1


def test_a_replay_reckons_with_the_recorded_model(open_run: Any, live: Any, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\ntester = { input = 10, output = 20 }\n")
    first = live(prices=str(prices))
    first.reply()
    assert first.account.cost
    again = open_run("again", model=f"replay:{first.folder}", prices=str(prices), max_cost=1e-9)
    again.reply()
    assert again.account.cost == first.account.cost, "a replay costs nothing, so caps are nothing to it"
