"""What a run ends with, as an exit code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tunesmith.cli.commands.run import _drive


@pytest.mark.parametrize(
    ("valid", "unexamined", "evaluations", "code"),
    [(True, 0, 9, 0), (True, 2, 9, 0), (False, 0, 9, 3), (False, 0, 0, 5), (False, 2, 9, 6)],
)
def test_each_way_to_end_without_a_winner_has_a_code_of_its_own(
    valid: bool, unexamined: int, evaluations: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = SimpleNamespace(unexamined=unexamined, evaluations=evaluations, to_json=dict)
    result: Any = SimpleNamespace(valid=valid, summary=summary, folder=tmp_path)
    try:
        _drive(tmp_path, lambda *_: result, as_json=True)
        found = 0
    except typer.Exit as end:
        found = end.exit_code
    assert found == code and str(tmp_path) in capsys.readouterr().out
