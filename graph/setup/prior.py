"""Earlier results for a run to begin with: the measurements of another run, or a recorded table (`tune --prior`).

Owns reading them and keeping them in the run's own journal, so that a resumed run has the same prior even where the
source is gone. How a search uses it is in `tunesmith.kernels.search.prior`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunesmith.graph.journal.events import PriorKept
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import observation, quantities_of
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.settings import SettingsError
from tunesmith.kernels.search import Observation, Prior
from tunesmith.kernels.spec.template import Template


def read_prior(path: Path) -> PriorKept:
    """The results in `path` (a run's folder, or a table in Kernel Tuner's format), as a journal keeps them. Raises
    `TunesmithError`."""
    prior = _of_run(path) if path.is_dir() else _of_table(path)
    results = tuple((config, seen.value, seen.failure) for config, seen in prior.results)
    return PriorKept(name=prior.name, results=results)


def require_common(prior: PriorKept, templates: Sequence[Template]) -> None:
    """Raises `SettingsError` when no template has all its parameters in the prior, which is then of no use."""
    known = {name for config, _, _ in prior.results for name in config}
    wanted = [{parameter.name for parameter in template.parameters} for template in templates]
    if wanted and not any(names <= known for names in wanted):
        missing = min((sorted(names - known) for names in wanted), key=len)
        raise SettingsError(
            f"--prior: the results of {prior.name} have the parameters {', '.join(sorted(known)) or '(none)'}; this "
            f"task's templates also need {', '.join(missing)}. Give results of the same or a similar template."
        )


def prior_of(log: RunLog) -> Prior | None:
    """The prior of a run; None when it has none."""
    kept = log.prior
    if kept is None:
        return None
    return Prior(((config, Observation(value, failure=failure)) for config, value, failure in kept.results), kept.name)


def _of_table(path: Path) -> Prior:
    if not path.is_file():
        raise SettingsError(f"--prior: {path} is neither the folder of a run nor a table of `tunesmith exhaust`.")
    return Prior.from_table(path)


def _of_run(folder: Path) -> Prior:
    """The evaluations that a run made on all its tuned workloads at once; those on one alone are of another scale."""
    with Journal(folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        started, baseline = log.started, log.baseline
        if started is None or baseline is None:
            raise JournalError(f"--prior: the run in {folder} has measured nothing yet; name another.")
        of = log.objective
        base = quantities_of(baseline, of)
        weights = {workload.name: workload.weight for workload in started.task.workloads}
        results = []
        for evaluation in log.evaluations():
            if evaluation.failure is not None or set(base) <= set(evaluation.outcomes):
                results.append((evaluation.config, observation(evaluation, list(base), base, weights, of)))
    return Prior(results, f"the run {folder.name}")


__all__ = ["prior_of", "read_prior", "require_common"]
