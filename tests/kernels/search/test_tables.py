"""Kernel Tuner's cache files and results in the format T4: the round trip, files that were cut short, what Kernel Tuner
itself writes and takes, and files that are something else. Replaying a table: the statistics, determinism, and results
that come back in their own order."""

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import Prior
from tunesmith.kernels.search.simulate import replay, simulate
from tunesmith.kernels.search.tables import ConfigResult, Table, read_cache, read_t4, write_cache, write_t4
from tunesmith.kernels.spec.template import Parameter

PARAMETERS = [
    Parameter(name="BLOCK", values=(32, 64, 128)),
    Parameter(name="MODE", values=("row", "column")),
    Parameter(name="FAST", values=(True, False)),
]
FAILURES = {(128, "row"): "compile_failed", (32, "row"): "wrong_result"}


def records() -> list[ConfigResult]:
    found = []
    for point in itertools.product((32, 64, 128), ("row", "column")):
        config, failure = dict(zip(("BLOCK", "MODE"), point, strict=True)) | {"FAST": True}, FAILURES.get(point)
        result = (None, failure, ()) if failure else (point[0] / 10, None, (1.5, 2.5))
        found.append(ConfigResult(config, *result, 40.0, 2.5))
    return found


def written(path: Path) -> bytes:
    assert write_cache(path, PARAMETERS, records(), device="GPU", kernel="gemm", problem_size=(64, 64)) == 6
    return path.read_bytes()


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    before = written(path)
    table = read_cache(path)
    assert table.name == "table" and table.space.parameters == tuple(PARAMETERS) and table.optimum == 3.2
    assert list(table.results.values()) == [replace(one, times=()) for one in records()]
    assert all(table.space.config(point) == one.config for point, one in table.results.items())
    assert len(table.space) == 6 and table.space.reject({"BLOCK": 32, "MODE": "row", "FAST": False}) is not None
    assert written(path) == before, "the same records give the same bytes"


@pytest.mark.parametrize("share", [0.99, 0.8, 0.6])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_short_gives_its_whole_records(tmp_path: Path, share: float, zipped: bool) -> None:
    path = tmp_path / "cut.json"
    whole = written(path)
    cut = whole[: int(len(whole) * share)]
    path.write_bytes(gzip.compress(cut)[:-8] if zipped else cut)
    found = [one.time for one in read_cache(path).results.values()]
    assert found and found == [one.time for one in records()][: len(found)]


def test_other_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(TunesmithError, match="cannot be read"):
        read_cache(path)
    for text, match in (
        ("", "no JSON object"),
        ("[1, 2]", "tune_params"),
        ('{"a": {}}', "tune_params"),
        ('{"tune_params": {"X": [1]}, "tune_params_keys": ["X", "X"], "cache": {}}', "each of tune_params once"),
        ('{"tune_params": {"X": []}, "cache": {}}', "file: tune_params: "),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 2, "time": 1.0}}}', "X=2 is not among"),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 1}}}', "configuration 1: .*time"),
        *(
            (f'{{"tune_params": {{"X": [1]}}, "cache": {{"1": {{"X": {value}, "time": 1.0}}}}}}', "configuration 1")
            for value in ("[]", "null", '{"a": 1}', "[[1]]")
        ),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 1, "time": null}}}', "configuration 1"),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 1, "time": "RuntimeFailedConfig"}}}', "no configuration"),
    ):
        path.write_text(text)
        with pytest.raises(TunesmithError, match=match) as caught:
            read_cache(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(TunesmithError, match="damaged"):
        read_cache(path)


RESULTS = [
    ConfigResult({"BLOCK": 32, "MODE": "row"}, 1.5, None, (1.4, 1.6), 40.0, 2.5),
    ConfigResult({"BLOCK": 64, "MODE": "row"}, None, "compile_failed", (), 40.0, 0.0),
    ConfigResult({"BLOCK": 64, "MODE": "column"}, None, "wrong_result", (), 40.0, 1.0),
    ConfigResult({"BLOCK": 128, "MODE": "row"}, None, "launch_failed", (), 40.0, 1.0),
]


def test_results_that_are_written_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert write_t4(path, RESULTS) == 4 and read_t4(path) == RESULTS
    prior = Prior.from_table(path)
    assert prior.name == "results" and prior.results[0][1].value == 1.5
    assert [seen.failure for _, seen in prior.results[1:]] == ["compile_failed", "wrong_result", "launch_failed"]
    text = written(tmp_path / "table.json").decode()
    data = json.loads(text)
    assert data["tune_params_keys"] == ["BLOCK", "MODE", "FAST"] and data["tune_params"]["BLOCK"] == [32, 64, 128]
    assert data["cache"]["32,column,True"]["time"] == 3.2
    assert data["cache"]["128,row,True"]["time"] == "CompilationFailedConfig"
    assert data["cache"]["32,row,True"]["time"] == "RuntimeFailedConfig"
    assert text.endswith("}\n}")
    path = tmp_path / "old.json"
    path.write_text('{"tune_params": {"X": [1, 2]}, "cache": {"1": {"X": 1, "time": 1e20}, "2": {"X": 2, "time": 3}}}')
    table = read_cache(path)
    assert [one.failure for one in table.results.values()] == ["launch_failed", None] and table.optimum == 3.0
    # As `kernel_tuner.file_utils.get_t4_results` lays results out.
    result: dict[str, Any] = {"timestamp": "2026-01-01 00:00:00+00:00", "configuration": {"block_size_x": 128}}
    result["times"] = dict(compilation=90.0, benchmark=1.0, framework=2.0, search_algorithm=0, validation=0)
    result |= {"invalidity": "correct", "correctness": 1, "objectives": ["time"]}
    result["measurements"] = [{"name": "time", "value": 0.25, "unit": "ms"}]
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"results": [result], "schema_version": "1.0.0", "metadata": {}}))
    (record,) = read_t4(path)
    assert (record.config, record.time, record.compile_time) == ({"block_size_x": 128}, 0.25, 90.0)


def test_kernel_tuner_takes_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner", reason="Kernel Tuner is not installed (pip install kernel-tuner)")
    import jsonschema
    from kernel_tuner.file_utils import output_file_schema, store_output_file

    path = tmp_path / "ours.json"
    write_t4(path, RESULTS)
    _, schema = output_file_schema("results")
    jsonschema.validate(json.loads(path.read_text()), schema)
    timings = {f"{one}_time": 1.0 for one in ("compile", "benchmark", "framework", "strategy", "verification")}
    theirs = [{"block_size_x": 32, "time": 0.5, "times": [0.5, 0.5], **timings}]
    store_output_file(str(tmp_path / "theirs.json"), theirs, {"block_size_x": [32, 64]})
    (record,) = read_t4(tmp_path / "theirs.json")
    assert (record.config, record.time, record.times) == ({"block_size_x": 32}, 0.5, (0.5, 0.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"results": [], "schema_version": "2.0.0"}', "has the schema version 2.0.0"),
        ('{"results": [{}], "schema_version": "1.0.0"}', "is not a results file in the format T4"),
        ("[]", "is not a results file in the format T4"),
        (
            '{"results": [{"configuration": {}, "times": {}, "invalidity": "correct"}], "schema_version": "1.0.0"}',
            "result 1: it is correct, but has no measurement of time",
        ),
    ],
)
def test_what_are_no_results_is_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(TunesmithError, match=message):
        read_t4(path)


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
