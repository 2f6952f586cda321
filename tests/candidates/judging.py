"""Reads the index of candidates and judges them, for tests and for scripts/measure/trust.py."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tunesmith.actors.judging.judge import Limits, Verdict, compile_all, judge, rejected
from tunesmith.actors.process.isolated import Isolated
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.spec.candidate_file import template_of
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template

LARGEST_BYTES = 64e6
"""Larger workloads add nothing to what these candidates show."""
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Fixture:
    """One candidate of the index. reasons: the right ones; empty for a candidate that must be accepted."""

    file: str
    task: str
    judge: str
    reasons: tuple[str, ...] = ()
    template: str | None = None

    @property
    def backend(self) -> str:
        return "cuda" if self.file.endswith(".cu") else "opencl"

    @property
    def expected(self) -> str:
        return " or ".join(self.reasons) or "accepted"

    def load(self) -> tuple[Task, Template]:
        named = FOLDER / self.task
        task = load_task(str(named) if named.exists() else self.task)
        template = None if self.template is None else FOLDER / self.template
        return task, template_of(task, self.backend, FOLDER / self.file, template)

    def agrees(self, verdict: Verdict) -> bool:
        return verdict.accepted if not self.reasons else verdict.reason in self.reasons


def fixtures() -> list[Fixture]:
    """The index, in its order."""
    entries = tomllib.loads((FOLDER / "index.toml").read_text(encoding="utf-8"))["candidate"]
    return [Fixture(**{**entry, "reasons": tuple(entry.get("reasons", ()))}) for entry in entries]


def verdict_of(fixture: Fixture, limits: DeviceLimits, index: int, deadlines: Limits) -> Verdict:
    """The full verdict, on the device."""
    refused = refuse_text((FOLDER / fixture.file).read_text(encoding="utf-8"), limits.backend)
    if refused is not None:
        return rejected(refused)
    task, template = fixture.load()
    question = (template, template.default_config, None)
    return judge(task, limits, index, [question], deadlines=deadlines, largest_bytes=LARGEST_BYTES)[0]


def compiler_verdict(fixture: Fixture, limits: DeviceLimits, deadlines: Limits) -> Verdict | None:
    """The verdict of source rules and compiler, which need no device; None where these have nothing against it."""
    refused = refuse_text((FOLDER / fixture.file).read_text(encoding="utf-8"), limits.backend)
    if refused is not None:
        return rejected(refused)
    task, template = fixture.load()
    workloads = task.workloads_for(limits.kind, held_out=False)[:1]
    with Isolated("compile", CompileWorker, limits, 0) as compiler:
        made = compile_all(compiler, template, template.default_config, workloads, deadlines.compile)
    return None if isinstance(made, Candidate) else rejected(made)
