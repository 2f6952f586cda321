"""Models whose answers a test writes, with the promise of real ones: what is in the ledger is never paid again; and
runs with them on a simulated device."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from journal_rows import events, rows
from pydantic import ValidationError
from simulated_pool import SimulatedPool

from tunesmith.graph import resume, tune
from tunesmith.graph.journal.events import Planned
from tunesmith.graph.models.calls import ModelCall, ModelFailed, Reply
from tunesmith.graph.roles.templater import RewriteAnswer
from tunesmith.graph.run import RunResult
from tunesmith.graph.state import Plan
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import CompileFailed, Evaluation, LaunchFailed, WrongResult

Script = Callable[[ModelCall], dict[str, Any] | ModelFailed]
DATA = Path(__file__).resolve().parent.parent / "data"
SOURCE = (DATA / "scale_add" / "template.cl").read_text()


class Scripted:
    """Answers by `script`. `ledger`: a file of paid answers, which outlives the process; `turns`: the calls of each
    `ask_all` that had to pay for something."""

    def __init__(self, script: Script, ledger: Path) -> None:
        self.script, self.ledger = script, ledger
        self.turns: list[list[ModelCall]] = []

    @property
    def paid(self) -> list[str]:
        return [entry["custom_id"] for entry in self._entries()]

    def asked(self, role: str = "", stage: str = "") -> list[ModelCall]:
        """The calls it had to pay for, in their order: of a role and a stage, or all."""
        calls = [call for turn in self.turns for call in turn]
        return [call for call in calls if role in ("", call.role) and stage in ("", call.stage)]

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def ask_all(self, calls: Sequence[ModelCall]) -> list[Reply | ModelFailed]:
        known = {(entry["custom_id"], entry["digest"]): entry["answer"] for entry in self._entries()}
        fresh = [call for call in calls if (call.custom_id, call.digest) not in known]
        if fresh:
            self.turns.append(list(fresh))
        for call in fresh:
            answer = self.script(call)
            shown = answer if isinstance(answer, dict) else {"failed": [answer.kind, answer.detail]}
            known[call.custom_id, call.digest] = shown
            with self.ledger.open("a") as file:
                file.write(json.dumps({"custom_id": call.custom_id, "digest": call.digest, "answer": shown}) + "\n")
        return [self._reply(call, known[call.custom_id, call.digest]) for call in calls]

    def _reply(self, call: ModelCall, answer: dict[str, Any]) -> Reply | ModelFailed:
        if "failed" in answer:
            return ModelFailed(*answer["failed"])
        text = json.dumps(answer)
        try:
            return Reply(call.schema.model_validate(answer), text)
        except ValidationError as error:
            return ModelFailed("unstructured", str(error.errors()[0]["msg"]), text)


def plan(*branches: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = {"analysis": "Bound by memory.", "bottleneck": "memory", "expected": "More bytes in flight."}
    return found | {"branches": list(branches) or [branch()], "workloads": []} | fields


def branch(parent: str = "baseline", moves: Sequence[str] = ("several elements a work-item",), **fields: Any) -> Any:
    return {"kind": "template" if moves else "search", "parent": parent, "moves": list(moves), "seeds": [], **fields}


KERNEL = SOURCE.replace("GROUP", "16").replace("ITEMS", "1").replace("UNROLL", "0")


def rewrite(mark: str) -> dict[str, Any]:
    """The answer with a whole kernel; `mark` stands in its first line."""
    about = {"name": "whole", "description": "Sixteen elements a work-item.", "source": f"// {mark}\n{KERNEL}"}
    return about | {"grid": ["ceil_div(n, 16)"], "block": ["16"], "shared_bytes": "0", "static_shared_bytes": "0"}


def template(**fields: Any) -> dict[str, Any]:
    """The template of tests/data/scale_add as an answer."""
    none = dict.fromkeys(("shared_bytes", "static_shared_bytes", "max_registers"), "0")
    return {
        **{"name": "runs", "description": "A work-item takes ITEMS neighbouring elements.", "source": SOURCE},
        "parameters": [
            {"name": "GROUP", "values": [1, 4, 16, 64], "default": 16, "doc": "work-items of a group"},
            {"name": "ITEMS", "values": [1, 4, 16, 64], "default": 1, "doc": "elements of a work-item"},
            {"name": "UNROLL", "values": [0, 1], "default": 0, "doc": "whether the loop is unrolled"},
        ],
        "constraints": [{"expression": "ITEMS > 1 or UNROLL == 0", "because": "There is no loop to unroll."}],
        **{"grid": ["ceil_div(n, GROUP * ITEMS)"], "block": ["GROUP"], "fast_math": "False", "seeds": []},
        **(none | fields),
    }


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
