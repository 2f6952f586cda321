"""Which launches compute-sanitizer sees; the candidates show on a GPU that it finds faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Candidate, types_key
from tunesmith.kernels.check.plan import plan
from tunesmith.kernels.check.sanitizer import (
    ERROR_EXIT_CODE,
    MAX_DERIVED_WORKLOADS,
    MAX_WORKLOAD_BYTES,
    SANITIZER_TOOLS,
    chosen_workloads,
    sanitize,
)
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.taskfile import load_task


def test_all_own_workloads_and_made_up_ones_of_all_sizes_and_types() -> None:
    task = load_task("softmax")
    every = [step.workload for step in plan(task, resolve_target("h200"), seed=0)]
    own = {one.name for one in every if one in task.workloads and task.bytes_of(one) <= MAX_WORKLOAD_BYTES}
    chosen = chosen_workloads(task, every)
    assert len({(one.name, types_key(one)) for one in chosen}) == len(chosen) == len(own) + MAX_DERIVED_WORKLOADS
    assert own <= {one.name for one in chosen}
    assert {types_key(one) for one in chosen} == {types_key(one) for one in every}
    made_up = [task.bytes_of(one) for one in chosen if one.name not in own]
    assert min(made_up) <= 100 and max(made_up) > 1e6
    assert len(chosen_workloads(task, every[:10])) == len({one.name for one in every[:10]})


LIMITS = resolve_target("h200")
TASK = load_task("softmax")
SUSPECTS = [(Candidate(TASK.sources("cuda").baseline.template, {}, {}), TASK.workloads[at : at + 1]) for at in (0, 1)]


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A shell script in the place of compute-sanitizer: `$done` is where it says how many launches were made, `$job`
    what it is given."""
    tool = folder / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\nfor last; do done="$job"; job="$last"; done\n{script}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_it_is_run_on_the_device_in_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each tool, on the smallest workloads first."""
    pretend(tmp_path, monkeypatch, f'cp "$job" {tmp_path}/ran.${{1#--tool=}}; printf 3 > "$done"')
    assert sanitize([(SUSPECTS[0][0], TASK.workloads[:3])], TASK, LIMITS, 3, 0) == [""]
    ran = {path.suffix[1:]: path.read_bytes() for path in tmp_path.glob("ran.*")}
    jobs, task, index, _ = pickle.loads(ran["memcheck"])
    assert index == 3 and set(ran) == set(SANITIZER_TOOLS)
    sizes = [task.bytes_of(workload) for _, workload in jobs]
    assert len(sizes) == 3 and sizes == sorted(sizes)


FOUND = f"echo '========= Oh' && exit {ERROR_EXIT_CODE}; echo 'another cannot be run'; exit 1"
LATE = 'printf 1 > "$done" || printf 3 > "$done"'
BROKEN = 'echo "no such tool" && exit 1; printf 3 > "$done"'


@pytest.mark.parametrize(
    ("tool", "script", "expected"),
    [
        *((tool, FOUND, f"{tool}: Oh") for tool in SANITIZER_TOOLS),
        ("racecheck", LATE, "compute-sanitizer: racecheck had no time for "),
        ("initcheck", BROKEN, "compute-sanitizer: initcheck could not be run: no such tool"),
    ],
)
def test_the_result_of_each_tool_is_told(
    tool: str, script: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(tmp_path, monkeypatch, f"[ $1 = --tool={tool} ] && {script}")
    (found,) = sanitize([(SUSPECTS[0][0], TASK.workloads[:3])], TASK, LIMITS, 0, 0)
    assert isinstance(found, WrongResult) == (script == FOUND)
    assert (found.detail if isinstance(found, WrongResult) else found).startswith(expected)
    assert script != LATE or str(found).count(",") == 1


def test_where_something_is_found_each_goes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A job of two launches is that of both, and the smaller one is guilty.
    name = SUSPECTS[0][1][0].name
    script = f'grep -q "{name}" "$job" && echo "========= Oh" && exit {ERROR_EXIT_CODE}; printf 1 > "$done"'
    pretend(tmp_path, monkeypatch, script)
    monkeypatch.setattr("tunesmith.kernels.check.sanitizer.pickle.dumps", lambda job: repr(job[0]).encode())
    assert [one != "" for one in sanitize(SUSPECTS, TASK, LIMITS, 0, 0)] == [True, False]


def test_once_a_tool_has_found_an_error_no_other_runs_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = tmp_path / "began"
    all_began = f"until [ $(wc -l < {began}) = {len(SANITIZER_TOOLS)} ]; do sleep 0.01; done"
    script = f"echo $$ >> {began}; [ $1 = --tool=memcheck ] && {all_began} && exit {ERROR_EXIT_CODE}; exec sleep 600"
    pretend(tmp_path, monkeypatch, script)
    (found,) = sanitize(SUSPECTS[:1], TASK, LIMITS, 0, 0)
    assert isinstance(found, WrongResult) and found.detail.startswith("memcheck")
    for number in began.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_the_process_that_a_tool_watches_makes_its_launches_and_ends(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(pickle.dumps(([], TASK, 0, 0)))
    program = [sys.executable, "-m", "tunesmith.kernels.check.sanitizer", str(tmp_path / "done"), str(tmp_path / "job")]
    subprocess.run(program, check=True)
    assert (tmp_path / "done").read_text() == "0"
