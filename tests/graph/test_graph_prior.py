"""A run may begin with what another run or a table knows; it is kept in its own journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from simulated_pool import simulate_device

from tunesmith.graph import resume, tune
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.run import RunResult
from tunesmith.graph.settings import SettingsError
from tunesmith.graph.setup.prior import prior_of
from tunesmith.hw.errors import TunesmithError

TASK = str(Path(__file__).resolve().parent.parent / "data" / "scale_add" / "task.toml")


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    simulate_device(monkeypatch)


def run(folder: Path, **settings: Any) -> RunResult:
    return tune(TASK, run_dir=folder, **({"backend": "opencl", "evaluations": 8, "rounds": 1} | settings))


def asks(folder: Path) -> list[dict[str, Any]]:
    return [row.data["config"] for row in rows(folder, "asked")]


def test_the_best_of_an_earlier_run_is_among_the_first(tmp_path: Path) -> None:
    best = run(tmp_path / "long", evaluations=12).summary["general"]["config"]
    run(tmp_path / "transferred", evaluations=5, prior=str(tmp_path / "long"))
    assert best in asks(tmp_path / "transferred")
    with Journal(tmp_path / "transferred", create=False) as journal:
        prior = prior_of(RunLog(journal))
    assert prior is not None and len(prior.results) == 12 and "long" in prior.name


def test_a_resumed_run_needs_the_source_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "source", evaluations=12)
    whole = run(tmp_path / "whole", evaluations=6, prior=str(tmp_path / "source"))
    append, written = Journal.append, [0]

    def append_and_end(self: Journal, *arguments: Any) -> int:
        sequence = append(self, *arguments)
        written[0] += 1
        if written[0] == 9:
            raise KeyboardInterrupt
        return sequence

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_and_end)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "ended", evaluations=6, prior=str(tmp_path / "source"))
    shutil.rmtree(tmp_path / "source")
    resume(tmp_path / "ended")
    assert asks(tmp_path / "ended") == asks(tmp_path / "whole") and whole.valid


def test_what_is_neither_run_nor_table_is_a_sentence_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--prior"):
        run(tmp_path / "run", prior=str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(JournalError):
        run(tmp_path / "run", prior=str(tmp_path / "empty"))
    (tmp_path / "table.json").write_text("no table")
    with pytest.raises(TunesmithError):
        run(tmp_path / "run", prior=str(tmp_path / "table.json"))
    assert not (tmp_path / "run").exists()


def test_a_prior_that_lacks_parameters_is_refused_before_anything_starts(tmp_path: Path) -> None:
    table = tmp_path / "other.json"
    text = '{"tune_params_keys": ["BM"], "tune_params": {"BM": [1, 2]}, "objective": "time", "cache": '
    table.write_text(text + '{"1": {"BM": 1, "time": 1.5}, "2": {"BM": 2, "time": 1.0}}}')
    with pytest.raises(SettingsError, match=r"have the parameters BM; .* also need GROUP, ITEMS, UNROLL"):
        run(tmp_path / "run", prior=str(table))
    assert not (tmp_path / "run").exists()
