"""kill -9 in each state of the graph, on a real device and in a process of its own; then the run goes on."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_runs import entries, keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("device")]
DRIVER = Path(__file__).resolve().parent / "model_process.py"
PAID = [
    "round-1.plan.plan",
    "round-1.template.template-1",
    "round-1.template.template-2",
    "round-1.template.template-2-repair-1",
    "round-1.explain.explain",
]
STATES = {
    "plan: while the model is asked": ("round-1.plan.plan", None),
    "plan: measured, not planned": ("", ("baseline", 1)),
    "plan: planned": ("", ("plan", 1)),
    "template: while the model is asked": ("round-1.template.template-2", None),
    "template: at a trial": ("", ("evaluation", 1)),
    "template: while a repair is asked for": ("round-1.template.template-2-repair-1", None),
    "template: one of two registered": ("", ("template", 1)),
    "tune: at the third question to the search": ("", ("asked", 3)),
    "tune: searched": ("", ("searched", 1)),
    "test: at a comparison": ("", ("comparison", 1)),
    "test: judged": ("", ("verdict", 1)),
    "explain: while the model is asked": ("round-1.explain.explain", None),
    "explain: explained": ("", ("explanation", 1)),
}


def count(folder: Path, kind: str) -> int:
    try:
        connection = sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True, timeout=5)
        with connection:
            return int(connection.execute("SELECT COUNT(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def start(folder: Path, ledger: Path, slow: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder), str(ledger), slow],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    )


@pytest.mark.parametrize("state", STATES)
def test_killed_in(state: str, tmp_path: Path, environment: dict[str, str]) -> None:
    slow, event = STATES[state]
    folder, ledger = tmp_path / "run", tmp_path / "ledger"
    process = start(folder, ledger, slow, environment)
    try:
        deadline = time.monotonic() + 90
        while not (count(folder, event[0]) >= event[1] if event else folder.with_suffix(".asking").exists()):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    known: list[Any] = entries(folder)
    again = start(folder, ledger, "", environment)
    try:
        output, _ = again.communicate(timeout=110)
    finally:
        if again.poll() is None:
            os.killpg(again.pid, signal.SIGKILL)
    assert again.returncode == 0, output
    after = entries(folder)
    assert [one.data for one in after[: len(known)]] == [one.data for one in known]
    assert [json.loads(line)["custom_id"] for line in ledger.read_text().splitlines()] == PAID
    assert len(keys(folder)) == len(set(keys(folder))) == 9
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["general"] is not None and len(summary["templates"]) == 2
    assert summary["explanations"] and summary["ended_by"] == "rounds"
