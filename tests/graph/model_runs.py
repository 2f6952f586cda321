"""Runs with scripted models on a simulated device, for several test modules."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from journal_rows import events, rows
from scripted_models import DATA, SOURCE, Script, Scripted, rewrite, template
from simulated_pool import SimulatedPool

from tunesmith.graph import resume, tune
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.models.calls import ModelCall
from tunesmith.graph.prompts.answers import RewriteAnswer
from tunesmith.graph.run import RunResult
from tunesmith.graph.state import Plan
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import CompileFailed, Evaluation, LaunchFailed, WrongResult

RAW = str(DATA / "raw_scale_add" / "task.toml")
LIBRARY = str(DATA / "scale_add" / "task.toml")


class ModelPool(SimulatedPool):
    """Sources name their fault in a comment: DOES_NOT_COMPILE, WRONG, FAULTS."""

    def compare(self, baseline: EvaluationRequest, candidates: Any, workload: str, **options: Any) -> Any:
        return super().compare(baseline, [likened(one) for one in candidates], workload, **options)

    def _evaluate(self, request: EvaluationRequest) -> Evaluation:
        failures = {
            "DOES_NOT_COMPILE": CompileFailed(
                "runs:3: error: undeclared identifier", "runs:3: error: undeclared\nmore"
            ),
            "WRONG": WrongResult("mismatch", "out", "out[5] is 1, expected 2 (9 or more elements differ)"),
            "FAULTS": LaunchFailed("illegal address"),
        }
        for mark, failure in failures.items():
            if mark in request.template.source:
                self.measured.append({"template": request.template.id, **request.config})
                return Evaluation(request.template.id, request.config, {request.workloads[0]: failure})
        return replace(super()._evaluate(likened(request)), config=request.config)


def likened(request: EvaluationRequest) -> EvaluationRequest:
    """A kernel without parameters takes the time of the configuration its source names: LIKE GROUP ITEMS UNROLL."""
    found = re.search(r"LIKE (\d+) (\d+) (\d+)", request.template.source)
    if request.config or found is None:
        return request
    names = ("GROUP", "ITEMS", "UNROLL")
    return replace(request, config={name: int(value) for name, value in zip(names, found.groups(), strict=True)})


def run(folder: Path, script: Script | None, task: str = RAW, **settings: Any) -> tuple[RunResult, Scripted | None]:
    """One run; the ledger of the model stands beside its folder."""
    models = None if script is None else Scripted(script, folder.parent / f"{folder.name}.ledger")
    chosen: dict[str, Any] = {"backend": "opencl", "strategy": "random", "evaluations": 12, **settings}
    return tune(task, run_dir=folder, models=models, **chosen), models


def go_on(folder: Path, script: Script) -> tuple[RunResult, Scripted]:
    """The run again, with the same ledger."""
    models = Scripted(script, folder.parent / f"{folder.name}.ledger")
    return resume(folder, models=models), models


def plans_of(folder: Path) -> list[Plan]:
    return [event.plan for event in events(folder, Planned)]


def code(call: ModelCall) -> Any:
    """A model that writes code only, each answer its own."""
    if call.schema is RewriteAnswer:
        return rewrite(f"LIKE 16 16 1 {call.custom_id}")
    return template(source=f"// {call.custom_id}\n{SOURCE}")


def keys(folder: Path) -> list[tuple[str, str]]:
    return [(event.data["evaluation"]["template"], event.data["key"]) for event in rows(folder, "evaluation")]
