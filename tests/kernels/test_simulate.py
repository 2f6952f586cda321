"""Replaying a table: the statistics, determinism, and results that come back in their own order."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search.simulate import replay, simulate
from tunesmith.kernels.search.tables import ConfigResult, Table, read_cache, write_cache
from tunesmith.kernels.spec.template import Parameter


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up kernel with one optimum, rugged by a tenth, that fails for large tiles."""
    path = tmp_path_factory.mktemp("tables") / "smooth.json.gz"
    listed = [Parameter(name=name, values=tuple(range(1, 13))) for name in "XYZ"]
    rng, measured = np.random.default_rng(7), []
    for x, y, z in itertools.product(range(1, 13), repeat=3):
        failure = "launch_failed" if x * y > 100 else None
        value = 1.0 + (x - 9) ** 2 / 20 + (y - 3) ** 2 / 30 + abs(x - z) / 8 + 0.1 * float(rng.random())
        config = {"X": x, "Y": y, "Z": z}
        measured.append(ConfigResult(config, None if failure else value, failure, (), 100.0 * x, 10.0 * y))
    write_cache(path, listed, measured, device="GPU", kernel="smooth")
    return path


@pytest.fixture(scope="module")
def table(path: Path) -> Table:
    return read_cache(path)


def test_the_report_has_the_published_form_and_nonsense_is_refused(path: Path, tmp_path: Path) -> None:
    data = json.loads(json.dumps(simulate([path, path], "random", budgets=(50, 25), seeds=5)))
    assert set(data) == {"tables", "geomean", "mean_log_ratio"} and set(data["geomean"]) == {"25", "50"}
    entry = data["tables"][0]
    assert set(entry) == {"name", "optimum", "results", "strategy_ms_per_ask"} and entry["name"] == "smooth"
    assert [set(row) for row in entry["results"]] == [{"budget", "median", "p10", "p90", "mean_log_ratio"}] * 2
    assert [row["budget"] for row in entry["results"]] == [25, 50]
    for row in entry["results"]:
        assert 1.0 <= row["p10"] <= row["median"] <= row["p90"]
    assert data["geomean"]["50"] == pytest.approx(entry["results"][1]["median"])
    assert data["geomean"]["50"] <= data["geomean"]["25"]
    for wrong in ({"seeds": 0}, {"workers": 0}, {"budgets": ()}, {"budgets": (0,)}):
        with pytest.raises(TunesmithError):
            simulate([path], "random", **{"budgets": (5,), "seeds": 1, **wrong})
    path = tmp_path / "mostly_failing.json"
    failed = [ConfigResult({"X": x}, None, "launch_failed") for x in range(49)]
    listed = [Parameter(name="X", values=tuple(range(50)))]
    write_cache(path, listed, [*failed, ConfigResult({"X": 49}, 1.0)], device="GPU", kernel="k")
    data = simulate([path], "exhaustive", (10, 50), seeds=1)
    assert [row["median"] for row in data["tables"][0]["results"]] == [None, 1.0] and data["geomean"]["10"] is None


def test_points_and_failures_count_once_and_workers_overlap(table: Table, path: Path) -> None:
    best, _, asks, _ = replay(table, "exhaustive", 0, 5000)
    assert len(best) == asks == 12**3 and best[-1] == 1.0
    assert np.all(np.diff(best[np.isfinite(best)]) <= 0)
    (_, alone, *_), (best, many, *_) = (replay(table, "random", 0, 60, workers) for workers in (1, 6))
    assert np.all(np.diff(many) >= 0) and len(best) == 60
    assert alone[-1] / 8 < many[-1] < alone[-1] / 4
    model, chance = (simulate([path], name, (50,), seeds=3)["geomean"]["50"] for name in ("default", "random"))
    assert model < 1.03 < chance
