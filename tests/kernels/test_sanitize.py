"""Which launches compute-sanitizer sees; that it finds what it is for is shown by the candidates on a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Candidate, types_key
from tunesmith.kernels.check.plan import plan
from tunesmith.kernels.check.sanitizer import (
    FOUND,
    LARGEST_BYTES,
    SANITIZER_TOOLS,
    WORKLOADS,
    Inspection,
    chosen_workloads,
    sanitize,
)
from tunesmith.kernels.spec.taskfile import load_task


def test_all_own_workloads_and_made_up_ones_of_all_sizes_and_types() -> None:
    task = load_task("softmax")
    every = [step.workload for step in plan(task, resolve_target("h200"), seed=0)]
    own = {one.name for one in every if one in task.workloads and task.bytes_of(one) <= LARGEST_BYTES}
    chosen = chosen_workloads(task, every)
    assert len({(one.name, types_key(one)) for one in chosen}) == len(chosen) == len(own) + WORKLOADS
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


def begun(suspects: Sequence[Any]) -> Inspection:
    return Inspection(suspects, TASK, LIMITS, 0, 0)


def test_where_something_is_found_each_goes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A job of two launches is that of both, and the smaller one is guilty.
    name = SUSPECTS[0][1][0].name
    script = f'grep -q "{name}" "$job" && echo "========= Oh" && exit {FOUND}; printf 1 > "$done"'
    pretend(tmp_path, monkeypatch, script)
    monkeypatch.setattr("tunesmith.kernels.check.sanitizer.pickle.dumps", lambda job: repr(job[0]).encode())
    found = sanitize(SUSPECTS, TASK, LIMITS, 0, 0)
    assert [one.found != "" for one in found] == [True, False]


def test_at_its_end_no_tool_runs_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, f"echo $$ >> {tmp_path}/began; exec sleep 600")
    with closing(begun(SUSPECTS)):
        deadline = time.monotonic() + 60
        while not (file := tmp_path / "began").exists() or len(file.read_text().split()) < len(SANITIZER_TOOLS):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    for number in file.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)
