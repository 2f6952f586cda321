"""From raw OpenCL source to a tuned kernel on a real device, with scripted answers, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from model_runs import RAW
from scripted_models import SOURCE, Scripted, branch, explain, plan, template

from tunesmith.graph import tune
from tunesmith.graph.models.calls import ModelCall

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster", "device")]


def test_bad_answers_are_repaired_and_the_raw_kernel_is_tuned(tmp_path: Path) -> None:
    """One that does not compile, one that is wrong, one that reads a file, one that only the held-out shape shows to be
    wrong; then one that works."""
    asked: list[ModelCall] = []
    bad = [
        template(source=SOURCE.replace("a * x[i]", "a * z[i]")),
        template(source=SOURCE.replace("a * x[i]", "x[i]")),
        template(source='#include "/etc/passwd"\n' + SOURCE),
        template(source=SOURCE.replace("if (i < n) out[i]", "if (i < n / 4 * 4) out[i]")),
    ]

    def script(call: ModelCall) -> Any:
        asked.append(call)
        if call.role == "template":
            return bad.pop(0) if bad else template(name="last")
        return {"plan": plan(branch(moves=["side by side"])), "explain": explain()}[call.role]

    models = Scripted(script, tmp_path / "ledger")
    result = tune(RAW, run_dir=tmp_path / "run", models=models, backend="opencl", evaluations=10, rounds=1, repairs=4)
    said = [call.messages[-1].content for call in asked if "repair" in call.name]
    assert len(said) == 4
    assert (
        "does not compile" in said[0] and "'z'" in said[0] and "/" not in said[0].split("log\n")[1].split(" error")[0]
    )
    assert "result is wrong" in said[1] and "expected" in said[1]
    assert "refused before compiling" in said[2] and "root:" not in said[2]
    assert "on the workload 5001" in said[3] and "out[5000]" in said[3]
    # What was refused by the guard was never evaluated; the other four answers were, and count.
    assert len([event for event in rows(tmp_path / "run", "evaluation") if event.stage.endswith("trial")]) == 4
    assert result.valid and result.summary["evaluations"] == 10
    assert result.summary["failures"].items() >= {("compile_failed", 1), ("wrong_result", 2)}
    row = result.summary["tuned"][0]
    assert row["general"]["seconds"] > 0 and result.summary["held_out"][0]["general"]["verdict"]
    launch = json.loads((tmp_path / "run" / "best" / "general" / "launch.json").read_text())
    assert launch["template"] == "last" and (tmp_path / "run" / "report.html").is_file()
