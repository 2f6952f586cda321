"""Tables on terminals of any width: no name and no number is cut, and nothing is taken for markup."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Column, Table

from tunesmith.cli.view.tables import fits, print_table


def printed(width: int) -> str:
    table = Table("workload", "baseline", Column("what it is", min_width=24), title="Times")
    table.add_row("1048576-float32", "4335.99", "out\\[n, d] = silu(input\\[:, :d]), arithmetic in float")
    table.add_row("65x5003", "1131.67", "")
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_table(out, table)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 56, 57, 58, 59, 60, 61, 62, 80, 160])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    text = printed(width)
    assert all(len(line) <= width for line in re.sub("\x1b\\[[0-9;]*m", "", text).splitlines())
    assert "1048576-float32" in text and "4335.99" in text and "1131.67" in text and "…" not in text
    assert "[n,d]=silu(input[:,:d])" in re.sub(r"[\s│]|\x1b\[[0-9;]*m", "", text)


def test_a_table_that_fits_is_a_table() -> None:
    assert "┃" in printed(80) and "┃" not in printed(40)


def test_a_workload_that_holds_dots_of_its_own_is_not_cut() -> None:
    table = Table("name")
    table.add_row("a…b")
    assert fits(Console(width=20), table)


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
