"""Tables on terminals of any width: no name and no number is cut, and nothing is taken for markup."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tunesmith.cli.view import tables


@pytest.mark.parametrize("width", [20, 40, 52, 53, 54, 80, 160])
def test_nothing_is_cut_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: out)
    rows = [
        ("1048576-float32", "4335.99", "out[n, d] = silu(input[:, :d]), arithmetic in float"),
        ("65x5003", "1131.67", ""),
        ("a…b", "", ""),
    ]
    headings = ("workload", "baseline", "what it is")
    tables.print_rows(headings, rows, "a task [/] on [a device", prose=("what it is",))
    text = re.sub("\x1b\\[[0-9;]*m", "", out.file.getvalue())  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    assert "1048576-float32" in text and "4335.99" in text and "1131.67" in text and text.count("…") == 1
    assert ("──" in text) == (width >= 53)
    assert "[n,d]=silu(input[:,:d])" in re.sub(r"\s", "", text)
    assert "a task [/] on [a device" in " ".join(text.split())


def test_brackets_of_a_task_are_shown(here: object) -> None:
    assert "c[m, n] = a[m, k] @ b[k, n]" in here("tasks").stdout  # type: ignore[operator]


def test_a_reader_of_progress_that_goes_away_ends_nothing() -> None:
    program = (
        "from tunesmith.cli.view.live import view\nfrom tunesmith.graph.progress import Progress\n"
        "with view() as show:\n    for number in range(3): show(Progress('plan', f'line {number}'))\n"
        "print('the result')"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=gone, text=True)
    assert (done.returncode, done.stdout) == (0, "the result\n")


@pytest.fixture
def reported(finished_run: Any, here: Any, tmp_path: Path) -> Callable[..., str]:
    """What `tunesmith report` says of a run whose summary was changed."""

    def report(**changes: Any) -> str:
        folder = shutil.copytree(finished_run.folder, tmp_path / "run")
        (folder / "summary.json").write_text(json.dumps(finished_run.summary | changes))
        return str(here("report", folder).stdout)

    return report


def test_a_kernel_without_parameters_is_named(reported: Any) -> None:
    """As a model writes one."""
    failed = {"kind": "compile_failed", "what": "does not compile", "config": {}, "template": "whole-2"}
    shown = reported(general={"template": "whole-1", "config": {}}, failure_examples=[failed])
    assert "General configuration: whole-1, a kernel without parameters" in shown
    assert "such as whole-2, a kernel without parameters: does not compile" in shown


def test_a_replay_costs_nothing(reported: Any) -> None:
    totals = {"calls": 2, "unaccounted": 0, "failed": 0, "prompt_tokens": 9, "completion_tokens": 9, "cost": 0.5}
    totals["seconds"] = 0.0
    rows = [{"role": "plan", "model": "m", **totals}]
    shown = reported(models={"transport": "replay", "where": "there", "failures": {}, "rows": rows, **totals})
    assert "2 calls, 18 tokens, no cost, as they are replayed" in shown and "$" not in shown
