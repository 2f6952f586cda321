"""What a verdict compiles: a candidate for each combination of types, its marked twin, and the task's baseline.

Owns the compile process of a judgement and the thread that waits for it: questions are compiled in their order, ahead
of the steps that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tunesmith.actors.process.isolated import Isolated
from tunesmith.actors.process.workers import CompileWorker
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import NotMarked
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.blocks import MarkedArtifact
from tunesmith.kernels.build.candidate import Candidate, TypesKey, types_key, undeclared_state
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.check.coverage import Coverage
from tunesmith.kernels.outcome import Outcome, describe
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Template

PROBE_SECONDS = 60.0
"""To compile what measures the device's roofs."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Built:
    """What steps launch. workloads: of all steps; coverage: counts the parts of the candidate that run, or says why
    that cannot be told."""

    candidate: Candidate
    baseline: Candidate
    coverage: Coverage | str
    workloads: tuple[Workload, ...]


def compile_all(
    compiler: Isolated, template: Template, config: Config, workloads: Sequence[Workload], seconds: float
) -> Candidate | Outcome:
    """`template` at `config` for every combination of types of `workloads`, or the first failure."""
    artifacts: dict[TypesKey, Artifact] = {}
    for workload in workloads:
        if types_key(workload) in artifacts:
            continue
        made = compiler.call("compile", seconds, specialise(template, config, workload.types))
        if not isinstance(made, Artifact):
            failure: Outcome = made
            return failure
        if (kept := undeclared_state(template, made)) is not None:
            return kept
        artifacts[types_key(workload)] = made
    return Candidate(template, config, artifacts)


class Builder:
    """One compile process and its queue. seconds: to compile one source. Use as a context manager; at its end nothing
    is compiled any more."""

    def __init__(self, task: Task, limits: DeviceLimits, index: int, seconds: float) -> None:
        self._task, self._limits, self._seconds = task, limits, seconds
        self._compiler = Isolated("compile", CompileWorker, limits, index)
        self._queue = ThreadPoolExecutor(1, "builder")
        self._last: Future[Any] | None = None
        self._baseline: dict[TypesKey, Artifact] = {}
        self._marked_baseline: dict[TypesKey, MarkedArtifact] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None and not self._last.done():
            self._compiler.kill()
        self._queue.shutdown(cancel_futures=True)
        self._compiler.end()

    def build(self, template: Template, config: Config, workloads: Sequence[Workload]) -> Future[Built | Outcome]:
        """What steps on `workloads` need, or the candidate's first failure. The future raises `TunesmithError` where
        the baseline cannot be compiled."""
        return self.after(lambda: self._build(template, config, workloads))

    def probes(self) -> dict[str, Artifact] | None:
        """What measures the device's roofs; None where it cannot be compiled."""
        found = self.after(lambda: self._compiler.call("probes", PROBE_SECONDS)).result()
        return found if isinstance(found, dict) else None

    def after(self, work: Callable[[], T]) -> Future[T]:
        """Does `work` once everything that was asked for before is compiled."""
        made = self._queue.submit(work)
        self._last = made
        return made

    def _build(self, template: Template, config: Config, workloads: Sequence[Workload]) -> Built | Outcome:
        candidate = compile_all(self._compiler, template, config, workloads, self._seconds)
        if not isinstance(candidate, Candidate):
            return candidate
        baseline = self._compiled_baseline(workloads)
        coverage = self._coverage(candidate, workloads)
        if isinstance(coverage, Coverage):
            plain = self._coverage(baseline, workloads, self._marked_baseline)
            coverage.plain = plain if isinstance(plain, Coverage) else None
        return Built(candidate, baseline, coverage, tuple(workloads))

    def _compiled_baseline(self, workloads: Sequence[Workload]) -> Candidate:
        """The baseline, each combination of types compiled once."""
        plain = self._task.sources(self._limits.backend).baseline.template
        missing = [workload for workload in workloads if types_key(workload) not in self._baseline]
        made = compile_all(self._compiler, plain, {}, missing, self._seconds)
        if not isinstance(made, Candidate):
            raise TunesmithError(f"The baseline of {self._task.name} cannot be compiled: {describe(made)}.")
        self._baseline |= made.artifacts
        wanted = {types_key(workload) for workload in workloads}
        return Candidate(plain, {}, {key: one for key, one in self._baseline.items() if key in wanted})

    def _coverage(
        self, candidate: Candidate, workloads: Sequence[Workload], known: dict[TypesKey, MarkedArtifact] | None = None
    ) -> Coverage | str:
        """The candidate's marked twin, or why there is none. known: twins that were compiled before, to which new ones
        are added."""
        marked = {} if known is None else known
        for workload in workloads:
            key = types_key(workload)
            if key in marked:
                continue
            source = specialise(candidate.template, candidate.config, workload.types)
            made = self._compiler.call("mark", self._seconds, source)
            if not isinstance(made, MarkedArtifact):
                why = made.why if isinstance(made, NotMarked) else describe(made)
                return f"whether every part of the kernel ran was not looked at: {why}"
            marked[key] = made
        return Coverage(candidate, {key: marked[key] for key in map(types_key, workloads)})


__all__ = ["Builder", "Built", "compile_all"]
