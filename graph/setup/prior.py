"""Earlier results for a run to begin with: the measurements of another run, or a recorded table (`tune --prior`).

Owns reading them and keeping them in the run's own journal, so that a resumed run has the same prior even where the
source is gone, and which of them a search gets: two templates may have the same parameters and mean other things by
them. How a search uses it is in `tunesmith.kernels.search.prior`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tunesmith.graph.journal.events import PriorKept
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.measurements import observation, quantities_of
from tunesmith.graph.journal.records import KnownResult, TemplateResults
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.settings import SettingsError
from tunesmith.kernels.search import Observation, Prior
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.template import Template


def read_prior(path: Path) -> PriorKept:
    """The results in `path` (a run's folder, or a table in Kernel Tuner's format), as a journal keeps them. Raises
    `TunesmithError`."""
    if path.is_dir():
        return _of_run(path)
    prior = _of_table(path)
    return PriorKept(name=prior.name, results=tuple((config, one.value, one.failure) for config, one in prior.results))


def require_common(prior: PriorKept, templates: Sequence[Template]) -> None:
    """Raises `SettingsError` when no template has all its parameters in the prior, which is then of no use."""
    known = {frozenset(config) for config, _, _ in _all_results(prior)}
    wanted = [{parameter.name for parameter in template.parameters} for template in templates]
    if wanted and not any(names <= one for names in wanted for one in known):
        missing, had = min(
            ((sorted(names - one), sorted(one)) for names in wanted for one in known), key=lambda pair: len(pair[0])
        )
        raise SettingsError(
            f"--prior: the results of {prior.name} have the parameters {', '.join(had) or '(none)'}; this "
            f"task's templates also need {', '.join(missing)}. Give results of the same or a similar template."
        )


def prior_of(log: RunLog, template: Template, space: Space) -> Prior | None:
    """The prior of a run for the search of `template`; None when it has none.

    These are the results of that template in the other run, by its id, or else of those that have its name. Where they
    say nothing of a point of `space`, they are those of no known template and, as far as `space` has the configuration,
    those of the other templates.
    """
    kept = log.prior
    if kept is None:
        return None
    same = [one for one in kept.templates if one.template == template.id]
    alike = [one for one in kept.templates if one.name == template.name]
    fitting = [row for one in kept.templates for row in one.results if space.index(row[0]) is not None]
    choices = [[row for one in found for row in one.results] for found in (same, alike)]
    for rows in (*choices, [*kept.results, *fitting]):
        if any(value is not None for _, value, _ in rows) and (prior := _prior(rows, kept.name)).best(space, 1):
            return prior
    return None


def _prior(rows: Iterable[KnownResult], name: str) -> Prior:
    return Prior(((config, Observation(value, failure=failure)) for config, value, failure in rows), name)


def _all_results(prior: PriorKept) -> list[KnownResult]:
    return [*prior.results, *(row for one in prior.templates for row in one.results)]


def _of_table(path: Path) -> Prior:
    if not path.is_file():
        raise SettingsError(f"--prior: {path} is neither the folder of a run nor a table of `tunesmith exhaust`.")
    return Prior.from_table(path)


def _of_run(folder: Path) -> PriorKept:
    """The evaluations that a run made on all its tuned workloads at once; those on one alone are of another scale.
    Templates that never came into the run, or that a role took out of it, are left out."""
    with Journal(folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        started, baseline = log.started, log.baseline
        if started is None or baseline is None:
            raise JournalError(f"--prior: the run in {folder} has measured nothing yet; name another.")
        of, vetoed = log.objective, log.vetoed()
        base = quantities_of(baseline, of)
        weights = {workload.name: workload.weight for workload in started.task.workloads}
        found: dict[str, list[KnownResult]] = {}
        for evaluation in log.evaluations():
            whole = evaluation.failure is not None or set(base) <= set(evaluation.outcomes)
            if whole and log.has_template(evaluation.template) and evaluation.template not in vetoed:
                seen = observation(evaluation, list(base), base, weights, of)
                found.setdefault(evaluation.template, []).append((evaluation.config, seen.value, seen.failure))
        templates = tuple(
            TemplateResults(template=one, name=log.template(one).name, results=tuple(rows))
            for one, rows in found.items()
        )
    prior = PriorKept(name=f"the run {folder.name}", templates=templates)
    # Raises where nothing was measured: before this run begins, not in its first search.
    _prior(_all_results(prior), prior.name)
    return prior


__all__ = ["prior_of", "read_prior", "require_common"]
