"""The first hour of a newcomer: mistakes that once ended in a traceback, a hang or a contradiction, through the command
line. Each ends in time, with one sentence that names what is to be fixed, and with its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scale_task import HEAD, edit, write

from tunesmith.graph import tune
from tunesmith.kernels.spec.task import TaskError

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path, device: Any) -> Path:
    write(tmp_path)
    return tmp_path


def sentence(done: subprocess.CompletedProcess[str], code: int) -> str:
    """What a command that failed said last, which is one sentence."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tunesmith: ") and last.endswith((".", "?"))
    return last


AT_LOAD = [
    ("task.toml", 'dtype = "int32", value = "n"', 'dtype = "int32", value = "2**40"', "int32 holds"),
    ("task.toml", '"ceil_div(n, 64)"', '"10**18"', "must be a whole number from 1 to 2147483647"),
    ("task.toml", "rtol = 1e-5", "rtol = inf", "an infinite tolerance accepts every result"),
    ("task.toml", "rtol = 1e-5", "rtol = 1.5", "accepts a result of zeros"),
    ("template.toml", "GROUP * ITEMS <= 256", "GROUP * ITEMS", "constraint 1: `GROUP * ITEMS` is not a condition"),
    ("template.toml", "GROUP * ITEMS <= 256", "GROUP // (ITEMS - 1) > 1", "modulo by zero (GROUP=16, ITEMS=1)"),
    ("template.toml", "ceil_div(n, GROUP * ITEMS)", "10**18", "no feasible configuration"),
    ("task.toml", "[[workloads]]", "[[worklodas]]", "unknown key 'worklodas'; did you mean 'workloads'?"),
]


@pytest.mark.parametrize(("file", "old", "new", "wanted"), AT_LOAD, ids=[mistake[2] for mistake in AT_LOAD])
def test_what_was_accepted_and_failed_later_is_found_at_load(
    folder: Path, here: Command, file: str, old: str, new: str, wanted: str
) -> None:
    edit(folder, file, old, new)
    assert wanted in sentence(here("space", folder), 2)


def test_names_that_a_macro_takes_from_the_source_are_found_at_load(folder: Path, here: Command) -> None:
    for name, wanted in (("for", "reserved word"), ("SPARE", "neither the source nor the launch uses it")):
        write(folder)
        edit(
            folder, "template.toml", "values = [1, 4] }", f"values = [1, 4] }}, {{ name = '{name}', values = [1, 2] }}"
        )
        assert wanted in sentence(here("space", folder), 2)


REFERENCES = [
    ("time.sleep(10000)", "the reference scale has not returned for 2 s"),
    ("sys.exit(1)", "the reference scale ends the process that calls it (the process ended with code 1)"),
    ("os.kill(os.getpid(), 11)", "(the process ended by signal 11 (SIGSEGV))"),
    ("return {'out': factor * x * np.nan}", "the reference scale returns nan at out[0]"),
    ("return {'out': x + 1j}", "the reference scale returns complex numbers for out"),
    ("return {'out': np.random.rand(n)}", "the reference scale gives two different results for out"),
    ("x *= factor; return {'out': x}", "the reference scale writes its argument x"),
]


@pytest.mark.parametrize(("body", "wanted"), REFERENCES, ids=[body for body, _ in REFERENCES])
def test_check_names_the_reference_and_not_the_kernel(folder: Path, here: Command, body: str, wanted: str) -> None:
    write(folder, body)
    done = here("check", folder, "--source", folder / "baseline.cl", "--reference-deadline", 2)
    assert wanted in sentence(done, 2)


@pytest.mark.usefixtures("ray_cluster")
def test_a_reference_that_hangs_ends_tune(folder: Path, here: Command) -> None:
    write(folder, "time.sleep(10000)")
    run = ("tune", folder, "--run-dir", folder / "run", "--evaluations", 4, "--reference-deadline", 2)
    assert "the reference scale has not returned for 2 s" in sentence(here(*run), 2)


def test_nothing_is_begun_for_a_reference_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.actors import ray_cluster as cluster

    write(folder, "return {'out': factor * x * np.nan}")
    monkeypatch.setattr(cluster, "cluster", lambda **_: pytest.fail("a cluster was started"))
    with pytest.raises(TaskError, match="the reference scale returns nan at out"):
        tune(folder / "task.toml", run_dir=folder / "run", evaluations=1, backend="opencl")
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_a_reference_that_hangs_ends_bench_and_keeps_no_other_tuning_waiting(
    folder: Path, command: Command, environment: dict[str, str]
) -> None:
    other = folder / "other"
    other.mkdir()
    write(other, f"open({str(other / 'called')!r}, 'w').close(); time.sleep(10000)")
    told = "the reference scale has not returned for 2 s"
    assert told in sentence(command("bench", other, "--reference-deadline", 2), 2)
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


def test_what_a_reference_prints_does_not_disturb_json(folder: Path, command: Command) -> None:
    write(folder, "print('hello from the reference'); return {'out': factor * x}")
    wrong = folder / "wrong.cl"
    wrong.write_text((folder / "baseline.cl").read_text().replace("factor *", "factor +"))
    done = command("check", folder, "--source", wrong, "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["reason"] == "mismatch"
    assert "hello from the reference" in done.stderr


@pytest.mark.slow
def test_a_default_that_does_not_compile_ends_the_run_at_once(folder: Path, command: Command) -> None:
    (folder / "template.cl").write_text(HEAD + "{ int a = GROUP + ITEMS; undefined(a) }\n")
    message = sentence(command("tune", folder, "--run-dir", folder / "run", "--evaluations", 100), 2)
    assert "does not compile with its default configuration (GROUP=16, ITEMS=1): error: " in message
    assert "undefined" in message


def test_space_says_which_held_out_shapes_a_launch_does_not_divide(folder: Path, here: Command) -> None:
    edit(folder, "template.toml", "ceil_div(n, GROUP * ITEMS)", "n / (GROUP * ITEMS)")
    done = here("space", folder)
    assert done.returncode == 0
    assert (
        "On the held-out workload 1001: none of them is feasible, such as GROUP=16, ITEMS=1: grid.x is 62.5625"
        in " ".join(done.stdout.split())
    )


def test_a_full_standard_output_is_a_sentence(environment: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tunesmith.cli.main", "tasks"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "tunesmith: Standard output cannot be written: No space left on device.\n",
    )


def test_what_nobody_expected_is_a_sentence_and_a_file(environment: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import sys\nfrom tunesmith.cli import main\nimport tunesmith.cli.commands.tasks as tasks\n"
        "def broken(): raise RuntimeError('std::bad_cast')\ntasks.library_tasks = broken\n"
        "try:\n    main.main(['tasks'])\nexcept SystemExit as ended:\n    print(ended.code)\n"
        "print('-----', file=sys.stderr)\n"
        "sys.argv[1:] = ['--debug', 'tasks']\nmain.main()"
    )
    variables = environment | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    told, shown = done.stderr.split("-----\n")
    assert done.stdout == "70\n" and "Traceback" not in told
    assert told.startswith("tunesmith: This is a bug in Tunesmith: RuntimeError: std::bad_cast. Details are in ")
    (log,) = [path for path in tmp_path.glob("tunesmith-crash-*.log") if str(path) in told]
    assert "in broken" in log.read_text()
    assert done.returncode == 70 and "Traceback" in shown
