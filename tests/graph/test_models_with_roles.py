"""The roles with a model over a real server, over batch files and from a recording: one run, three ways, one end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from batch_service import serve
from fake_openai import FakeOpenAI, answer, hang, status, truncated
from model_runs import LIBRARY, RAW, entries, simulation  # noqa: F401
from scripted_models import explain, plan, template

from tunesmith.graph import resume, tune
from tunesmith.graph.models import Waiting
from tunesmith.hw.errors import TunesmithError

OPTIONS: dict[str, Any] = {"backend": "opencl", "strategy": "random", "evaluations": 12, "rounds": 2, "seed": 5}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeOpenAI() as made:
        made.answers = {"PlanAnswer": plan(), "TemplateAnswer": template(), "ExplainAnswer": explain()}
        yield made


def ends(folder: Path) -> dict[str, str]:
    return {event.data["custom_id"]: event.data["status"] for event in entries(folder, "model_call")}


def test_one_run_three_ways(server: FakeOpenAI, simulation: Any, tmp_path: Path) -> None:  # noqa: F811
    live = tune(RAW, run_dir=tmp_path / "live", model="tester", base_url=server.base_url, **OPTIONS)
    assert live.valid and set(ends(tmp_path / "live").values()) == {"ok"}, ends(tmp_path / "live")
    count = len(server.requests)
    air, waits = tmp_path / "air", 0
    try:
        batch = tune(RAW, run_dir=tmp_path / "batch", model=f"batch:{air}", batch_model="tester", **OPTIONS)
    except Waiting:
        batch = None
        while batch is None:
            waits += 1
            assert waits < 20
            serve(air, server.base_url)
            with suppress(Waiting):
                batch = resume(tmp_path / "batch")
    assert waits >= 3 and len(server.requests) == 2 * count
    replay = tune(RAW, run_dir=tmp_path / "replay", model=f"replay:{tmp_path / 'live'}", replay_exact=True, **OPTIONS)
    assert len(server.requests) == 2 * count
    assert ends(tmp_path / "live") == ends(tmp_path / "batch") == ends(tmp_path / "replay")
    assert live.summary["general"] == batch.summary["general"] == replay.summary["general"]
    assert live.summary["models"]["calls"] == batch.summary["models"]["calls"] == count


def test_a_silent_server_does_not_outlast_the_time_limit(server: FakeOpenAI, simulation: Any, tmp_path: Path) -> None:  # noqa: F811
    server.next(*[hang(100)] * 9)
    started = time.monotonic()
    options = {**OPTIONS, "time_limit": 8.0}
    result = tune(LIBRARY, run_dir=tmp_path / "run", model="tester", base_url=server.base_url, **options)
    assert time.monotonic() - started < 40 and len(server.requests) == 1
    assert result.summary["models"]["failures"]["out_of_time"] >= 1
    assert any("The model gives no plan for round 1 (No answer had come" in note for note in result.summary["notes"])


def test_every_misbehaviour_and_still_a_result(server: FakeOpenAI, simulation: Any, tmp_path: Path) -> None:  # noqa: F811
    server.next(status(500), answer("prose"), answer(plan()), truncated("{"), status(429))
    result = tune(RAW, run_dir=tmp_path / "run", model="tester", base_url=server.base_url, **OPTIONS)
    assert result.valid


def test_a_replay_of_more_rounds_than_recorded_ends_with_what_it_found(
    server: FakeOpenAI,
    simulation: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    tune(RAW, run_dir=tmp_path / "live", model="tester", base_url=server.base_url, **OPTIONS | {"rounds": 1})
    recorded = f"replay:{tmp_path / 'live'}"
    more = tune(RAW, run_dir=tmp_path / "more", model=recorded, **OPTIONS | {"rounds": 3})
    assert more.valid and more.summary.ended_by == "recording"
    assert any("has no answer to round-2.plan.plan" in note for note in more.summary.notes), more.summary.notes
    assert (tmp_path / "more" / "best").is_dir()
    again = resume(tmp_path / "more", rounds=1)
    assert again.valid and again.summary.ended_by == "recording"
    answers = tmp_path / "live" / "transcripts" / "answers.jsonl"
    answers.write_text("".join(line for line in answers.open() if '"round-1.plan' not in line))
    with pytest.raises(TunesmithError, match=r"no answer to round-1\.plan\.plan"):
        tune(RAW, run_dir=tmp_path / "none", model=recorded, **OPTIONS)
