"""Ctrl-C and kill -9 in the middle of a run, then `tunesmith resume`."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows

DATA = Path(__file__).resolve().parent.parent / "data"
TASK = str(DATA / "scale_add" / "task.toml")


def below(pid: int) -> set[int]:
    """The processes started by `pid`, directly or not."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended. Ray's own two agents notice the death of their node only a minute later."""
    found = set()
    for pid in pids:
        try:
            if b"Agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                continue
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.add(pid)
        except OSError:
            continue
    return found


def require_gone(family: set[int]) -> None:
    """On a busy machine they take some seconds to end."""
    deadline = time.monotonic() + 20
    while (left := alive(family)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, "processes outlive the run that started them"


def count(folder: Path, kind: str) -> int:
    path = folder / "journal.sqlite"
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return 0
    finally:
        connection.close()


class Run:
    """A run in a process group of its own, as a shell starts it."""

    def __init__(self, folder: Path, environment: dict[str, str], *options: object) -> None:
        import sys

        self.folder = folder
        arguments = ["tune", TASK, "--evaluations", "4", "--run-dir", str(folder), "--seed", "1", *map(str, options)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
        )

    def until(self, kind: str, least: int) -> None:
        deadline = time.monotonic() + 60
        while count(self.folder, kind) < least:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self, number: int) -> tuple[float, str, str]:
        """Sends a signal to the process (SIGKILL) or its group (SIGINT, as a terminal does); what was seen then."""
        started = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return time.monotonic() - started, out, err


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str], device: Any) -> Iterator[Any]:
    runs = []

    def begin(*options: object) -> Run:
        runs.append(Run(tmp_path / "run", environment, *options))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()


def check_resumed(folder: Path, command: Any, known: list[Any]) -> None:
    done = command("resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    events = rows(folder)
    assert [event.sequence for event in events[: len(known)]] == [event.sequence for event in known]
    keys = [event.data["key"] for event in events if event.kind == "evaluation"]
    assert len(keys) == len(set(keys)) <= 4
    assert summary["evaluations"] == len(keys)
    assert summary["general"] is not None and "baseline" in summary["sentence"]
    assert [event.kind for event in events].count("baseline") == 1


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        pytest.param("evaluation", 2, marks=pytest.mark.slow),
        pytest.param("asked", 1, marks=pytest.mark.slow),
        pytest.param("comparison", 1, marks=pytest.mark.slow),
        pytest.param("run", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(start: Any, command: Any, tmp_path: Path, kind: str, least: int) -> None:
    run = start("--rounds", 1)
    run.until(kind, least)
    family = below(run.process.pid)
    run.end(signal.SIGKILL)
    require_gone(family)
    known = rows(run.folder)
    assert len([event for event in known if event.kind == kind]) >= least
    check_resumed(run.folder, command, known)


def test_interrupted_from_the_keyboard(start: Any) -> None:
    """While the device's roofs are measured."""
    check_interrupted(start, signal.SIGINT, "baseline", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["evaluation", "comparison", "run"])
def test_interrupted_and_resumed(start: Any, command: Any, kind: str) -> None:
    folder = check_interrupted(start, signal.SIGINT, kind, 1)
    check_resumed(folder, command, rows(folder))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_jobs_end_is_an_interruption(start: Any, number: int) -> None:
    check_interrupted(start, number, "evaluation", 1)


def check_interrupted(start: Any, number: int, kind: str, least: int) -> Path:
    """Ends a run by a signal once `kind` is in its journal; gives its folder."""
    run = start("--rounds", 1)
    run.until(kind, least)
    family = below(run.process.pid)
    seconds, out, err = run.end(number)
    assert run.process.returncode == 130
    assert f"tunesmith resume {run.folder}" in err.splitlines()[-1]
    assert "Traceback" not in err and "Exception" not in err and out == ""
    assert seconds < 20
    require_gone(family)
    return run.folder
