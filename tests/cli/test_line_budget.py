"""`make lint` fails where a room has more lines, files or classes than pyproject.toml grants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "lines.py"
FUNCTION = "def many(a, b, c, d, e, f, g, h, *rest):\n" + "    pass\n" * 60


@pytest.mark.parametrize("over", ["", "hw", "tests", "files", "classes"])
def test_what_is_over_its_budget_fails(tmp_path: Path, over: str) -> None:
    bounds = {name: count - (name == over) for name, count in {"files": 1, "classes": 1, "hw": 62, "tests": 3}.items()}
    lines = [f"{name} = {count}" for name, count in bounds.items()]
    lines.insert(2, "[tool.tunesmith.lines.rooms]")
    files = {"hw/a.py": f"class A: ...\n{FUNCTION}", "hw/a.j2": "x\n", "tests/b.py": "class B:\n  x = 1\n\n"}
    for name, text in (files | {"pyproject.toml": "\n".join(["[tool.tunesmith.lines]", *lines])}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True)
    assert done.returncode == bool(over), done
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith("OVER BUDGET")] == [over] * bool(over)
    assert "hw/a.py:2: many has 61 lines and 9 parameters" in done.stdout
    assert "templates (.j2): 1 lines, 1 files" in done.stdout
