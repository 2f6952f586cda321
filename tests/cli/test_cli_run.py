"""A whole run from the command line, and everything it leaves behind."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_json_and_nothing_else_is_on_standard_output_and_progress_on_standard_error(finished_run: Any) -> None:
    assert finished_run.code == 0, finished_run.stderr
    shown, summary = json.loads(finished_run.stdout), finished_run.summary
    assert shown == summary | {"run_dir": str(finished_run.folder)}
    assert "measuring the baseline" in finished_run.stderr and "3/3 evaluations" in finished_run.stderr
    assert "Traceback" not in finished_run.stderr and "raylet" not in finished_run.stderr
    # What was found.
    assert (summary["task"], summary["evaluations"], summary["ended_by"]) == ("scale_add", 3, "rounds")
    assert [[row["workload"] for row in summary[kind]] for kind in ("tuned", "held_out")] == [["16384"], ["5000"]]
    for row in (*summary["tuned"], *summary["held_out"]):
        for figures in (row["general"], row["best"]):
            assert figures["seconds"] > 0 and figures["low"] <= figures["ratio"] <= figures["high"]
            assert figures["verdict"] in ("faster", "slower", "no difference shown")
            assert (figures["verdict"] == "faster") == (figures["high"] < 1)
        assert row["regret"] >= 0
    assert summary["general"]["config"].keys() == {"GROUP", "ITEMS", "UNROLL"} and summary["settings"]["seed"] == 7
    assert "99 % interval" in summary["sentence"] and "baseline" in summary["sentence"]
    assert {"tunesmith", "ray", "langgraph", "numpy"} <= summary["versions"].keys()


def test_the_winner_runs_by_itself(finished_run: Any, tmp_path: Any) -> None:
    best = finished_run.folder / "best"
    dispatch = json.loads((best / "dispatch.json").read_text())
    # Which of them is used depends on what the measurements showed, and nothing that lost is.
    assert dispatch["rule"].get("folder", "general") in ("general", "baseline")
    assert dispatch["verdict"] == finished_run.summary["sentence"]
    assert [shape["sizes"] for shape in dispatch["shapes"]] == [{"n": 16384}, {"n": 5000}]
    assert all((shape["folder"] == "baseline") == (shape["verdict"] != "faster") for shape in dispatch["shapes"])
    for folder in {"general", *(shape["folder"] for shape in dispatch["shapes"])}:
        workloads = json.loads((best / folder / "launch.json").read_text())["workloads"]
        assert all((best / folder / about["source"]).is_file() for about in workloads.values())
        workload = min(workloads, key=int)
        run = [sys.executable, str(best / folder / "launch.py"), workload]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"scale_add on {workload}: right" in done.stdout
    config = finished_run.summary["general"]["config"]
    for source in (best / "general").glob("kernel*.cl"):
        text = source.read_text()
        assert all(f"#define {name} {int(value)}\n" in text for name, value in config.items())


def test_report_and_resume_show_the_run_again(finished_run: Any, here: Any) -> None:
    folder, before = finished_run.folder, finished_run.summary
    plain = here("report", folder)
    assert plain.returncode == 0 and before["sentence"] in plain.stdout
    assert any(line.startswith("Checks of ") and " passed" in line for line in plain.stdout.splitlines())
    assert str(folder / "report.html") in plain.stdout
    assert f"**{before['sentence']}**" in here("report", folder, "--markdown").stdout
    as_json = here("report", folder, "--json")
    assert json.loads(as_json.stdout) == before and as_json.stderr == ""
    done = here("resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert "the run had ended" in done.stderr and "starting workers" not in done.stderr
    after = json.loads(done.stdout)
    assert after["general"] == before["general"] and after["tuned"] == before["tuned"]


def test_every_measurement_is_in_the_table(finished_run: Any, here: Any, tmp_path: Path) -> None:
    out = tmp_path / "measured.csv"
    done = here("report", finished_run.folder, "--csv", out)
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert done.returncode == 0 and f"{out}: {len(rows)} rows" in done.stdout
    compared = [row for row in rows if row["outcome"] == "compared"]
    assert {row["workload"] for row in compared} == {"16384", "5000"}
    assert all(float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"]) for row in compared)
    rows = [row for row in rows if row["outcome"] != "compared"]
    assert [(row["evaluation"], row["workload"]) for row in rows] == [(number, "16384") for number in "0123"]
    assert all(float(row["low"]) <= float(row["seconds"]) <= float(row["high"]) for row in rows)
    general = {name: str(value) for name, value in finished_run.summary["general"]["config"].items()}
    assert general in [{name: row[name] for name in general} for row in rows[1:]]


@pytest.mark.slow
def test_bench_gives_one_comparison_with_intervals(command: Any, device: Any) -> None:
    done = command("bench", "silu_and_mul", "--config", '{"VEC": 8}', "--workload", "256x4096", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["workloads"]
    assert row["cold"]["low"] <= row["cold"]["ratio"] <= row["cold"]["high"]
    assert found["launch_floor_seconds"] > 0 and found["artifacts"]["candidate"] and found["artifacts"]["baseline"]


def test_best_says_which_kernel_serves_a_shape(finished_run: Any) -> None:
    for arguments, wanted in (
        (["n=5000"], ""),
        ([], "not nothing, as in: python dispatch.py n=16\n"),
        *(([given], f"not {given}, as in") for given in ("n=-5", "n=abc", "m=5000")),
        (["n=5000", "T=float16"], "Give n, with sizes as whole numbers of at least 1, not n=5000 T=float16"),
    ):
        command = [sys.executable, str(finished_run.folder / "best" / "dispatch.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == (1 if wanted else 0) and wanted in done.stderr
        assert wanted or done.stdout.split(":")[0] in ("baseline", "general")


@pytest.mark.slow
def test_a_rule_is_fitted_on_the_device(finished_run: Any, command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run.folder, folder)
    done = command("resume", folder, "--dispatch-shapes", 4)
    assert done.returncode == 0, done.stderr
    assert "Dispatch on 2 test shapes" in done.stdout and "Dispatch rule, fitted to 4 shapes" in done.stdout
