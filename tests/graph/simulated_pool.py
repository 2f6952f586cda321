"""A pool whose device is a formula: for tests of the roles' decisions, as against a device's measurements."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from tunesmith.actors.judging.judge import CandidateVerdict
from tunesmith.actors.judging.task_check import check_reference
from tunesmith.graph import tune
from tunesmith.graph.run import RunResult, _commit
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.check.coverage import Unexecuted
from tunesmith.kernels.measure.bench import WorkloadComparison
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.outcome import CompileFailed, Evaluation, Measured, Outcome
from tunesmith.kernels.reader.signature import require_signatures
from tunesmith.kernels.spec.template import Config, Template, config_key

SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add" / "task.toml"
COMMIT = functools.cache(_commit)
EXAMINED = set[tuple[Callable[..., Any], str]]()
"""The calls that `once` has made."""


class SimulatedPool:
    """Takes its arguments as `Pool` does. `measured` lists every configuration put on the device, by all pools."""

    target_in_flight = max_in_flight = 1
    lanes = ()
    measured: list[dict[str, Any]]
    examined: ClassVar[list[str]] = []
    wrong: ClassVar[list[dict[str, Any]]] = []
    """Configurations that only an examination finds wrong."""
    partial: ClassVar[list[dict[str, Any]]] = []
    """Configurations of which an examination finds lines that never ran."""
    lines: ClassVar[tuple[int, ...]] = (12,)
    beside: ClassVar[tuple[int, ...]] = ()
    """Lines of the source that ran in no check, for configurations in `partial`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.in_flight = 0
        self.roofline = Roofline()
        self._waiting: list[EvaluationRequest] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.clear()

    def submit(self, request: EvaluationRequest) -> None:
        self.in_flight += 1
        self._waiting.append(request)

    def collect(self, timeout: float = 1.0) -> list[tuple[EvaluationRequest, Evaluation]]:
        # The newest first: results never come back in the order of the asks.
        request = self._waiting.pop()
        self.in_flight -= 1
        return [(request, self._evaluate(request))]

    def evaluate(self, requests: Iterable[EvaluationRequest]) -> Iterator[tuple[EvaluationRequest, Evaluation]]:
        return ((request, self._evaluate(request)) for request in requests)

    def calibrate(self) -> Roofline:
        return Roofline()

    def compare(
        self,
        baseline: EvaluationRequest,
        candidates: Sequence[EvaluationRequest],
        workload: str,
        *,
        seed: int,
        **_: Any,
    ) -> WorkloadComparison:
        base = [[seconds(baseline.config, workload)]] * 5
        times = [[[seconds(candidate.config, workload)]] * 5 for candidate in candidates]
        return WorkloadComparison(workload, tuple(compare(samples, base) for samples in times))

    def examine(self, jobs: Sequence[tuple[Template, Config, str | None]], **_: Any) -> list[CandidateVerdict]:
        self.examined.extend(config_key(config) for _, config, _ in jobs)
        wrong = CandidateVerdict("rejected", "mismatch", "it is wrong on odd sizes")
        partial = CandidateVerdict("accepted", unexecuted=(Unexecuted("T=float32", 1, 9, self.lines, (), self.beside),))
        return [
            wrong if config in self.wrong else partial if config in self.partial else CandidateVerdict("accepted")
            for _, config, _ in jobs
        ]

    def _evaluate(self, request: EvaluationRequest) -> Evaluation:
        outcomes: dict[str, Outcome] = {}
        if request.config:
            self.measured.append(dict(request.config))
        if request.config.get("GROUP") == 1:
            outcomes[request.workloads[0]] = CompileFailed("error: not here")
        else:
            for name in request.workloads:
                time = seconds(request.config, name)
                outcomes[name] = Measured(time, time * 0.99, time * 1.01, samples=7, launches=1)
        return Evaluation(request.template.id, request.config, outcomes)


def changed(found: Evaluation, change: Callable[[str, Measured], Measured]) -> Evaluation:
    """An evaluation whose measurements, by workload, are other ones."""
    outcomes = {name: change(name, one) if isinstance(one, Measured) else one for name, one in found.outcomes.items()}
    return replace(found, outcomes=outcomes)


def seconds(config: dict[str, Any], workload: str) -> float:
    """The baseline takes 20 us a workload; the best point of scale_add about 6."""
    if not config:
        return 20e-6
    away = abs(math.log2(config["GROUP"] / 16)) + abs(math.log2(config["ITEMS"] / 16)) - config["UNROLL"] / 2
    return (6 + away + len(workload) / 10) * 1e-6


def once(look: Callable[..., Any]) -> Callable[..., None]:
    """`look`, which raises an error for a mistake in a task, unless it found none with the same arguments before: most
    runs here are of one task, and calling its reference takes as long as the rest of a run."""

    def examine(*arguments: Any, **options: Any) -> None:
        key = look, repr((arguments, options))
        if key not in EXAMINED:
            look(*arguments, **options)
            EXAMINED.add(key)

    return examine


def commit_of(folder: Path) -> str:
    """The commit of a task's folder, for which git is asked once where no test changes it."""
    return (COMMIT if folder.is_relative_to(SCALE_ADD.parents[1]) else _commit)(folder)


def simulate_device(monkeypatch: pytest.MonkeyPatch, pool: type[SimulatedPool] = SimulatedPool) -> list[dict[str, Any]]:
    """Every run of a test is on a simulated device, without a cluster; its lists of evaluations begin empty. Gives the
    list of measured configurations."""

    @contextmanager
    def no_cluster() -> Iterator[Any]:
        yield False

    monkeypatch.setattr("tunesmith.actors.ray_cluster.cluster", no_cluster)
    monkeypatch.setattr("tunesmith.actors.ray_cluster.total", {"CPU": 2, "GPU": 0}.get)
    monkeypatch.setattr("tunesmith.actors.pool.Pool", pool)
    monkeypatch.setattr("tunesmith.graph.run._commit", commit_of)
    for look in (check_reference, require_signatures):
        monkeypatch.setattr(f"tunesmith.graph.run.{look.__name__}", once(look))
    for name in ("measured", "examined", "wrong", "partial"):
        monkeypatch.setattr(SimulatedPool, name, [], raising=False)
    return SimulatedPool.measured


def tuned(folder: Path, task: Any = SCALE_ADD, **settings: Any) -> RunResult:
    return tune(task, run_dir=folder, **{"backend": "opencl", "strategy": "random"} | settings)


def ended_run(folder: Path, task: Path = SCALE_ADD, **settings: Any) -> RunResult:
    """A run on a simulated device that has ended."""
    few = {"evaluations": 3, "rounds": 1, "seed": 1, "wisdom": False}
    with pytest.MonkeyPatch.context() as patch:
        simulate_device(patch)
        return tuned(folder, task, **few | settings)


def add_templates(task: Path, *names: str) -> None:
    """Copies of the task's template, under other names."""
    text = (task / "template.toml").read_text()
    for name in names:
        (task / f"{name}.toml").write_text(text.replace('name = "runs"', f'name = "{name}"', 1))
    files = ", ".join(f'"{name}.toml"' for name in ("template", *names))
    whole = (task / "task.toml").read_text()
    (task / "task.toml").write_text(whole.replace('templates = ["template.toml"]', f"templates = [{files}]"))


def add_workload(task: Path) -> None:
    """A third tuned workload; none is held out then."""
    text = (task / "task.toml").read_text().replace("held_out = true\n", "")
    (task / "task.toml").write_text(text + "\n[[workloads]]\nsizes = { n = 777 }\nweight = 2.0\n")
