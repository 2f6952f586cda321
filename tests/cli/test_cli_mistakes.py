"""Mistakes that need more than a changed file, and the ways in which a command ends. The others are rows of
test_mistakes_table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scale_task import write
from simulated_pool import SimulatedPool, simulate_device

from tunesmith.cli.app import EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_NOTHING, EXIT_UNMEASURED
from tunesmith.cli.main import main
from tunesmith.graph import tune
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import Evaluation, WrongResult
from tunesmith.kernels.spec.task import TaskError

DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.mark.parametrize("command", ["space", "tune", "check"])
def test_without_a_device_only_the_tasks_own_backends_are_spoken_of(
    here: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("pyopencl", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    for task, words in (
        (DATA / "scale_add", "has sources for opencl: the package pyopencl is not"),
        ("gemm", "cuda13"),
    ):
        done = here(command, task)
        others = () if task == "gemm" else ("NVIDIA", "NVML", "--target")
        assert done.returncode == EXIT_MISTAKE and done.stdout == ""
        assert words in done.stderr and not any(word in done.stderr for word in others), done.stderr


@pytest.fixture
def folder(tmp_path: Path, device: Any) -> Path:
    write(tmp_path)
    return tmp_path


def test_an_interruption_is_said_and_the_unexpected_is_a_sentence_and_a_file(
    here: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> None:
        raise ends[0]

    ends = [KeyboardInterrupt()]
    monkeypatch.setattr("tunesmith.cli.commands.tasks.library_tasks", broken)
    done = here("tasks")
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "\nInterrupted.\n")
    ends[0] = RuntimeError("std::bad_cast")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = here("tasks")
    told = "tunesmith: This is a bug in Tunesmith: RuntimeError: std::bad_cast. Details are in "
    assert done.returncode == 70 and done.stderr.startswith(told) and "Traceback" not in done.stderr
    (log,) = tmp_path.glob("tunesmith-crash-*.log")
    assert str(log) in done.stderr and "in broken" in log.read_text()
    done = here("--debug", "tasks")
    assert done.returncode == 70 and "Traceback" in done.stderr


def test_standard_streams_may_be_closed_or_full(environment: dict[str, str]) -> None:
    full = "tunesmith: Standard output cannot be used: No space left on device; name another.\n"
    for streams, code, said in ((">&-", 0, ""), ("<&- >&- 2>&-", 0, ""), (">/dev/full", 2, full)):
        line = f'exec "$0" -m tunesmith.cli.main tasks {streams}'
        done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_run_without_a_result_has_an_exit_code_and_a_report(
    tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch, here: Any
) -> None:
    """On a simulated device; what a real one says of a wrong kernel is tested with the pool."""

    def evaluate(_: SimulatedPool, request: EvaluationRequest) -> Evaluation:
        if not request.config:
            return measured(request)
        wrong = WrongResult("mismatch", "out", "out[0] is 1, not 2")
        return Evaluation(request.template.id, request.config, dict.fromkeys(request.workloads, wrong))

    simulate_device(monkeypatch)
    measured = SimulatedPool()._evaluate
    monkeypatch.setattr(SimulatedPool, "_evaluate", evaluate)
    nothing = ("no valid configuration was found", "wrong_result 3", "out[0] is 1, not 2")
    unmeasured = ("no configuration was measured", "0 of 3 evaluations", "ended by the time limit")
    for limit, code, words in (("1h", EXIT_NOTHING, nothing), ("0.001s", EXIT_UNMEASURED, unmeasured)):
        run = tmp_path / limit
        options = ["--evaluations", "3", "--rounds", "1", "--time-limit", limit, "--run-dir", run]
        done = here("tune", DATA / "scale_add" / "task.toml", *options)
        assert done.returncode == code and all(word in done.stdout for word in words) and "Code:" not in done.stdout
        assert "Traceback" not in done.stderr
        assert (run / "report.html").is_file() and not (run / "best").exists()


def test_nothing_is_begun_for_a_reference_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.actors import ray_cluster as cluster

    write(folder, "return {'out': factor * x * np.nan}")
    monkeypatch.setattr(cluster, "cluster", lambda **_: pytest.fail("a cluster was started"))
    with pytest.raises(TaskError, match="the reference scale returns nan at out"):
        tune(folder / "task.toml", run_dir=folder / "run", evaluations=1, backend="opencl")
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_a_reference_that_hangs_ends_bench_and_keeps_no_other_tuning_waiting(
    folder: Path, command: Any, environment: dict[str, str]
) -> None:
    other = folder / "other"
    other.mkdir()
    write(other, f"open({str(other / 'called')!r}, 'w').close(); time.sleep(10000)")
    told = "the reference scale has not returned for 2 s"
    done = command("bench", other, "--reference-deadline", 2)
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""
    (other / "called").unlink()
    program = [sys.executable, "-m", "tunesmith.cli.main"]
    arguments = ["tune", str(other), "--run-dir", str(other / "run"), "--reference-deadline", "1000"]
    nowhere = subprocess.DEVNULL
    hanging = subprocess.Popen([*program, *arguments], env=environment, stdout=nowhere, stderr=nowhere)
    try:
        while not (other / "called").exists():
            assert hanging.poll() is None
            time.sleep(0.05)
        done = command("tune", folder, "--run-dir", folder / "run", "--evaluations", 1, "--rounds", 1)
        assert done.returncode == 0, done.stderr
        assert "waiting for the device" not in done.stderr and hanging.poll() is None
    finally:
        hanging.terminate()
        hanging.wait()


def test_what_a_reference_prints_does_not_disturb_json(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(folder, "print('hello from the reference'); return {'out': factor * x}")
    wrong = folder / "wrong.cl"
    wrong.write_text((folder / "baseline.cl").read_text().replace("factor *", "factor +"))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(folder), "--source", str(wrong), "--json"])
    assert ended.value.code == 1 and json.loads(capfd.readouterr().out)["reason"] == "mismatch"
