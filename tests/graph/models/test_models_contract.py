"""What every transport must do alike: live, by batch files in both dialects, and from a recording, which is offline,
deterministic, and honest about what differs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_openai import REFUSED, TRUNCATED, FakeOpenAI, answer, serve, status
from opened_models import Move, Opened, call, kinds

from tunesmith.graph.models.calls import ModelCall, ModelFailed, Reply, Waiting
from tunesmith.graph.models.recorded import read_answers, read_requests
from tunesmith.hw.errors import TunesmithError

Answers = list[Reply | ModelFailed]


class Way:
    """One way to get answers of a server; `ask` goes on until they are there."""

    def __init__(self, name: str, open_run: Callable[..., Opened], server: FakeOpenAI, folder: Path) -> None:
        self.name, self.server = name, server
        self._open, self._folder, self._number = open_run, folder, 0
        self.last: Opened

    def ask(self, *calls: ModelCall) -> Answers:
        live = {"model": "tester", "base_url": self.server.base_url}
        if self.name == "live":
            return self._ask("run", live, *calls)
        if self.name == "replay":
            self._number += 1
            recorded = f"recorded-{self._number}"
            self._ask(recorded, live, *calls)
            before = len(self.server.requests)
            answers = self._ask("run", {"model": f"replay:{self._folder / recorded}"}, *calls)
            assert len(self.server.requests) == before, "a replay asks nobody"
            return answers
        for _ in range(5):
            try:
                return self._ask("run", {"model": f"batch:{self._folder / 'air'}", "batch_model": "tester"}, *calls)
            except Waiting as waiting:
                assert "tunesmith resume" in str(waiting)
                assert serve(self._folder / "air", self.server, style=self.name.removeprefix("batch-")) > 0
        raise AssertionError("the batch never ends")

    def _ask(self, folder: str, settings: dict[str, object], *calls: ModelCall) -> Answers:
        self.last = self._open(folder, **settings, model_retries=0)
        return self.last.ask(*calls)


@pytest.fixture(params=["live", "batch-openai", "batch-vllm", "replay"])
def way(request: pytest.FixtureRequest, open_run: Callable[..., Opened], server: FakeOpenAI, tmp_path: Path) -> Way:
    return Way(request.param, open_run, server, tmp_path)


def test_answers_are_values_of_the_schema_in_the_order_of_the_calls_and_known_ones_not_asked_again(way: Way) -> None:
    way.server.answers = lambda seen: {"name": seen.body["messages"][-1]["content"], "factor": 1}
    calls = [call(f"moves-{text}", text) for text in "abcd"]
    replies = way.ask(*calls)
    assert [reply.value for reply in replies if isinstance(reply, Reply)] == [Move(name=n, factor=1) for n in "abcd"]
    for ended in way.last.events("model_call"):
        assert ended["model"] == "tester" and ended["status"] == "ok" and ended["usage"]["cost"] is None
        assert ended["usage"]["prompt_tokens"] > 0 and ended["usage"]["completion_tokens"] > 0
    count = len(way.server.requests)
    assert way.last.ask(*calls, calls[0]) == [*replies, replies[0]] and len(way.server.requests) == count
    assert len(way.last.events("model_call")) == 4


def test_failures_keep_their_kind_and_a_recording_repeats_the_run(way: Way, open_run: Callable[..., Opened]) -> None:
    """Also of a wrong answer, which gets one more try."""
    way.server.next(REFUSED, TRUNCATED, status(500), status(429), answer("a poem"))
    calls = [call(name, name) for name in "abcdef"]
    answers = [way.ask(one)[0] for one in calls]
    assert kinds(answers) == ["refused", "truncated", "server_error", "rate_limited", "ok", "ok"]
    count = len(way.server.requests)
    again = open_run("again", model=f"replay:{way.last.folder}", replay_exact=True)
    assert again.ask(*calls) == answers and len(way.server.requests) == count
    first, second = (folder / "transcripts" for folder in (way.last.folder, again.folder))
    assert read_answers(first / "answers.jsonl") == read_answers(second / "answers.jsonl")
    assert read_requests(first / "requests.jsonl") == read_requests(second / "requests.jsonl") or way.name == "live"
    assert len(read_requests(second / "requests.jsonl")) == len(calls) + 1


@pytest.fixture
def replay(
    live: Callable[..., Opened], open_run: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Opened]:
    """Opens the recording of two calls."""
    run = live()
    run.ask(call("moves", "The baseline takes 12.5 us.\nWhat next?"), call("seeds", "Seeds?"))
    monkeypatch.delenv("OPENAI_API_KEY")
    return lambda **values: open_run("replayed", **({"model": f"replay:{run.folder}"} | values))


def test_another_measurement_gets_the_same_answer_and_a_note_unless_it_must_be_exact(replay: Any) -> None:
    run, asked = replay(), call("moves", "The baseline takes 13.1 us.\nWhat next?")
    assert run.reply(asked).value == Move(name="unroll", factor=4)
    (event,) = run.events("model_call")
    assert event["note"] == "round-1.plan.moves was recorded with another prompt" and event["note"] in run.said
    with pytest.raises(TunesmithError, match=r"no answer to round-1\.plan\.other; it has: .*plan\.moves"):
        run.ask(call("other"))
    with pytest.raises(TunesmithError, match="was recorded with another prompt; leave --replay-exact out"):
        replay(replay_exact=True).ask(call("moves", "The baseline takes 12.9 us.\nWhat next?"))


def test_failures_are_replayed_without_caps_or_waits(live: Any, open_run: Any, server: Any, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\ntester = { input = 10, output = 20 }\n")
    server.next(status(503), status(503))
    first = live(model_retries=1, max_calls=1, prices=str(prices))
    answers = [first.ask(call(name))[0] for name in ("a", "b", "c")]
    assert kinds(answers) == ["server_error", "ok", "capped"] and first.account.cost
    again = open_run("again", model=f"replay:{first.folder}", prices=str(prices), max_cost=1e-9)
    assert [again.ask(call(name))[0] for name in ("a", "b", "c")] == answers
    assert again.account.cost == first.account.cost, "a replay costs nothing, so caps are nothing to it"


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
