"""Replaying a table: the statistics, determinism, and results that come back in their own order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tunesmith.kernels.search import SearchError
from tunesmith.kernels.search.simulate import SimulationReport, simulate
from tunesmith.kernels.search.tables import ConfigResult, write_cache
from tunesmith.kernels.spec.template import Parameter


def smooth_table(path: Path, *, size: int = 12) -> Path:
    """A made-up kernel with one optimum, rugged by a tenth, that fails for large tiles."""
    listed = [Parameter(name=name, values=tuple(range(1, size + 1))) for name in "XYZ"]
    rng, measured = np.random.default_rng(7), []
    for x, y, z in itertools.product(range(1, size + 1), repeat=3):
        failure = "launch_failed" if x * y > size * size * 0.7 else None
        value = 1.0 + (x - 9) ** 2 / 20 + (y - 3) ** 2 / 30 + abs(x - z) / 8 + 0.1 * float(rng.random())
        config = {"X": x, "Y": y, "Z": z}
        measured.append(ConfigResult(config, None if failure else value, failure, (), 100.0 * x, 10.0 * y))
    write_cache(path, listed, measured, device="GPU", kernel="smooth")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smooth_table(tmp_path_factory.mktemp("tables") / "smooth.json.gz")


def test_the_report_has_the_published_form(table: Path) -> None:
    report = simulate([table, table], "random", budgets=(50, 25), seeds=5)
    data = json.loads(json.dumps(report.to_json()))
    assert set(data) == {"tables", "geomean", "mean_log_ratio"} and set(data["geomean"]) == {"25", "50"}
    entry = data["tables"][0]
    assert set(entry) == {"name", "optimum", "results", "strategy_ms_per_ask"} and entry["name"] == "smooth"
    assert [set(row) for row in entry["results"]] == [{"budget", "median", "p10", "p90", "mean_log_ratio"}] * 2
    assert [row["budget"] for row in entry["results"]] == [25, 50]
    for row in entry["results"]:
        assert 1.0 <= row["p10"] <= row["median"] <= row["p90"]
    assert data["geomean"]["50"] == pytest.approx(entry["results"][1]["median"])
    assert data["geomean"]["50"] <= data["geomean"]["25"]


def paths_of(report: SimulationReport) -> list[list[float]]:
    return [run.best.tolist() for result in report.tables for run in result.runs]


@pytest.mark.parametrize("workers", [1, 4])
def test_the_same_seeds_give_the_same_report(table: Path, workers: int) -> None:
    first, second = (simulate([table], "default", (40,), seeds=2, workers=workers) for _ in range(2))
    assert paths_of(first) == paths_of(second)
    assert paths_of(first)[0] != paths_of(first)[1]


def test_every_point_counts_once_and_failures_count(table: Path) -> None:
    run = simulate([table], "exhaustive", (5000,), seeds=1).tables[0].runs[0]
    assert len(run.best) == run.asks == 12**3 and run.best[-1] == 1.0
    assert run.after(5000) == 1.0 and np.all(np.diff(run.best[np.isfinite(run.best)]) <= 0)


def test_workers_overlap_in_time_and_results_come_in_the_order_of_their_cost(table: Path) -> None:
    alone = simulate([table], "random", (60,), seeds=1).tables[0].runs[0]
    many = simulate([table], "random", (60,), seeds=1, workers=6).tables[0].runs[0]
    assert np.all(np.diff(many.clock) >= 0) and len(many.best) == 60
    assert alone.clock[-1] / 8 < many.clock[-1] < alone.clock[-1] / 4


def test_the_model_beats_chance(table: Path) -> None:
    assert simulate([table], "default", (50,), seeds=3).geomean(50) < 1.03
    assert simulate([table], "random", (50,), seeds=3).geomean(50) > 1.03


def test_nothing_found_yet_is_null(tmp_path: Path) -> None:
    path = tmp_path / "mostly_failing.json"
    listed = [Parameter(name="X", values=tuple(range(50)))]
    measured = [
        ConfigResult({"X": x}, 1.0 if x == 49 else None, None if x == 49 else "launch_failed") for x in range(50)
    ]
    write_cache(path, listed, measured, device="GPU", kernel="k")
    data = simulate([path], "exhaustive", (10, 50), seeds=1).to_json()
    assert [row["median"] for row in data["tables"][0]["results"]] == [None, 1.0]
    assert data["geomean"]["10"] is None


def test_nonsense_is_refused(table: Path) -> None:
    for wrong in ({"seeds": 0}, {"workers": 0}, {"budgets": ()}, {"budgets": (0,)}):
        with pytest.raises(SearchError):
            simulate([table], "random", **{"budgets": (5,), "seeds": 1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(SearchError, match="no search strategy 'sideways'"):
        simulate([table], "sideways", (5,), seeds=1)
