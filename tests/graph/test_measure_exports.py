"""scripts/measure/exports.py and its workers, as far as they need no GPU: arithmetic, and failures that are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import SimulatedPool, simulate_device
from test_energy_run import TASK, EnergyPool

from tunesmith.cli.measure import exports
from tunesmith.cli.measure.taken_home import dispatch_regret, export_calls, thrift
from tunesmith.graph import tune
from tunesmith.graph.journal.events import ShapeCompared
from tunesmith.graph.journal.store import Journal
from tunesmith.kernels.spec.files.taskfile import load_task


def shape(number: int, ratios: dict[str, list[float]], rule: int) -> dict[str, Any]:
    choices = {"rule": rule, "general": 0, "table": -1, "baseline": -1}
    return {"shape": {"n": number}, "ratios": ratios, "choices": choices}


def test_regrets_of_each_way_to_choose() -> None:
    rows = [
        shape(1, {"0": [0.5, 0.49, 0.51], "1": [0.4, 0.39, 0.41]}, rule=1),
        shape(2, {"0": [1.1, 1.05, 1.15], "1": [1.01, 1.005, 1.02]}, rule=1),
        # The rule's kernel cannot be launched here, and the baseline takes its place.
        shape(3, {"0": [0.8, 0.7, 0.9]}, rule=1),
        shape(4, {}, rule=1),
    ]
    found = {row["policy"]: row for row in dispatch_regret.policies(rows)}
    assert [row["shapes"] for row in found.values()] == [3] * 5
    rule, general, baseline = found["rule"], found["general"], found["baseline"]
    assert (rule["median_regret"], rule["worst_regret"], rule["worst_shape"]) == (0.01, 0.25, {"n": 3})
    assert (rule["slower"], rule["clearly_slower"]) == (1, 0)
    assert (general["slower"], general["clearly_slower"], general["worst_regret"]) == (1, 1, 0.25)
    assert baseline["worst_regret"] == 1.5 and baseline["speedup"] == 1.0 and found["table"]["slower"] == 0
    assert found["oracle"]["worst_regret"] == 0.0 and found["oracle"]["speedup"] == pytest.approx(
        (1 / 0.32) ** (1 / 3), abs=1e-4
    )
    assert dispatch_regret.policies(rows[3:]) == []


def test_calls_are_timed_in_turn_and_compared_round_by_round() -> None:
    now, log = [0.0], []

    def way(name: str, seconds: float) -> Any:
        def call() -> None:
            log.append(name)
            now[0] += seconds + len(log) * 1e-9

        return call

    def synchronize() -> None:
        now[0] += 1e-6

    ways = {"operator": way("operator", 5e-6), "by hand": way("by hand", 4e-6)}
    times = export_calls.time_calls(ways, synchronize, calls=10, rounds=4, clock=lambda: now[0])
    assert {name: len(one) for name, one in times.items()} == {"operator": 4, "by hand": 4}
    assert len(log) == 2 * 10 * 5, "one round more, to warm up"
    operator, hand = export_calls.call_rows(times, "operator")
    assert operator["operator_takes_more_us"] == 0 and hand["operator_takes_more_us"] == pytest.approx(1.0, abs=0.1)
    assert operator["quartiles_us"][0] <= operator["us"] <= operator["quartiles_us"][1]
    # The wait at the end belongs to the calls, spread over them.
    assert hand["us"] == pytest.approx(4.1, abs=0.1)


def test_errors_are_found_wherever_they_are() -> None:
    rows = [
        {"a": 1},
        {"calls": {"error": "no"}, "checks": [{"error": "bad"}, {"error": ""}]},
        {"mj": 90, "error": 0.02},
    ]
    assert exports.errors_in(rows) == ["no", "bad"], "an energy's relative error is none"


def test_commands_run_side_by_side_and_their_failures_are_kept() -> None:
    def python(text: str) -> list[str]:
        return [sys.executable, "-c", text]

    ended = exports.run_all(
        {
            "good": python("print('fine')"),
            "bad": python("import sys; sys.exit('what went wrong')"),
            "endless": python("import time; print('begun', flush=True); time.sleep(600)"),
        },
        limit=5.0,
    )
    assert (ended["good"]["output"], ended["good"]["error"]) == ("fine\n", "")
    assert ended["bad"]["error"] == "exit code 1: what went wrong"
    assert ended["endless"]["error"].startswith("ended after 5 s")


def test_each_part_is_written_and_a_failure_stops_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: Any) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setattr(exports, "_tune", fail)
    monkeypatch.setattr(exports, "_dispatch", lambda options: [{"task": task} for task in options.runs])
    arguments = ["--out", str(tmp_path), "--parts", "tune,dispatch", "--commit", "abc", "--run", "gemm=elsewhere"]
    assert exports.main(arguments) == 1
    record = json.loads((tmp_path / "exports.json").read_text())
    assert record["commit"] == "abc" and record["versions"]["numpy"]
    assert record["parts"]["tune"]["rows"] == {"error": "RuntimeError: no such device"}
    assert [row["task"] for row in record["parts"]["dispatch"]["rows"]][-1] == "gemm"
    with pytest.raises(SystemExit):
        exports.main(["--out", str(tmp_path), "--parts", "tunes"])


def test_fresh_shapes_are_measured_and_the_run_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    simulate_device(monkeypatch)
    folder = tmp_path / "run"
    tune(TASK, run_dir=folder, backend="opencl", evaluations=6, rounds=1, dispatch_shapes=6)
    before = (folder / "journal.sqlite").read_bytes()
    monkeypatch.setattr(sys, "argv", ["dispatch_regret.py", str(folder), str(tmp_path / "found.json"), "5"])
    assert dispatch_regret.main() == 0
    assert (folder / "journal.sqlite").read_bytes() == before
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["shapes"]) == 5 == found["policies"][0]["shapes"]
    with Journal(folder, create=False) as journal:
        known = {entry.event.workload.sizes["n"] for entry in journal.entries(ShapeCompared)}
    assert len(known) >= 6 and not known & {row["shape"]["n"] for row in found["shapes"]}
    assert found["fitted"] >= 3 and found["kernels"] and all(row["baseline_us"] == 20.0 for row in found["shapes"])


def test_the_fastest_and_the_thriftiest_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    simulate_device(monkeypatch)
    monkeypatch.setattr("tunesmith.actors.pool.pool.Pool", EnergyPool)
    monkeypatch.setattr("tunesmith.graph.run.require_energy", lambda device, settings: None)
    found = thrift.measure(load_task(TASK), tmp_path / "runs", 60, 0.25, "opencl")
    baseline, fastest, thriftiest = found["compared"]
    assert [row["which"] for row in found["compared"]] == ["baseline", "fastest", "thriftiest"]
    assert "ITEMS=16" in fastest["config"] and "ITEMS=1," in thriftiest["config"]
    assert fastest["us"] < thriftiest["us"] < baseline["us"] and thriftiest["energy"] < fastest["energy"] < 1
    assert fastest["watts"] == pytest.approx(fastest["mj"] * 1e3 / fastest["us"])
    assert len(found["front"]) == 3 and len(found["searched"]) > 20 and found["searched"][0]["sm_mhz"] == 1500.0
    # A device that tells no energy is compared by time alone.
    monkeypatch.setattr("tunesmith.actors.pool.pool.Pool", SimulatedPool)
    blind = thrift.compared(load_task(TASK).workloads[0], [], [], [], ())
    assert blind == {"compared_on": "16384", "compared": []}
