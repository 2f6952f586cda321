"""`tunesmith check` and `tunesmith bench` as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CANDIDATES = Path(__file__).resolve().parent.parent / "candidates"
SILU = CANDIDATES.parent.parent / "kernels" / "library" / "silu_and_mul"
pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("pyopencl")
    command = [sys.executable, "-m", "tunesmith.cli.main", *arguments, "--backend", "opencl"]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_a_right_candidate_is_accepted_with_exit_code_0() -> None:
    done = run("check", "silu_and_mul", "--source", str(SILU / "baseline.cl"), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["verdict"] == "accepted" and found["reason"] == ""
    assert found["artifacts"]["candidate"] and found["artifacts"]["baseline"]


def test_a_wrong_candidate_is_rejected_with_exit_code_1_and_a_reason() -> None:
    done = run("check", "silu_and_mul", "--source", str(CANDIDATES / "bad" / "no_tail.cl"), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and (found["verdict"], found["reason"]) == ("rejected", "unwritten")


def test_a_compile_error_is_told_once(tmp_path: Path) -> None:
    """Not by the compiler on standard error as well."""
    source = tmp_path / "broken.cl"
    source.write_text("__kernel void silu_and_mul() { undefined }")
    done = run("check", "silu_and_mul", "--source", str(source))
    assert done.returncode == 1 and "undefined" in done.stdout and done.stderr == ""


def test_fifty_megabytes_are_rejected_unread(tmp_path: Path) -> None:
    large = tmp_path / "large.cl"
    with large.open("wb") as file:
        file.truncate(50_000_000)
    done = run("check", "silu_and_mul", "--source", str(large), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["reason"] == "source_too_large"


def test_a_nul_in_a_source_is_a_rejection(tmp_path: Path) -> None:
    source = tmp_path / "nul.cl"
    source.write_bytes(b"int x;\0")
    done = run("check", "silu_and_mul", "--source", str(source), "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["reason"] == "forbidden_source"


@pytest.mark.parametrize("config", ['{"X": 1}', "[1]", "no json"])
def test_a_mistake_in_the_configuration_is_exit_code_2(config: str) -> None:
    done = run("check", "silu_and_mul", "--source", str(SILU / "baseline.cl"), "--config", config)
    assert done.returncode == 2 and "--config" in done.stderr and "Traceback" not in done.stderr


def test_bench_gives_one_comparison_with_intervals_and_other_times_apart() -> None:
    done = run("bench", "silu_and_mul", "--config", '{"VEC": 8}', "--workload", "256x4096", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    (row,) = found["workloads"]
    assert done.returncode == 0, done.stderr
    assert row["cold"]["low"] <= row["cold"]["ratio"] <= row["cold"]["high"]
    assert row["warm_l2_seconds"]["candidate"] > 0 and row["call_to_call_seconds"]["baseline"] > 0
    assert found["launch_floor_seconds"] > 0 and found["artifacts"]["candidate"]
