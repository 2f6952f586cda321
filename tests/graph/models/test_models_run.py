"""Models in a whole run: from the command line to the report, over kills and long waits. The device is simulated; the
planner asks a model before it plans by its rules."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_service import serve
from fake_openai import FakeOpenAI, answer, hang, status
from journal_rows import rows
from opened_models import KEY, Move
from simulated_pool import SimulatedPool

from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_WAITING
from tunesmith.cli.main import main
from tunesmith.graph import resume, tune
from tunesmith.graph.context import Context
from tunesmith.graph.models import Message, ModelCall, ModelFailed, Models, Waiting
from tunesmith.graph.roles import Role, load_roles
from tunesmith.graph.roles.planner import Planner
from tunesmith.graph.state import State

TASK = str(Path(__file__).resolve().parent.parent.parent / "data" / "scale_add" / "task.toml")


class AskingPlanner:
    """Asks two questions, the second about the answer to the first, journals what it heard, and plans by rules."""

    name = "plan"

    def __call__(self, state: State, context: Context) -> State:
        stage = f"round-{state.get('round', 0) + 1}"
        models = context.models
        if models is not None:
            context.once("heard", stage, lambda: {"kinds": self._hear(models, stage)})
        return ByRules(Planner())(state, context)

    def _hear(self, models: Models, stage: str) -> list[str]:
        asked = [ModelCall("plan", stage, name, (Message("user", f"{stage} {name}"),), Move) for name in ("a", "b")]
        heard = models.ask_all(asked)
        more = models.ask_all([ModelCall("plan", stage, "c", (Message("user", repr(heard[0])),), Move)])
        return [answer.kind if isinstance(answer, ModelFailed) else "ok" for answer in [*heard, *more]]


class ByRules:
    """A role that is left to its rules: here the planner alone has a model."""

    def __init__(self, role: Role) -> None:
        self.name, self._role = role.name, role

    def __call__(self, state: State, context: Context) -> State:
        models, context.models = context.models, None
        try:
            return self._role(state, context)
        finally:
            context.models = models


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch, device: Any, tmp_path: Path) -> Iterator[None]:
    @contextmanager
    def no_cluster() -> Iterator[Any]:
        yield SimpleNamespace(cpus=2, gpus=0, attached=False)

    def roles(*_: Any, **__: Any) -> dict[str, Any]:
        own = load_roles()
        wrapped = {name: ByRules(role) for name, role in own.items() if name != "approve"}
        return own | wrapped | {"plan": AskingPlanner()}

    monkeypatch.setattr("tunesmith.actors.ray_cluster.cluster", no_cluster)
    monkeypatch.setattr("tunesmith.actors.pool.pool.Pool", SimulatedPool)
    monkeypatch.setattr(SimulatedPool, "measured", [], raising=False)
    monkeypatch.setattr("tunesmith.graph.roles.arms.load_roles", roles)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield


OPTIONS = ("--backend", "opencl", "--strategy", "random", "--evaluations", 6, "--rounds", 2)


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int) and "Traceback" not in err
        return ended.value.code, out, err

    return run


def heard(folder: Path) -> list[list[str]]:
    return [row.data["data"]["kinds"] for row in rows(folder, "kept") if row.data["name"] == "heard"]


def test_from_the_command_line_to_the_report(command_line: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prices = tmp_path / "prices.toml"
    prices.write_text("[models]\ntester = { input = 1, output = 2 }\n")
    server.next(status(500), answer(f"prose, and a key: {KEY}"))
    code, out, err = command_line(
        "tune",
        TASK,
        *OPTIONS,
        "--model",
        "tester",
        "--base-url",
        server.base_url,
        "--prices",
        prices,
        "--max-cost",
        5,
        "--run-dir",
        folder,
    )
    assert code == EXIT_DONE, err
    lines = err.splitlines()
    told = next(i for i, line in enumerate(lines) if "kernel sources, compiler messages and measurements go to" in line)
    assert server.base_url.split("/")[2] in lines[told] and "OPENAI_API_KEY" in lines[told]
    assert told < next(i for i, line in enumerate(lines) if "asking tester" in line), "before the first call"
    summary = json.loads((folder / "summary.json").read_text())
    models = summary["models"]
    assert models["calls"] == 7 and models["failed"] == 0 and models["cost"] > 0
    assert models["failures"] == {}, "the prose was paid for, but the question got its answer"
    assert [row["role"] for row in models["rows"]] == ["plan"] and models["rows"][0]["calls"] == 7
    assert f"{models['calls']} calls" in out and f"${models['cost']:.4f}" in out
    report = (folder / "report.html").read_text()
    assert f"${models['cost']:.4f}" in report and "tester" in report and models["where"] in report
    assert heard(folder) == [["ok"] * 3] * 2
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in out + err


def test_a_cap_ends_the_calls_and_not_the_run(server: FakeOpenAI, tmp_path: Path) -> None:
    result = tune(
        TASK,
        run_dir=tmp_path / "run",
        backend="opencl",
        strategy="random",
        evaluations=6,
        model="tester",
        base_url=server.base_url,
        max_calls=4,
    )
    assert result.valid and len(server.requests) == 4
    assert heard(tmp_path / "run") == [["ok"] * 3, ["ok", "capped", "capped"]]
    assert result.summary["models"]["failures"] == {"capped": 2}


def test_without_a_model_nothing_of_it_is_there(tmp_path: Path) -> None:
    result = tune(TASK, run_dir=tmp_path / "run", backend="opencl", strategy="random", evaluations=4, rounds=1)
    assert result.summary["models"] is None and not (tmp_path / "run" / "transcripts").exists()
    assert 'id="models"' not in (tmp_path / "run" / "report.html").read_text()


def test_batches_until_the_run_is_done(command_line: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    folder, air = tmp_path / "run", tmp_path / "air"
    code, out, err = command_line(
        "tune", TASK, *OPTIONS, "--model", f"batch:{air}", "--batch-model", "tester", "--run-dir", folder
    )
    waits = 0
    while code == EXIT_WAITING:
        assert out == "" and f"tunesmith resume {folder}" in err.splitlines()[-1]
        assert str(air / "requests.jsonl") in err and str(air / "answers.jsonl") in err
        waits += 1
        before = SimpleNamespace(measured=len(SimulatedPool.measured))
        code, out, err = command_line("resume", folder)
        assert code == EXIT_WAITING and len(SimulatedPool.measured) == before.measured, (
            "without answers nothing goes on"
        )
        assert serve(air, server.base_url, key=KEY, append=bool(waits % 2)) == (2 if waits % 2 else 1)
        code, out, err = command_line("resume", folder)
    assert code == EXIT_DONE, err
    assert waits == 4, "two batches in each of two rounds"
    assert len(server.requests) == 6, "no request was written again after its answer"
    assert heard(folder) == [["ok"] * 3] * 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["models"]["calls"] == 6 and summary["models"]["transport"] == "batch"
    assert [row.stage for row in rows(folder, "plan")] == ["round-1", "round-2"]


def test_ctrl_c_while_the_server_thinks(command_line: Any, server: FakeOpenAI, tmp_path: Path) -> None:
    server.next(*[hang(60)] * 2)

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while len(server.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "run"
    helper = threading.Thread(target=interrupt)
    helper.start()
    started = time.monotonic()
    code, out, err = command_line(
        "tune", TASK, *OPTIONS, "--model", "tester", "--base-url", server.base_url, "--run-dir", folder
    )
    helper.join()
    assert code == EXIT_INTERRUPTED and out == "" and f"tunesmith resume {folder}" in err
    assert time.monotonic() - started < 20, "nobody waits for the server"
    assert resume(folder).valid
    assert heard(folder) == [["ok"] * 3] * 2


def test_waiting_as_json(command_line: Any, tmp_path: Path) -> None:
    code, out, _ = command_line(
        "tune", TASK, *OPTIONS, "--model", f"batch:{tmp_path / 'air'}", "--run-dir", tmp_path / "run", "--json"
    )
    shown = json.loads(out)
    assert code == EXIT_WAITING and "requests.jsonl" in shown["waiting"] and shown["run_dir"] == str(tmp_path / "run")


def test_a_cut_answer_file_stops_with_a_sentence(command_line: Any, tmp_path: Path) -> None:
    air = tmp_path / "air"
    with pytest.raises(Waiting):
        tune(TASK, run_dir=tmp_path / "run", backend="opencl", model=f"batch:{air}", evaluations=4)
    (air / "answers.jsonl").write_text('{"custom_id": "round-1.pl')
    code, _, err = command_line("resume", tmp_path / "run")
    assert code == EXIT_MISTAKE and "answers.jsonl, line 1: the line is cut short" in err.splitlines()[-1]


def test_a_run_is_repeated_from_its_recording(server: FakeOpenAI, tmp_path: Path) -> None:
    server.next(answer("prose"), status(400, error_code="model_not_found"))
    options: dict[str, Any] = {"backend": "opencl", "strategy": "random", "evaluations": 6, "seed": 3}
    first = tune(TASK, run_dir=tmp_path / "one", model="tester", base_url=server.base_url, **options)
    count = len(server.requests)
    again = tune(TASK, run_dir=tmp_path / "two", model=f"replay:{tmp_path / 'one'}", replay_exact=True, **options)
    assert len(server.requests) == count
    assert heard(tmp_path / "two") == heard(tmp_path / "one")
    assert again.summary["general"] == first.summary["general"]
    same = ("calls", "failures", "prompt_tokens", "completion_tokens")
    assert {key: again.summary["models"][key] for key in same} == {key: first.summary["models"][key] for key in same}


def test_mistakes_leave_no_run_behind(command_line: Any, tmp_path: Path) -> None:
    for options, said in (
        (("--model", "tester", "--max-cost", "1"), "no price is known"),
        (("--model", "tester", "--key-env", "NO_SUCH"), "NO_SUCH"),
        (("--model", "tester", "--model-for", "plan"), "ROLE=NAME"),
        (("--model", "tester", "--model-option", "temperature"), "FIELD=JSON"),
        (("--model", f"replay:{tmp_path}"), "no recording"),
    ):
        code, _, err = command_line("tune", TASK, *options, "--run-dir", tmp_path / "run")
        assert code == EXIT_MISTAKE and said in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def test_a_finished_run_needs_no_key(server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tune(
        TASK,
        run_dir=tmp_path / "run",
        backend="opencl",
        evaluations=4,
        rounds=1,
        strategy="random",
        model="tester",
        base_url=server.base_url,
        key_env="OPENAI_API_KEY",
    )
    monkeypatch.delenv("OPENAI_API_KEY")
    again = resume(tmp_path / "run")
    assert again.summary["models"] == first.summary["models"]
