"""What a run ends with, as an exit code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith.cli.actions.run import _drive


@pytest.mark.parametrize(("valid", "unexamined", "code"), [(True, 0, 0), (True, 2, 0), (False, 0, 3), (False, 2, 6)])
def test_a_run_whose_winners_could_not_be_examined_has_a_code_of_its_own(
    valid: bool, unexamined: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = SimpleNamespace(unexamined=unexamined, to_json=dict)
    result: Any = SimpleNamespace(valid=valid, summary=summary, folder=tmp_path)
    assert _drive(tmp_path, lambda *_: result, as_json=True) == code
    assert str(tmp_path) in capsys.readouterr().out
