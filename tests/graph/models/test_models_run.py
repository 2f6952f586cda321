"""Models in a whole run on a simulated device: from the command line to the report, over a server, batch files and a
recording, over interruptions and long waits. Mistakes in their settings are one sentence, before anything is begun; the
user is told where sources go."""

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_openai import HANG, FakeOpenAI, answer, serve, status
from journal_rows import rows
from model_runs import LIBRARY, RAW, plan, template
from opened_models import KEY
from simulated_pool import SCALE_ADD, SimulatedPool

from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_WAITING
from tunesmith.graph import resume, tune
from tunesmith.graph.history import open_store
from tunesmith.graph.journal.log import begun
from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.models.client import PACKAGED, load_prices, price_of
from tunesmith.graph.models.opening import check_models, destination
from tunesmith.graph.settings import Settings, make_settings
from tunesmith.graph.study.ablation import ablate
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo, Inventory
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target

pytestmark = pytest.mark.usefixtures("simulation")
OPTIONS: dict[str, Any] = {"backend": "opencl", "strategy": "random", "evaluations": 12, "rounds": 2, "seed": 5}
ARGUMENTS = tuple(text for name, value in OPTIONS.items() for text in (f"--{name}", value))


@pytest.fixture(autouse=True)
def answers(server: FakeOpenAI) -> None:
    server.answers = {"PlanAnswer": plan(), "TemplateAnswer": template()}


def ends(folder: Path) -> dict[str, str]:
    return {event.data["custom_id"]: event.data["status"] for event in rows(folder, "model_call")}


def test_from_the_command_line_to_the_report(here: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    folder, prices = tmp_path / "run", tmp_path / "prices.toml"
    prices.write_text("[models]\ntester = { input = 1, output = 2 }\n")
    server.next(status(500), answer(f"prose, and a key: {KEY}"))
    live = ("--model", "tester", "--base-url", server.base_url, "--prices", prices, "--max-cost", 5)
    done = here("tune", RAW, *ARGUMENTS, *live, "--run-dir", folder)
    assert done.returncode == EXIT_DONE, done.stderr
    out, err = done.stdout, done.stderr
    lines = err.splitlines()
    told = next(i for i, line in enumerate(lines) if "kernel sources, compiler messages and measurements go to" in line)
    assert server.base_url.split("/")[2] in lines[told] and "OPENAI_API_KEY" in lines[told]
    assert told < next(i for i, line in enumerate(lines) if "asking tester" in line), "before the first call"
    models = json.loads((folder / "summary.json").read_text())["models"]
    assert models["calls"] == len(server.requests) - 1 and models["failed"] == 0 and models["cost"] > 0
    assert models["failures"] == {}, "the prose was paid for, but the question got its answer"
    assert [row["role"] for row in models["rows"]] == ["plan", "template"]
    assert sum(row["calls"] for row in models["rows"]) == models["calls"]
    assert f"{models['calls']} calls" in out and f"${models['cost']:.4f}" in out
    report = (folder / "report.html").read_text()
    assert f"${models['cost']:.4f}" in report and "tester" in report and models["where"] in report
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in out + err


def test_a_cap_ends_the_calls_and_a_silent_server_does_not_outlast_the_limit(server: Any, tmp_path: Path) -> None:
    live: dict[str, Any] = {**OPTIONS, "model": "tester", "base_url": server.base_url}
    result = tune(RAW, run_dir=tmp_path / "capped", max_calls=3, **live)
    assert result.valid and len(server.requests) == 3 and result.summary["models"]["failures"].keys() == {"capped"}
    server.next(*[HANG] * 9)
    started = time.monotonic()
    result = tune(LIBRARY, run_dir=tmp_path / "silent", time_limit=2.0, **live)
    assert time.monotonic() - started < 40 and len(server.requests) == 3 + 1
    assert result.summary["models"]["failures"]["out_of_time"] >= 1
    assert any("The model gives no plan for round 1 (No answer had come" in note for note in result.summary["notes"])


def test_one_run_three_ways(server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = tune(RAW, run_dir=tmp_path / "live", model="tester", base_url=server.base_url, **OPTIONS)
    assert live.valid and set(ends(tmp_path / "live").values()) == {"ok"}, ends(tmp_path / "live")
    count = len(server.requests)
    air, waits, batch = tmp_path / "air", 0, None
    with pytest.raises(Waiting):
        tune(RAW, run_dir=tmp_path / "batch", model=f"batch:{air}", batch_model="tester", **OPTIONS)
    while batch is None:
        waits += 1
        serve(air, server, append=bool(waits % 2))
        with suppress(Waiting):
            batch = resume(tmp_path / "batch")
    assert 3 <= waits < 20 and len(server.requests) == 2 * count, "no request is written again after its answer"
    replay = tune(RAW, run_dir=tmp_path / "replay", model=f"replay:{tmp_path / 'live'}", replay_exact=True, **OPTIONS)
    assert len(server.requests) == 2 * count
    assert ends(tmp_path / "live") == ends(tmp_path / "batch") == ends(tmp_path / "replay")
    assert live.summary["general"] == batch.summary["general"] == replay.summary["general"]
    assert live.summary["models"]["calls"] == batch.summary["models"]["calls"] == count
    monkeypatch.delenv("OPENAI_API_KEY")
    assert resume(tmp_path / "live").summary["models"] == live.summary["models"], "a finished run needs no key"


def test_waiting_on_the_command_line(here: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    folder, air = tmp_path / "run", tmp_path / "air"
    done = here("tune", RAW, *ARGUMENTS, "--model", f"batch:{air}", "--run-dir", folder, "--json")
    shown = json.loads(done.stdout)
    assert done.returncode == EXIT_WAITING and "requests.jsonl" in shown["waiting"] and shown["run_dir"] == str(folder)
    before = len(rows(folder, "evaluation"))
    done = here("resume", folder)
    assert done.returncode == EXIT_WAITING and len(rows(folder, "evaluation")) == before
    assert done.stdout == "" and f"tunesmith resume {folder}" in done.stderr.splitlines()[-1]
    assert str(air / "requests.jsonl") in done.stderr and str(air / "answers.jsonl") in done.stderr
    (air / "answers.jsonl").write_text('{"custom_id": "round-1.pl')
    done = here("resume", folder)
    assert done.returncode == EXIT_MISTAKE and "answers.jsonl, line 1 cannot be used" in done.stderr.splitlines()[-1]


def test_ctrl_c_while_the_server_thinks(here: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    server.next(HANG)

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "run"
    helper = threading.Thread(target=interrupt)
    helper.start()
    started = time.monotonic()
    live = ("--model", "tester", "--base-url", server.base_url)
    done = here("tune", RAW, *ARGUMENTS, *live, "--run-dir", folder)
    helper.join()
    assert done.returncode == EXIT_INTERRUPTED and done.stdout == "" and f"tunesmith resume {folder}" in done.stderr
    assert time.monotonic() - started < 20, "nobody waits for the server"
    assert resume(folder).valid and set(ends(folder).values()) == {"ok"}


def test_a_replay_of_more_rounds_than_recorded_ends_with_what_it_found(server: FakeOpenAI, tmp_path: Path) -> None:
    tune(RAW, run_dir=tmp_path / "live", model="tester", base_url=server.base_url, **OPTIONS | {"rounds": 1})
    recorded = f"replay:{tmp_path / 'live'}"
    more = tune(RAW, run_dir=tmp_path / "more", model=recorded, **OPTIONS | {"rounds": 3})
    assert more.valid and more.summary.ended_by == "recording"
    assert any("has no answer to round-2.plan.plan" in note for note in more.summary.notes), more.summary.notes
    assert (tmp_path / "more" / "best").is_dir()
    answers = tmp_path / "live" / "transcripts" / "answers.jsonl"
    answers.write_text("".join(line for line in answers.open() if '"round-1.plan' not in line))
    with pytest.raises(TunesmithError, match=r"no answer to round-1\.plan\.plan"):
        tune(RAW, run_dir=tmp_path / "none", model=recorded, **OPTIONS)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(**values: Any) -> Settings:
    return make_settings(task="softmax", **values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "batch:"}, "--model: .*batch:DIR"),
        ({"model": "batch:file/air"}, "--model: the folder .*file/air cannot be created"),
        ({"model": "replay:nowhere"}, "--model replay: .*nowhere has no recording"),
        ({"model": "m", "base_url": "localhost:8000"}, "--base-url: 'localhost:8000' is not a URL"),
        ({"model": "m", "base_url": "https://me:secret@host/v1"}, "--base-url: a URL with a name or password"),
        ({"model": "m", "base_url": "https://host/v1?key=secret"}, "--base-url: nothing may follow"),
        ({"model": "m", "model_option": {"n_predict": -1}}, "--model-option: n_predict cannot .* --answer-tokens"),
        ({"model": "m", "max_cost": 1.0}, "--max-cost: no price is known for the model 'm'; name a file with --prices"),
        ({"model": "gpt-5", "model_for": {"plan": "m"}, "max_cost": 1.0}, "--max-cost: .*'m'"),
        ({"model": "batch:air", "max_cost": 1.0}, "--max-cost: .*'model'"),
        ({"model": "m", "max_cost": float("nan")}, "--max-cost: "),
        ({"model_for": {"plan": "m"}}, "--model-for: .*need a --model"),
        ({"model": "m", "prices": "none.toml"}, "--prices: .*none.toml cannot be read"),
    ],
)
def test_mistakes(values: dict[str, Any], said: str) -> None:
    Path("file").touch()
    with pytest.raises(TunesmithError, match=said) as raised:
        check_models(made(**values))
    assert str(raised.value).endswith(".") and "secret" not in str(raised.value)


def test_the_user_is_told_where_sources_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for values, said in (
        ({"model": "gpt-5"}, r"go to api\.openai\.com \(gpt-5\), with the key in OPENAI_API_KEY$"),
        ({"model": "q", "base_url": "http://gpu7:8000/v1"}, r"go to gpu7:8000 \(q\), .*; the line is not encrypted$"),
        ({"model": "q", "base_url": "http://127.0.0.1:1/v1"}, r"go to 127\.0\.0\.1:1 \(q\), with the key in \w+$"),
        ({"model": "a", "model_for": {"plan": "b"}}, r"\(a, b\)"),
        ({"model": "batch:air"}, r"written to /.*/air for a model to read; nothing is sent"),
    ):
        assert re.search(said, str(destination(made(**values))))
    assert destination(made()) is None
    monkeypatch.delenv("OPENAI_API_KEY")
    assert str(destination(made(model="q", base_url="http://localhost:11434/v1"))).endswith("without a key")
    with pytest.raises(TunesmithError, match="OPENAI_API_KEY has no key"):
        check_models(made(model="gpt-5"))


def test_the_packaged_prices_say_when_and_from_where_and_the_users_come_first(tmp_path: Path) -> None:
    text = PACKAGED.read_text()
    assert re.search(r"# Collected on \d{4}-\d{2}-\d{2}", text) and "https://" in text
    for name, price in load_prices(None).items():
        assert 0 < price.input < price.output < 1000, name
        assert price.cached_input is None or price.cached_input <= price.input
    own = tmp_path / "own.toml"
    own.write_text("\ufeff[models]\nmine = { input = 5, cached_input = 1, output = 2 }\n", encoding="utf-8")
    prices = load_prices(str(own))
    assert price_of(prices, "gpt-4o-2024-08-06") == prices["gpt-4o"], "a dated version costs as much"
    assert price_of(prices, "gpt-4o-audio-preview") is None
    assert prices["mine"].of(1_000_000, 0, cached=500_000) == 3.0 and prices["gpt-4o"].of(1_000_000, 0) == 2.5
    without = '[models]\n"a" = { input = 1 }'
    for text, said in (("[models", "write it as TOML"), ("[model]", "models"), (without, r"models\.a\.output")):
        own.write_text(text)
        with pytest.raises(TunesmithError, match=rf"{own}.*{said}.*\.$|{said}.*{own}.*\.$"):
            load_prices(str(own))


def test_what_changes_brought_to_other_kernels_is_told_in_prompts(
    server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a run by rules, in which vectors alone help, to a run of another task with a model."""
    live: dict[str, Any] = {**OPTIONS, "model": "tester", "base_url": server.base_url}
    roofs = Roofline(((1 << 20, 40e9),), {"float32": 1e12})
    monkeypatch.setenv("TUNESMITH_WISDOM", str(tmp_path / "wisdom.sqlite"))
    monkeypatch.setattr(SimulatedPool, "calibrate", lambda self: roofs)
    tune(LIBRARY, run_dir=tmp_path / "first", **live, wisdom=False)
    told = "What kinds of change brought in earlier runs"
    assert len(server.requests) > 2 and all(told not in seen.prompt for seen in server.requests)
    with monkeypatch.context() as other:
        other.setattr("simulated_pool.seconds", lambda config, _: 20e-6 / min(2, config.get("VEC", 1)))
        tune(RAW, run_dir=tmp_path / "by-rules", **OPTIONS | {"evaluations": 40})
    server.requests.clear()
    tune(LIBRARY, run_dir=tmp_path / "second", **live)
    for schema in ("PlanAnswer", "TemplateAnswer"):
        (prompt, *_) = [seen.prompt for seen in server.requests if seen.schema_name == schema]
        lines = prompt.partition(told)[2].partition("\n## ")[0].splitlines()[2:]
        assert lines[0] == "- vectors: 2.00 times as fast (median of 1 run(s), 1 kernel(s)) where memory bound"
        assert len(lines) > 2 and "raw_scale_add" not in prompt
        assert all(re.fullmatch(r"- [a-z ]+: 1.00 times .*|", line) for line in lines[1:]), lines
    kept = open_store().entries("scale_add")
    assert {one.bound for one in kept if one.changes} == {"memory"}
    assert any(one.changes.get("template branch", 0) > 1 for one in kept)


def test_an_ablation_compares_templates_by_authors_who_saw_the_kit_with_those_by_others(
    server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DeviceInfo("cuda", 0, "a test's GPU", resolve_target("h200"))
    monkeypatch.setattr("tunesmith.graph.roles.planner.examine", lambda *_: None)
    monkeypatch.setattr("tunesmith.graph.setup.inventory_for", lambda backend: Inventory((device,), ()))
    arms, folder = ["template", "template-without-kit"], tmp_path / "arms"
    task = SCALE_ADD.parents[2] / "raw" / "histogram"  # whose data are small
    live: dict[str, Any] = {"model": "tester", "base_url": server.base_url, "backend": "cuda", "repairs": 0}
    ((found, _),) = ablate([task], folder=folder, arms=arms, repeats=1, calls=2, **live).values()
    assert [one.arm for one in found] == arms
    prompts = [seen.prompt for seen in server.requests if seen.schema_name == "TemplateAnswer"]
    assert ["kit::over_row" in prompt for prompt in prompts] == [True, False]
    assert [begun(folder / f"{arm}-1").event.settings.kit for arm in arms] == [True, False]
    with pytest.raises(TunesmithError, match="there is no arm 'kit-without-kit'"):
        ablate([task], folder=tmp_path / "none", arms=["kit-without-kit"], **live)
