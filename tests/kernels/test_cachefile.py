"""Kernel Tuner's cache files: the round trip, files that were cut short, and files that are something else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tunesmith.kernels.search.tables import CacheFileError, ConfigResult, read_cache, write_cache
from tunesmith.kernels.spec.template import Parameter

PARAMETERS = [
    Parameter(name="BLOCK", values=(32, 64, 128)),
    Parameter(name="MODE", values=("row", "column")),
    Parameter(name="FAST", values=(True, False)),
]


def records() -> list[ConfigResult]:
    found = []
    for position, block in enumerate((32, 64, 128)):
        for mode in ("row", "column"):
            failure = "compile_failed" if (block, mode) == (128, "row") else None
            failure = "wrong_result" if (block, mode) == (32, "row") else failure
            value = None if failure else 1.5 + position
            times = () if failure else (1.5, 1.5 + position)
            found.append(ConfigResult({"BLOCK": block, "MODE": mode, "FAST": True}, value, failure, times, 40.0, 2.5))
    return found


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_cache(path, PARAMETERS, records(), device="GPU", kernel="gemm", problem_size=(64, 64)) == 6
    table = read_cache(path)
    assert (table.name, len(table)) == ("table", 6)
    assert table.parameters == tuple(PARAMETERS) and table.optimum == 1.5
    assert table.failures == tuple(record.failure for record in records())
    wanted = [np.nan if record.time is None else record.time for record in records()]
    assert np.array_equal(table.times, wanted, equal_nan=True)
    assert set(table.costs) == {42.5}
    space = table.space()
    assert len(space) == 6 and space.reject({"BLOCK": 32, "MODE": "row", "FAST": False}) is not None
    # The same records give the same bytes.
    before = path.read_bytes()
    write_cache(path, PARAMETERS, records(), device="GPU", kernel="gemm", problem_size=(64, 64))
    assert path.read_bytes() == before


def test_the_file_has_the_shape_that_kernel_tuner_reads(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_cache(path, PARAMETERS, records(), device="GPU", kernel="gemm")
    data = json.loads(path.read_text())
    assert data["tune_params_keys"] == ["BLOCK", "MODE", "FAST"] and data["tune_params"]["BLOCK"] == [32, 64, 128]
    assert data["cache"]["32,column,True"]["time"] == 1.5
    assert data["cache"]["128,row,True"]["time"] == "CompilationFailedConfig"
    assert data["cache"]["32,row,True"]["time"] == "RuntimeFailedConfig"
    assert path.read_text().endswith("}\n}")


@pytest.mark.parametrize("share", [0.99, 0.8, 0.6])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_cut_short_gives_its_whole_records(tmp_path: Path, share: float, zipped: bool) -> None:
    whole = tmp_path / "whole.json"
    write_cache(whole, PARAMETERS, records(), device="GPU", kernel="gemm")
    text = whole.read_bytes()
    path = tmp_path / ("cut.json.gz" if zipped else "cut.json")
    cut = text[: int(len(text) * share)]
    path.write_bytes(gzip.compress(cut) if zipped else cut)
    table = read_cache(path)
    assert 1 <= len(table) <= 6
    assert np.array_equal(table.times, read_cache(whole).times[: len(table)], equal_nan=True)


def test_a_compressed_stream_that_ends_too_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    listed = [Parameter(name="X", values=tuple(range(2000)))]
    rng = np.random.default_rng(0)
    measured = [ConfigResult({"X": x}, float(value)) for x, value in enumerate(rng.random(2000) + 0.1)]
    path = tmp_path / "table.json.gz"
    write_cache(path, listed, measured, device="GPU", kernel="k")
    path.write_bytes(path.read_bytes()[:-4000])
    table = read_cache(path)
    assert 100 < len(table) < 2000


def test_other_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(CacheFileError, match="cannot be read"):
        read_cache(path)
    for text, match in (
        ("", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"a": {}}', "tune_params"),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 2, "time": 1.0}}}', "X=2 is not among"),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 1}}}', "has no time"),
        ('{"tune_params": {"X": [1]}, "cache": {"1": {"X": 1, "time": "RuntimeFailedConfig"}}}', "no configuration"),
    ):
        path.write_text(text)
        with pytest.raises(CacheFileError, match=match):
            read_cache(path)
    path.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(CacheFileError, match="damaged"):
        read_cache(path)


def test_old_failures_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"tune_params": {"X": [1, 2]}, "cache": {"1": {"X": 1, "time": 1e20}, "2": {"X": 2, "time": 3}}}')
    table = read_cache(path)
    assert table.failures == ("launch_failed", None) and table.optimum == 3.0
