"""Results in the format T4: the round trip, what Kernel Tuner itself writes and takes, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import Prior
from tunesmith.kernels.search.tables import ConfigResult, is_t4, read_t4, write_t4

RECORDS = [
    ConfigResult({"BLOCK": 32, "MODE": "row"}, 1.5, None, (1.4, 1.6), 40.0, 2.5),
    ConfigResult({"BLOCK": 64, "MODE": "row"}, None, "compile_failed", (), 40.0, 0.0),
    ConfigResult({"BLOCK": 64, "MODE": "column"}, None, "wrong_result", (), 40.0, 1.0),
    ConfigResult({"BLOCK": 128, "MODE": "row"}, None, "launch_failed", (), 40.0, 1.0),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert write_t4(path, RECORDS) == 4 and is_t4(path)
    assert read_t4(path) == RECORDS
    prior = Prior.from_table(path)
    assert prior.name == "results" and prior.results[0][1].value == 1.5
    assert [seen.failure for _, seen in prior.results[1:]] == ["compile_failed", "wrong_result", "launch_failed"]


def test_kernel_tuners_own_spelling_is_read(tmp_path: Path) -> None:
    # As `kernel_tuner.file_utils.get_t4_results` lays results out.
    result: dict[str, Any] = {
        "timestamp": "2026-01-01 00:00:00+00:00",
        "configuration": {"block_size_x": 128},
        "times": {"compilation": 90.0, "benchmark": 1.0, "framework": 2.0, "search_algorithm": 0, "validation": 0},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 0.25, "unit": "ms"}],
        "objectives": ["time"],
    }
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"results": [result], "schema_version": "1.0.0", "metadata": {}}))
    (record,) = read_t4(path)
    assert (record.config, record.time, record.compile_time) == ({"block_size_x": 128}, 0.25, 90.0)


def test_kernel_tuner_takes_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner", reason="Kernel Tuner is not installed (pip install kernel-tuner)")
    import jsonschema
    from kernel_tuner.file_utils import output_file_schema, store_output_file

    path = tmp_path / "ours.json"
    write_t4(path, RECORDS)
    _, schema = output_file_schema("results")
    jsonschema.validate(json.loads(path.read_text()), schema)
    timings = dict.fromkeys(
        ("compile_time", "benchmark_time", "framework_time", "strategy_time", "verification_time"), 1.0
    )
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
def test_what_is_none_is_told_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(TunesmithError, match=message):
        read_t4(path)
