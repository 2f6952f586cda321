"""What every transport must do alike: live, by batch files in both dialects, and from a recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from batch_service import serve
from fake_openai import FakeOpenAI, answer, refusal, status, truncated
from opened_models import KEY, Move, Opened, call

from tunesmith.graph.models import ModelCall, ModelFailed, Reply, Waiting
from tunesmith.graph.models.recorded import read_answers, read_requests

Answers = list[Reply | ModelFailed]


class Way:
    """One way to get answers of a server; `ask` goes on until they are there."""

    def __init__(self, name: str, open_run: Callable[..., Opened], server: FakeOpenAI, folder: Path) -> None:
        self.name, self.server = name, server
        self._open, self._folder, self._number = open_run, folder, 0
        self.last: Opened

    def ask(self, *calls: ModelCall) -> Answers:
        if self.name == "live":
            return self._ask("run", {"model": "tester", "base_url": self.server.base_url}, *calls)
        if self.name == "replay":
            self._number += 1
            recorded = f"recorded-{self._number}"
            self._ask(recorded, {"model": "tester", "base_url": self.server.base_url}, *calls)
            before = len(self.server.requests)
            answers = self._ask("run", {"model": f"replay:{self._folder / recorded}"}, *calls)
            assert len(self.server.requests) == before, "a replay asks nobody"
            return answers
        for _ in range(5):
            try:
                return self._ask("run", {"model": f"batch:{self._folder / 'air'}", "batch_model": "tester"}, *calls)
            except Waiting as waiting:
                assert "tunesmith resume" in str(waiting)
                style = self.name.removeprefix("batch-")
                assert serve(self._folder / "air", self.server.base_url, key=KEY, style=style) > 0
        raise AssertionError("the batch never ends")

    def _ask(self, folder: str, settings: dict[str, object], *calls: ModelCall) -> Answers:
        self.last = self._open(folder, **settings, model_retries=0)
        return self.last.ask(*calls)


@pytest.fixture(params=["live", "batch-openai", "batch-vllm", "replay"])
def way(request: pytest.FixtureRequest, open_run: Callable[..., Opened], server: FakeOpenAI, tmp_path: Path) -> Way:
    return Way(request.param, open_run, server, tmp_path)


def test_an_answer_is_a_value_of_the_schema(way: Way) -> None:
    (reply,) = way.ask(call())
    assert isinstance(reply, Reply)
    assert reply.value == Move(name="unroll", factor=4) and reply.model == "tester"
    assert reply.usage.prompt_tokens > 0 and reply.usage.completion_tokens > 0
    (ended,) = way.last.events("model_call")
    assert ended["model"] == "tester" and ended["status"] == "ok" and ended["text"] == reply.text


def test_answers_come_in_the_order_of_the_calls(way: Way) -> None:
    way.server.answers = lambda seen: {"name": seen.body["messages"][-1]["content"], "factor": 1}
    answers = way.ask(*(call(f"moves-{text}", text) for text in "abcdef"))
    assert [reply.value.name for reply in answers if isinstance(reply, Reply)] == list("abcdef")  # type: ignore[attr-defined]


def test_what_is_known_is_not_asked_again(way: Way) -> None:
    first = way.ask(call())
    count = len(way.server.requests)
    assert way.last.ask(call(), call()) == first * 2 and len(way.server.requests) == count
    assert len(way.last.events("model_call")) == 1


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (refusal(), "refused"),
        (truncated('{"na'), "truncated"),
        (status(500), "server_error"),
        (status(429), "rate_limited"),
    ],
)
def test_failures_keep_their_kind(way: Way, behaviour: object, kind: str) -> None:
    way.server.next(behaviour)  # type: ignore[arg-type]
    failed, reply = way.ask(call("first", "1")) + way.ask(call("second", "2"))
    assert isinstance(failed, ModelFailed) and failed.kind == kind, failed
    assert isinstance(reply, Reply)


def test_a_wrong_answer_gets_one_more_try(way: Way) -> None:
    way.server.next(answer("a poem"))
    (reply,) = way.ask(call())
    assert isinstance(reply, Reply) and len(way.last.events("model_call")) == 2


def test_every_run_leaves_a_recording_that_repeats_it(way: Way, open_run: Callable[..., Opened]) -> None:
    way.server.next(refusal(), answer("a poem"))
    calls = [call("first", "1"), call("second", "2"), call("third", "3")]
    answers = [way.ask(one)[0] for one in calls]
    count = len(way.server.requests)
    again = open_run("again", model=f"replay:{way.last.folder}", replay_exact=True)
    assert again.ask(*calls) == answers
    assert len(way.server.requests) == count
    first, second = (folder / "transcripts" for folder in (way.last.folder, again.folder))
    assert read_answers(first / "answers.jsonl") == read_answers(second / "answers.jsonl")
    asked, repeated = (read_requests(folder / "requests.jsonl") for folder in (first, second))
    assert asked.keys() == repeated.keys()
    for name in asked:
        for part in ("model", "messages"):
            assert asked[name][part] == repeated[name][part]
