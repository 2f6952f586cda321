"""Every mistake of the user's is one sentence on standard error and exit code 2, never a traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import SimulatedPool, simulate_device

from tunesmith.actors.pool.pool import EvaluationRequest
from tunesmith.cli.app import EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_NOTHING, EXIT_UNMEASURED
from tunesmith.cli.main import main
from tunesmith.graph.journal.events import Noted
from tunesmith.graph.journal.store import Journal
from tunesmith.kernels.outcome import Evaluation, WrongResult

DATA = Path(__file__).resolve().parent.parent / "data"
Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail; gives its sentence. `early`: before anything is said about progress."""

    def run(*arguments: object, early: bool = True) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert ended.value.code == EXIT_MISTAKE, err
        assert out == "" and "Traceback" not in err
        lines = err.splitlines()
        assert [line.startswith("tunesmith: ") for line in lines].count(True) == 1, err
        assert lines[-1].startswith("tunesmith: ") and lines[-1].endswith((".", "?")), err
        assert not early or len(lines) == 1, err
        return lines[-1].removeprefix("tunesmith: ")

    return run


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Path]:
    """A copy of scale_add whose files are edited: (file, old text, new text)."""

    def make(*edits: tuple[str, str, str]) -> Path:
        folder = tmp_path / "task"
        shutil.copytree(DATA / "scale_add", folder)
        for name, old, new in edits:
            text = (folder / name).read_text()
            assert old in text
            (folder / name).write_text(text.replace(old, new))
        return folder / "task.toml"

    return make


@pytest.mark.parametrize("objective", ["energy", "edp"])
def test_an_energy_objective_without_a_counter(
    fails: Fails, task: Callable[..., Path], tmp_path: Path, objective: str
) -> None:
    file = task()
    said = fails("tune", file, "--objective", objective, "--backend", "opencl", "--run-dir", tmp_path / "run")
    assert said.startswith(f"--objective {objective}: ") and "choose an NVIDIA GPU" in said
    assert not (tmp_path / "run").exists()
    assert "'time', 'energy' or 'edp'" in fails("tune", file, "--objective", "power")


@pytest.mark.parametrize("command", ["tune", "space"])
def test_an_unknown_task(fails: Fails, command: str) -> None:
    said = fails(command, "no_such_kernel")
    assert "no_such_kernel" in said and "silu_and_mul" in said


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (("task.toml", 'entry = "scale_add"', "entry = "), ["task.toml", "not valid TOML", "line"]),
        (("task.toml", 'shape = ["n"]', 'shape = ["m"]'), ["task.toml", "'m'"]),
        (("template.toml", "ITEMS > 1 or", "ITEM > 1 or"), ["ITEM", "constraint 1"]),
        (("task.toml", "n = 5000", "n = 0"), ["n = 0", "positive"]),
        (("task.toml", "n = 5000", "n = -16"), ["n = -16", "positive"]),
        (("task.toml", 'dtype = "float32"', 'dtype = "float31"'), ["float31", "float32"]),
        (("task.toml", '"reference.py:', '"missing.py:'), ["missing.py"]),
        (("task.toml", '"baseline.cl"', '"missing.cl"'), ["missing.cl"]),
        (("task.toml", "flops =", "flop ="), ["flop"]),
        (("template.toml", "default = 16", "default = 17"), ["17", "GROUP"]),
    ],
)
def test_a_task_that_makes_no_sense(fails: Fails, task: Any, edit: tuple[str, str, str], parts: list[str]) -> None:
    said = fails("tune", task(edit))
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--evaluations", "-1"], ["--evaluations", "-1"]),
        (["--evaluations", "0"], ["--evaluations", "0"]),
        (["--rounds", "0"], ["--rounds", "0"]),
        (["--seed", "-3"], ["--seed", "-3"]),
        (["--workers", "0"], ["--workers", "0"]),
        (["--backend", "metal"], ["--backend", "metal", "opencl"]),
        (["--strategy", "wishing"], ["--strategy", "wishing", "random"]),
        (["--time-limit", "soon"], ["--time-limit", "soon", "10m"]),
        (["--time-limit", "-5m"], ["--time-limit", "-5m"]),
        (["--time-limit", "0s"], ["--time-limit"]),
        (["--target", "abacus"], ["abacus", "sm_90"]),
    ],
)
def test_an_option_that_makes_no_sense(
    fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = fails("tune", DATA / "scale_add" / "task.toml", *options)
    assert all(part in said for part in parts), said
    assert list(tmp_path.iterdir()) == [], "nothing is begun"


def test_a_backend_the_task_has_no_sources_for(fails: Fails) -> None:
    said = fails("tune", DATA / "scale_add" / "task.toml", "--backend", "cuda")
    assert "no cuda sources" in said and "opencl" in said


def test_a_backend_that_is_not_here_says_what_to_install(fails: Fails) -> None:
    from tunesmith.hw.probe import probe

    if any(device.backend == "cuda" for device in probe().devices):
        pytest.skip("CUDA is here")
    assert "install" in fails("tune", "silu_and_mul", "--backend", "cuda")
    assert "--target" in fails("space", "silu_and_mul", "--backend", "cuda")


def test_a_run_dir_that_holds_a_run(fails: Fails, tmp_path: Path) -> None:
    with Journal(tmp_path, create=True) as journal:
        journal.append(Noted(role="plan", sentence="It has begun."))
    said = fails("tune", DATA / "scale_add" / "task.toml", "--run-dir", tmp_path)
    assert "tunesmith resume" in said


def test_a_run_dir_that_has_other_files(fails: Fails, tmp_path: Path, device: Any) -> None:
    (tmp_path / "thesis.tex").touch()
    said = fails("tune", DATA / "scale_add" / "task.toml", "--run-dir", tmp_path)
    assert "not empty" in said and [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_dir_that_cannot_be_made(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = fails("tune", DATA / "scale_add" / "task.toml", "--run-dir", tmp_path / "file" / "run")
    assert "cannot be made" in said and "--run-dir" in said


@pytest.mark.parametrize("name", ["file", "."])
def test_a_run_dir_where_nothing_can_be_written(fails: Fails, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    where = tmp_path / "file" if name == "file" else Path("/proc/sys")
    assert str(where) in fails("tune", DATA / "scale_add" / "task.toml", "--run-dir", where)


def test_a_comparison_of_what_a_constraint_excludes(fails: Fails, device: Any) -> None:
    said = fails("bench", DATA / "scale_add" / "task.toml", "--config", '{"ITEMS": 1, "UNROLL": 1}')
    assert "--config" in said and "not feasible on 16384" in said and "There is no loop to unroll" in said


def test_a_source_to_compare_with_that_is_not_there(fails: Fails, tmp_path: Path, device: Any) -> None:
    assert "--vs: " in fails("bench", DATA / "scale_add" / "task.toml", "--vs", tmp_path / "nothing.cl")


def test_a_table_that_cannot_be_written(fails: Fails, device: Any) -> None:
    assert "--out: /proc/x.json" in fails("exhaust", DATA / "scale_add" / "task.toml", "--out", "/proc/x.json")


def test_prompts_of_no_role(fails: Fails) -> None:
    assert "--role: there is no 'x'" in fails("prompts", "gemm", "--role", "x")


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_folder_that_is_no_run(fails: Fails, tmp_path: Path, command: str) -> None:
    assert str(tmp_path) in fails(command, tmp_path)
    assert str(tmp_path / "nowhere") in fails(command, tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_report_of_a_run_that_has_not_ended(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").touch()
    assert "tunesmith resume" in fails("report", tmp_path)


def test_a_report_of_a_damaged_summary(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"task": ')
    assert "summary.json" in fails("report", tmp_path)


def test_a_journal_that_is_none(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("never a database" * 1000)
    assert "journal.sqlite" in fails("resume", tmp_path)


def test_an_unknown_workload(fails: Fails, device: Any) -> None:
    said = fails("space", DATA / "scale_add" / "task.toml", "--workload", "7x7")
    assert "7x7" in said and "16384" in said


@pytest.mark.parametrize("command", ["tune", "space"])
def test_a_constraint_that_leaves_no_point_is_named(
    fails: Fails, task: Any, tmp_path: Path, device: Any, command: str
) -> None:
    changed = task(("template.toml", '"ITEMS > 1 or UNROLL == 0"', '"GROUP * ITEMS > 100000"'))
    options = ["--run-dir", tmp_path / "run"] if command == "tune" else []
    said = fails(command, changed, *options)
    assert "GROUP * ITEMS > 100000" in said and "no feasible configuration" in said
    assert not (tmp_path / "run").exists()


def test_a_task_without_a_workload_for_the_device(fails: Fails, task: Any, tmp_path: Path, device: Any) -> None:
    changed = task(("task.toml", "sizes = { n = 16384 }", 'sizes = { n = 16384 }\ndevices = ["gpu"]'))
    assert "no workload to tune on a cpu" in fails("tune", changed, "--run-dir", tmp_path / "run")
    assert "no workload for a cpu" in fails("bench", changed)
    assert not (tmp_path / "run").exists()


def test_a_reference_that_raises(fails: Fails, task: Any, tmp_path: Path, device: Any, ray_cluster: Any) -> None:
    changed = task(("reference.py", "a * x + y", "a * x + z"))
    said = fails("tune", changed, "--run-dir", tmp_path / "run", early=False)
    assert "NameError: name 'z' is not defined" in said


def test_a_baseline_that_does_not_compile(fails: Fails, task: Any, device: Any) -> None:
    said = fails("space", task(("baseline.cl", "a * x[i] + y[i]", "a * x[i] + z[i]")))
    assert "baseline:4:" in said and "'z'" in said


@pytest.mark.slow
def test_a_baseline_that_does_not_compile_ends_tune(
    fails: Fails, task: Any, tmp_path: Path, device: Any, ray_cluster: Any
) -> None:
    changed = task(("baseline.cl", "a * x[i] + y[i]", "a * x[i] + z[i]"))
    said = fails("tune", changed, "--run-dir", tmp_path / "run", early=False)
    assert "baseline:4:" in said and "'z'" in said


def test_a_baseline_that_is_wrong(fails: Fails, task: Any, tmp_path: Path, device: Any, ray_cluster: Any) -> None:
    changed = task(("baseline.cl", "a * x[i] + y[i]", "a * x[i]"))
    said = fails("tune", changed, "--run-dir", tmp_path / "run", early=False)
    assert "baseline" in said and "out[" in said


def test_an_interruption_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tunesmith.cli.commands.tasks.library_tasks", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["tasks"])
    assert ended.value.code == EXIT_INTERRUPTED and capsys.readouterr().err == "\nInterrupted.\n"


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(environment: dict[str, str], closed: str) -> None:
    line = f'exec "$0" -m tunesmith.cli.main tasks --json {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stderr == "" and bool(done.stdout) == (" >&-" not in f" {closed}")


def nothing_valid(task: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said and left by a run of `task`, of which every configuration gives wrong results."""
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(task), "--evaluations", "3", "--rounds", "1", "--run-dir", str(folder)])
    out, err = capsys.readouterr()
    assert ended.value.code == EXIT_NOTHING
    assert "no valid configuration was found" in out and "wrong_result 3" in out and "Code:" not in out
    assert "Failed, wrong_result, such as GROUP=" in out and "wrong result in out: out[" in out
    assert "Traceback" not in err
    assert (folder / "report.html").is_file() and not (folder / "best").exists()


def test_nothing_valid_is_exit_code_3(
    task: Any, tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    nothing_valid(task(), tmp_path / "run", capsys)


def test_nothing_measured_is_exit_code_5(
    task: Any, tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate_device(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(task()), "--evaluations", "3", "--time-limit", "0.001s", "--run-dir", str(tmp_path / "run")])
    out, _ = capsys.readouterr()
    assert ended.value.code == EXIT_UNMEASURED
    assert "no configuration was measured" in out and "0 of 3 evaluations" in out and "ended by the time limit" in out


@pytest.mark.slow
def test_nothing_valid_on_the_device(
    task: Any, tmp_path: Path, device: Any, ray_cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_valid(task(("template.cl", "a * x[i] + y[i]", "a * x[i] - y[i]")), tmp_path / "run", capsys)


@pytest.mark.parametrize("command", ["space", "tune", "check"])
def test_without_a_device_only_the_tasks_own_backends_are_spoken_of(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    said = fails(command, DATA / "scale_add" / "task.toml")
    assert "has sources for opencl: the package pyopencl is not installed" in said and "tunesmith[opencl]" in said
    assert not any(word in said for word in ("NVIDIA", "NVML", "--target")) and ". " not in said, said


def test_without_a_device_for_cuda_the_way_without_one_is_told_once(
    fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    said = fails("space", "gemm")
    assert said.count("--target") == 1 and said.count("cuda13") == 1, said
