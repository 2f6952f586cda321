"""Models whose answers a test writes, with the promise of real ones: what is in the ledger is never paid again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunesmith.graph.models.calls import ModelCall, ModelFailed, Reply

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
    chosen = list(branches) or [branch()]
    return {
        "analysis": "Bound by memory.",
        "bottleneck": "memory",
        "branches": chosen,
        "workloads": [],
        "expected": "More bytes in flight.",
        **fields,
    }


def branch(parent: str = "baseline", moves: Sequence[str] = ("several elements a work-item",), **fields: Any) -> Any:
    return {"kind": "template" if moves else "search", "parent": parent, "moves": list(moves), "seeds": [], **fields}


KERNEL = SOURCE.replace("GROUP", "16").replace("ITEMS", "1").replace("UNROLL", "0")


def rewrite(mark: str) -> dict[str, Any]:
    """The answer with a whole kernel; `mark` stands in its first line."""
    return {
        "name": "whole",
        "description": "Sixteen elements a work-item.",
        "source": f"// {mark}\n{KERNEL}",
        "grid": ["ceil_div(n, 16)"],
        "block": ["16"],
        "shared_bytes": "0",
        "static_shared_bytes": "0",
    }


def template(**fields: Any) -> dict[str, Any]:
    """The template of tests/data/scale_add as an answer."""
    return {
        "name": "runs",
        "description": "A work-item takes ITEMS neighbouring elements.",
        "source": SOURCE,
        "parameters": [
            {"name": "GROUP", "values": [1, 4, 16, 64], "default": 16, "doc": "work-items of a group"},
            {"name": "ITEMS", "values": [1, 4, 16, 64], "default": 1, "doc": "elements of a work-item"},
            {"name": "UNROLL", "values": [0, 1], "default": 0, "doc": "whether the loop is unrolled"},
        ],
        "constraints": [{"expression": "ITEMS > 1 or UNROLL == 0", "because": "There is no loop to unroll."}],
        "grid": ["ceil_div(n, GROUP * ITEMS)"],
        "block": ["GROUP"],
        "shared_bytes": "0",
        "static_shared_bytes": "0",
        "max_registers": "0",
        "fast_math": "False",
        "seeds": [],
        **fields,
    }


def explain(*lines: str) -> dict[str, Any]:
    return {"lines": list(lines) or ["Sixteen elements a work-item are best."]}
