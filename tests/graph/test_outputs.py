"""What the options that name a file to write may replace: what their command wrote before, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import SCALE_ADD

from tunesmith.graph.history import ResultsStore
from tunesmith.graph.results.summary import write_csv
from tunesmith.graph.study.exhaust import exhaust
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search.tables import read_cache


@pytest.fixture(params=["csv", "wisdom"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., int]:
    """Writes a file that repeating the command may replace."""
    if request.param == "wisdom":
        return ResultsStore(tmp_path / "wisdom.sqlite").write_file
    run = request.getfixturevalue("ended")
    return lambda out, **how: write_csv(run, out, **how)


def test_a_file_is_replaced_where_the_command_wrote_it(write: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    write(out)
    text = out.read_bytes()
    out.write_bytes(text + b"\n")
    write(out)
    assert out.read_bytes() == text
    out.write_bytes(b"my only copy")
    with pytest.raises(TunesmithError, match="--force"):
        write(out)
    assert out.read_bytes() == b"my only copy"
    write(out, force=True)
    assert out.read_bytes() == text


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_a_table_that_took_hours_is_replaced_by_force_alone(simulation: Any, tmp_path: Path, name: str) -> None:
    out, kept = tmp_path / name, tmp_path / f"{name}.journal"
    write = partial(exhaust, str(SCALE_ADD), out, backend="opencl", fixed={"ITEMS": 1})
    done = write()
    assert done[1] == len(read_cache(out).results) and not kept.exists()
    with pytest.raises(TunesmithError, match="exists; name another file"):
        write()
    # Killed after the table was written, and before the measurements were removed.
    kept.mkdir()
    (kept / "remark.txt").touch()
    assert write() == done and [one.name for one in kept.iterdir()] == ["remark.txt"]
    assert write(force=True) == done
