"""Reads the candidates and judges them, for tests and for scripts/measure.

index.toml lists candidates that are the baseline of their task with some texts replaced, or a file of their own. The
files in edited/ hold many more, each a kernel of bases/ (behind the prelude of its backend) with some texts replaced,
or a text of its own (`source`). They also have `launch` and `device_globals` as in a template; `backends`, both if left
out; and `class`, a row of docs/trust.md, for counting. Where `judge` and `reasons` are left out, these are a device and
any reason, as it depends on what is drawn which check finds it first; with judge = "none" nothing can tell. What stands
at the top of such a file counts for all of its candidates that do not say otherwise.
"""

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, compile_all, judge, rejected
from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task, read_template
from tunesmith.kernels.spec.template import Template

LARGEST_BYTES = 64e6
"""Larger workloads add nothing to what these candidates show."""
FOLDER = Path(__file__).resolve().parent
SUFFIX = {"cuda": "cu", "opencl": "cl"}
NOT_A_VERDICT = ("compile_failed", "compile_crashed", "infeasible", "launch_failed", "timed_out", "crashed")
"""Reasons that would say of a wrong result only that the candidate was written badly."""
ANY_REASON = tuple(reason for reason in REASONS if reason not in NOT_A_VERDICT)


@dataclass(frozen=True, slots=True)
class Fixture:
    """One candidate. file: its name; reasons: the right ones, empty for a candidate that must be accepted; judge: where
    a verdict can be had; kind: how it is wrong, of those in edited/; text: its source."""

    file: str
    task: str
    judge: str
    text: str
    reasons: tuple[str, ...] = ()
    template: str | None = None
    kind: str = ""
    launch: dict[str, Any] | None = None
    device_globals: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        return "cuda" if self.file.endswith(".cu") else "opencl"

    def load(self) -> tuple[Task, Template]:
        task = task_of(self.task)
        if self.template is not None:
            return task, read_template(FOLDER / self.template, self.backend, task.entry, self.text)
        plain = task.sources(self.backend).baseline.template
        fields = {**plain.model_dump(), "name": "candidate", "source": self.text, "static_shared_bytes": "0"}
        if self.launch is not None:
            fields["launch"] = self.launch
        return task, Template.model_validate({**fields, "device_globals": self.device_globals})

    def agrees(self, verdict: CandidateVerdict) -> bool:
        return verdict.accepted if not self.reasons else verdict.reason in self.reasons


@functools.cache
def task_of(name: str) -> Task:
    """A task of the library, or one in tasks/ by its path."""
    named = FOLDER / name
    return load_task(str(named) if named.exists() else name)


def fixtures() -> list[Fixture]:
    """The candidates of the index, in its order."""
    found = []
    for entry in tomllib.loads((FOLDER / "index.toml").read_text(encoding="utf-8"))["candidate"]:
        backend = "cuda" if entry["file"].endswith(".cu") else "opencl"
        if "edits" in entry:
            text = _replaced(entry["file"], task_of(entry["task"]).sources(backend).baseline.template.source, entry)
        else:
            text = (FOLDER / entry["file"]).read_text(encoding="utf-8")
        keys = {key: entry[key] for key in ("file", "task", "judge", "template") if key in entry}
        found.append(Fixture(**keys, text=text, reasons=tuple(entry.get("reasons", ()))))
    return found


def edited() -> list[Fixture]:
    """The candidates of edited/, one for each backend."""
    return [one for path in sorted((FOLDER / "edited").glob("*.toml")) for one in _edited_in(path)]


def _edited_in(path: Path) -> Iterator[Fixture]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    common = {key: value for key, value in content.items() if key not in ("wrong", "right")}
    for is_wrong, entries in ((True, content.get("wrong", [])), (False, content.get("right", []))):
        for entry in entries:
            one = {**common, **entry}
            text = one.get("source") or _replaced(one["id"], (FOLDER / "bases" / one["base"]).read_text("utf-8"), one)
            task = f"tasks/{one['task']}/task.toml"
            for backend in one.get("backends", ("opencl", "cuda")):
                prelude = (FOLDER / "bases" / f"prelude.{SUFFIX[backend]}").read_text(encoding="utf-8")
                yield Fixture(
                    file=f"edited/{one['id']}.{SUFFIX[backend]}",
                    task=task if (FOLDER / task).exists() else one["task"],
                    judge=one.get("judge", "gpu" if backend == "cuda" else "pocl"),
                    text=prelude + text,
                    reasons=tuple(one.get("reasons", ANY_REASON)) if is_wrong else (),
                    kind=one["class"] if is_wrong else "",
                    launch=one.get("launch", {"grid": ["ceil_div(n, 64)"], "block": [64]}),
                    device_globals=tuple(one.get("device_globals", ())),
                )


def _replaced(name: str, text: str, entry: dict[str, Any]) -> str:
    for old, new in entry["edits"]:
        if text.count(old) != 1:
            raise ValueError(f"{name}: the text {old!r} stands {text.count(old)} times in the base, not once")
        text = text.replace(old, new)
    return text


def verdict_of(
    fixture: Fixture, limits: DeviceLimits, index: int, deadlines: Deadlines, processes: int | None = None
) -> CandidateVerdict:
    """The full verdict, on the device. processes: that go through its steps; as many as suit this machine if left
    out."""
    if (refused := refuse_text(fixture.text, limits.backend)) is not None:
        return rejected(refused)
    task, template = fixture.load()
    options = JudgeOptions(deadlines=deadlines, largest_bytes=LARGEST_BYTES, processes=processes)
    return judge(task, limits, index, [(template, template.default_config, None)], options)[0]


def compiler_verdict(fixture: Fixture, limits: DeviceLimits, deadlines: Deadlines) -> CandidateVerdict | None:
    """The verdict of source rules and compiler, which need no device; None where these have nothing against it."""
    if (refused := refuse_text(fixture.text, limits.backend)) is not None:
        return rejected(refused)
    task, template = fixture.load()
    workloads = task.workloads_for(limits.kind, held_out=False)[:1]
    with Isolated("compile", CompileWorker, limits, 0) as compiler:
        made = compile_all([compiler], task, template, template.default_config, workloads, deadlines.compile)
    return None if isinstance(made, Candidate) else rejected(made)
