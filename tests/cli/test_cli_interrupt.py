"""Ctrl-C and kill -9 in the middle of a run, then `tunesmith resume`."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Row, rows
from process_tree import alive, below

TASK = str(Path(__file__).resolve().parent.parent / "data" / "scale_add" / "task.toml")
End = Callable[[str, int, int], tuple[subprocess.Popen[str], str, str]]


def entries(folder: Path, kind: str) -> list[Row]:
    try:
        return rows(folder, kind)
    except sqlite3.OperationalError:  # the file or its table is not there yet
        return []


@pytest.fixture
def end(tmp_path: Path, environment: dict[str, str], device: Any) -> Iterator[End]:
    """Starts a run in a process group of its own, as a shell does; sends a signal once it has `least` entries of
    `kind`: SIGINT to the group, as a terminal does, others to the process. Gives the process and its output."""
    started = []

    def run(kind: str, least: int, number: int) -> tuple[subprocess.Popen[str], str, str]:
        options = ["--evaluations", "4", "--rounds", "1", "--seed", "1", "--workers", "1", "--run-dir"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith.cli.main", "tune", TASK, *options, str(tmp_path / "run")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
        )
        started.append(process)
        deadline = time.monotonic() + 60
        while len(entries(tmp_path / "run", kind)) < least:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        family = below(process.pid)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=20)
        # On a busy machine they take some seconds to end.
        deadline = time.monotonic() + 20
        while (left := alive(family)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, "processes outlive the run that started them"
        return process, out, err

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_resumed(folder: Path, command: Any) -> None:
    """The run goes on after its entries, and measures nothing twice."""
    known = rows(folder)
    done = command("resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    summary, events = json.loads(done.stdout), rows(folder)
    assert [event.sequence for event in events[: len(known)]] == [event.sequence for event in known]
    keys = [event.data["key"] for event in events if event.kind == "evaluation"]
    assert summary["evaluations"] == len(keys) == len(set(keys)) <= 4
    assert summary["general"] is not None and "baseline" in summary["sentence"]
    assert [event.kind for event in events].count("baseline") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("evaluation", 2), ("asked", 1), ("comparison", 1), ("run", 1)])
def test_killed_and_resumed(end: End, command: Any, tmp_path: Path, kind: str, least: int) -> None:
    end(kind, least, signal.SIGKILL)
    check_resumed(tmp_path / "run", command)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        # While the device's roofs are measured.
        ("baseline", signal.SIGINT),
        *(pytest.param(kind, signal.SIGINT, marks=pytest.mark.slow) for kind in ("evaluation", "comparison", "run")),
        # A job's end, and a lost terminal, are interruptions too.
        *(pytest.param("evaluation", number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_interrupted_and_resumed(
    end: End, command: Any, tmp_path: Path, request: pytest.FixtureRequest, kind: str, number: int
) -> None:
    process, out, err = end(kind, 1, number)
    assert process.returncode == 130
    assert f"tunesmith resume {tmp_path / 'run'}" in err.splitlines()[-1]
    assert "Traceback" not in err and "Exception" not in err and out == ""
    if request.node.get_closest_marker("slow"):
        check_resumed(tmp_path / "run", command)
