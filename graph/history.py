"""Results of earlier runs, with which a run begins: from the user's results store, and from `tune --prior`.

The store is one SQLite file, which several runs may use at once. A run keeps the results that it takes from store
and prior in its own journal (`EarlierResults`), so that a resumed run has them even where the sources are gone. How a
search uses a prior is in `tunesmith.kernels.search`.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field, ValidationError

from tunesmith import __version__
from tunesmith.graph.context import Context
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import LIBRARY, Journal, JournalError, RunLog, observation, quantities_of, seconds_of
from tunesmith.graph.settings import Settings, require_writable_file
from tunesmith.graph.state import BASELINE, Bottleneck
from tunesmith.hw.errors import TunesmithError, named_path, refusals
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.rewrite.composition import NAME, unchanged
from tunesmith.kernels.rewrite.passes.record import Change
from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.search import Observation, Prior
from tunesmith.kernels.space import Domain, Space, device_names
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import explain
from tunesmith.kernels.spec.template import Config, Strict, Template, config_key

VARIABLE = "TUNESMITH_WISDOM"
FORMAT: Literal[1] = 1
"""Version of the store and of its exported files."""
MAX_EVIDENCE = 12
"""Lines on kinds of change, under each bound."""
MAX_SUGGESTIONS = 6
"""Configurations that a run takes from the store: each costs an evaluation."""
ROOF_REPORT_RATIO = 0.8
"""Share of a roof's best value below which a new measurement is reported."""
COPY = "copy of "
"""Begins the name of a bandwidth among roofs, before the bytes moved; other roofs are named by data type."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS results (
    task TEXT NOT NULL, template TEXT NOT NULL, config TEXT NOT NULL, backend TEXT NOT NULL, device TEXT NOT NULL,
    driver TEXT NOT NULL, workload TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (task, template, config, backend, device, driver, workload)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS roofs (
    device TEXT NOT NULL, roof TEXT NOT NULL, rate REAL NOT NULL, at TEXT NOT NULL, PRIMARY KEY (device, roof)
) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""


class StoredResult(Strict):
    """A configuration on one shape. seconds of a launch, cold; ratio: to the baseline's time, with its 99 % interval
    from low to high; at: when it was measured, ISO 8601, UTC; run: the folder's name, for people. bound: what limits
    the baseline there; changes: how many times as fast each kind of change made the kernel in that run's search."""

    task: str
    template: str
    config: Config
    backend: str
    device: str
    driver: str
    sizes: dict[str, int]
    types: dict[str, str]
    seconds: float
    ratio: float
    low: float
    high: float
    at: str
    run: str = ""
    tunesmith: str = ""
    bound: Bottleneck = "unknown"
    changes: dict[str, float] = Field(default_factory=dict)


class _Exported(Strict):
    """A file of entries."""

    wisdom: Literal[1]
    entries: list[StoredResult]


class ResultsStore:
    """The results in the file `path`, which is made when something is first kept. Methods raise `TunesmithError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, entries: Iterable[StoredResult]) -> int:
        """Writes entries and returns their number; of two for one configuration, device and shape the newer stays."""
        rows = [
            (
                *(one.task, one.template, config_key(one.config), one.backend, one.device, one.driver),
                json.dumps({"sizes": one.sizes, "types": one.types}, sort_keys=True),
                one.model_dump_json(),
            )
            for one in entries
        ]
        insert = (
            "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET entry = excluded.entry "
            "WHERE json_extract(excluded.entry, '$.at') > json_extract(entry, '$.at')"
        )
        with self.connected() as connection:
            return connection.executemany(insert, rows).rowcount

    def entries(self, task: str | None = None) -> list[StoredResult]:
        """All entries, or a task's, by its name."""
        if not self.path.is_file():
            return []
        with self.connected(create=False) as connection:
            rows = connection.execute("SELECT entry FROM results WHERE task = ifnull(?, task)", (task,)).fetchall()
        try:
            return [StoredResult.model_validate_json(text) for (text,) in rows]
        except ValidationError as error:
            raise self._damaged(error) from error

    def write_file(self, path: Path, *, force: bool = False) -> int:
        """Writes all entries as JSON and returns their number. force: replace any file. Raises `TunesmithError`."""
        require_writable_file(path, "wisdom export", begins=b'{\n "wisdom": ', force=force)
        entries = self.entries()
        text = _Exported(wisdom=FORMAT, entries=entries).model_dump_json(indent=1)
        with refusals(f"{path} cannot be written", "choose another file"):
            path.write_text(text + "\n", encoding="utf-8")
        return len(entries)

    def read_file(self, path: Path) -> int:
        """Keeps the entries of a file that `write_file` wrote, and returns the number of new ones."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return self.keep(_Exported.model_validate(data).entries)
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        except ValidationError as error:
            why = f"does not hold results of earlier runs ({explain(error, data)})"
        except (ValueError, RecursionError) as error:
            why = f"is not valid JSON ({_first_line(error)})"
        raise TunesmithError(f"{path} {why}; name a file that `tunesmith wisdom export` wrote.")

    @contextmanager
    def connected(self, *, create: bool = True) -> Iterator[sqlite3.Connection]:
        """The database; its transaction is committed if the block ends without an exception."""
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=10)) as connection:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, FORMAT):
                    raise TunesmithError(
                        f"{self.path} has the format {version}, and this version reads {FORMAT}: set {VARIABLE} to "
                        "another file, or to off."
                    )
                if create:
                    connection.executescript(_SCHEMA)
                with connection:
                    yield connection
        except (sqlite3.DatabaseError, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> TunesmithError:
        return TunesmithError(
            f"The database of earlier results {self.path} cannot be used ({_first_line(error)}): delete it, or set "
            f"{VARIABLE} to another file or to off."
        )


def open_store(environment: Mapping[str, str] = os.environ) -> ResultsStore | None:
    """This user's results store: TUNESMITH_WISDOM, or in XDG_DATA_HOME or ~/.local/share; None if off, or no home."""
    where = environment.get(VARIABLE, "")
    if where.lower() == "off":
        return None
    if where:
        path = named_path(VARIABLE, where)
        if path.is_dir():
            raise TunesmithError(f"{VARIABLE}: {path} is a folder; name a file, such as {path}/wisdom.sqlite, or off.")
        return ResultsStore(path)
    data = Path(environment.get("XDG_DATA_HOME", ""))
    try:
        data = data if data.is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError:
        return None
    return ResultsStore(data / "tunesmith" / "wisdom.sqlite")


# At the beginning of a run


def suggest(
    task: Task, device: DeviceInfo, settings: Settings, limits: Sequence[DeviceLimits], *, written: bool
) -> events.EarlierResults | None:
    """The history of a new run of `task` on `device`: the results of `settings.prior`, and configurations of the
    results store to measure first; None without either. Raises `TunesmithError`.

    Results of the same model of device come first, among them results on this run's shapes; among equals the largest
    gain. Configurations that no template can have under `limits` are left out, or last if a model writes templates
    (`written`)."""
    templates = task.sources(device.backend).templates
    tuned = task.workloads_for(device.limits.kind, held_out=False)
    prior = None if settings.prior is None else read_prior(named_path("--prior", settings.prior))
    if prior is not None and not written:
        _require_common(prior, templates)
    store = open_store() if settings.wisdom else None
    shapes = [(one.sizes, one.types) for one in tuned]
    usable = [one for one in templates if all(one.runs_on(device_names(limit)) for limit in limits)]

    def fits(result: StoredResult) -> bool:
        """Whether its configuration is a feasible point of some template on a workload of this run."""
        return any(
            not isinstance(Domain(one.parameters).encode(result.config), Rejected)
            and any(all(infeasible_on(one, result.config, row, limit) is None for limit in limits) for row in tuned)
            for one in usable
        )

    known = store.entries(None if written else task.name) if store else []
    known = [one for one in known if one.backend == device.backend]
    # A model's whole kernel has no parameters, and suggests nothing.
    ranked = sorted(
        (one for one in known if one.task == task.name and one.config),
        key=lambda one: (one.device != device.name, (one.sizes, one.types) not in shapes, one.ratio),
    )
    found: dict[str, events.Suggestion] = {}
    for one in (*filter(fits, ranked), *(ranked if written else ())):
        suggestion = events.Suggestion(config=one.config, device=one.device, driver=one.driver, ratio=one.ratio)
        found.setdefault(config_key(one.config), suggestion)
    brought = evidence(known) if written else {}
    if not found and not brought:
        return prior
    kept = {"suggestions": tuple(found.values())[:MAX_SUGGESTIONS], "evidence": brought}
    return (prior or events.EarlierResults()).model_copy(update=kept)


def evidence(results: Iterable[StoredResult]) -> dict[Bottleneck, list[str]]:
    """A line on what each kind of change brought, the largest gain first, by what bounds the kernel. A run counts once,
    by its median over the workloads."""
    seen = defaultdict[tuple[Bottleneck, str], dict[tuple[str, str], list[float]]](dict)
    for one in results:
        for kind, gain in one.changes.items():
            seen[one.bound, kind].setdefault((one.task, one.at), []).append(gain)
    gains = {key: median(map(median, runs.values())) for key, runs in seen.items()}
    lines = defaultdict[Bottleneck, list[str]](list)
    for bound, kind in sorted(gains, key=lambda key: (-gains[key], key)):
        runs, gain = seen[bound, kind], gains[bound, kind]
        count = f"median of {len(runs)} run(s), {len({task for task, _ in runs})} kernel(s)"
        lines[bound].append(f"{kind}: {gain:.2f} times as fast ({count}) where {bound} bound")
    return {bound: those[:MAX_EVIDENCE] for bound, those in lines.items() if bound != "unknown"}


def read_prior(path: Path) -> events.EarlierResults:
    """The results of a run's folder, or of a table in Kernel Tuner's format. Raises `TunesmithError`."""
    if path.is_dir():
        return _prior_of_run(path)
    if not path.is_file():
        raise TunesmithError(f"--prior: {path} is neither the folder of a run nor a table of `tunesmith exhaust`.")
    table = Prior.from_table(path)
    rows = tuple((config, one.value, one.failure) for config, one in table.results)
    results = (events.TemplateResults(template="", name="", results=rows),)
    return events.EarlierResults(prior=table.name, results=results)


def _prior_of_run(folder: Path) -> events.EarlierResults:
    """The evaluations of a run on all its tuned workloads at once; single workloads have another scale. Templates that
    never entered the run, or that a role took out of it, are left out."""
    with Journal(folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        if (baseline := log.baseline) is None:
            raise JournalError(f"--prior: the run in {folder} has measured nothing yet; name another.")
        of, vetoed = log.started.settings.objective, log.vetoed()
        names = {event.id: event.template.name for event in log.events(events.TemplateAdded)}
        base, weights = quantities_of(baseline, of), log.started.task.weights
        found: dict[str, list[events.KnownResult]] = {}
        for evaluation in log.evaluations():
            whole = evaluation.failure is not None or set(base) <= set(evaluation.outcomes)
            if whole and evaluation.template in names and evaluation.template not in vetoed:
                seen = observation(evaluation, list(base), base, weights, of)
                found.setdefault(evaluation.template, []).append((evaluation.config, seen.value, seen.failure))
    results = tuple(events.TemplateResults(template=one, name=names[one], results=tuple(found[one])) for one in found)
    name = f"the run {folder.name}"
    # Raises where nothing was measured: before this run begins, not in its first search.
    _prior((row for one in results for row in one.results), name)
    return events.EarlierResults(prior=name, results=results)


def _require_common(earlier: events.EarlierResults, templates: Sequence[Template]) -> None:
    """Raises `TunesmithError` when no template has all its parameters in the prior, which is then of no use."""
    known = {tuple(sorted(config)) for one in earlier.results for config, _, _ in one.results}
    wanted = [{parameter.name for parameter in template.parameters} for template in templates]
    pairs = [(sorted(names.difference(had)), had) for names in wanted for had in known]
    missing, had = min(pairs, key=lambda pair: len(pair[0]), default=([], ()))
    if missing:
        raise TunesmithError(
            f"--prior: the results of {earlier.prior} have the parameters {', '.join(had) or '(none)'}; this "
            f"task's templates also need {', '.join(missing)}. Give results of the same or a similar template."
        )


# In a search


def prior_of(log: RunLog, template: Template, space: Space) -> Prior | None:
    """The prior of a run for the search of `template`; None without one: results of the same template, by id, else by
    name; if these have no point of `space`, all results in `space`, and the results of a table."""
    kept = log.last(events.EarlierResults) or events.EarlierResults()
    for rows in (
        [row for one in kept.results if one.template == template.id for row in one.results],
        [row for one in kept.results if one.name == template.name for row in one.results],
        [row for one in kept.results for row in one.results if not one.template or space.index(row[0]) is not None],
    ):
        if any(value is not None for _, value, _ in rows) and (prior := _prior(rows, kept.prior)).best(space, 1):
            return prior
    return None


def _prior(rows: Iterable[events.KnownResult], name: str) -> Prior:
    return Prior(((config, Observation(value, failure=failure)) for config, value, failure in rows), name)


# At the end of a run


def learn(context: Context) -> None:
    """Keeps the results of a run's final comparison: on each workload the best configuration and the general one, where
    they are shown to be faster than the baseline. A store that cannot be written is reported."""
    reached, settings = context.log.entries(events.VerdictReached), context.settings
    # With another driver than at the start, the measurements may be from either.
    same = context.log.started.device.driver == context.device.driver
    store = open_store() if reached and same and settings.wisdom and settings.objective == "time" else None
    if store is None:
        return
    verdict = reached[-1].event.verdict
    # A run that had ended may be finished again, days later.
    at = datetime.fromtimestamp(reached[-1].at, UTC).isoformat(timespec="seconds")
    changes, device = _changes(context), context.device
    here = {"backend": device.backend, "device": device.name, "driver": device.driver}
    origin = {"task": context.task.name, "at": at, "run": context.journal.folder.name, "tunesmith": __version__}
    found = [
        StoredResult(
            **here,
            **origin,
            template=context.template(winner.template).name,
            config=winner.config,
            sizes=row.sizes,
            types=row.types,
            **figures.model_dump(include={"seconds", "ratio", "low", "high"}),
            # Once for each workload.
            **(changes.get(row.workload, {}) if figures is row.best else {}),
        )
        for row in verdict.rows
        for winner, figures in ((row.best, row.best), (verdict.general, row.general))
        if winner is not None and figures is not None and figures.verdict == "faster"
    ]
    if found:
        try:
            store.keep(found)
        except TunesmithError as error:
            context.note("wisdom", str(error), "")


def _changes(context: Context) -> dict[str, dict[str, Any]]:
    """`bound` and `changes` of each tuned workload. A rule's change is over the least time without it; those of a kind
    of branch are over their parents' least times, at least 1 as the parent stays, and in the median."""
    baseline, nodes, rules = context.log.baseline_seconds or {}, context.tree().nodes, dict[str, Change]()
    made_by_rules = [node for node in nodes if node.parent == LIBRARY and node.template.name == NAME]
    if made_by_rules:
        rules = dict(rewrite(context.task, context.device.limits.backend).rules)
    found: dict[str, dict[str, Any]] = {}
    for workload, seconds in baseline.items():
        gains = defaultdict[str, list[float]](list)
        least = {BASELINE: seconds} | {node.id: node.best_seconds.get(workload, 0.0) for node in nodes}
        for node in nodes:
            if least[node.id] and least.get(node.parent):
                gains[f"{node.made_by} branch"].append(max(1.0, least[node.parent] / least[node.id]))
        for node, (rule, change) in product(made_by_rules, rules.items()):
            if least[node.id] and {one.name for one in change.parameters} <= node.template.default_config.keys():
                off, timed = parse(unchanged(change)), [(one.config, seconds_of(one)) for one in node.found]
                without = [times[workload] for config, times in timed if workload in times and off.evaluate(config)]
                gains[rule.replace("_", " ")] += [min(without) / least[node.id]] if without else []
        bound = context.bottleneck(context.task.workload(workload), seconds)
        found[workload] = {"bound": bound, "changes": {kind: median(those) for kind, those in gains.items() if those}}
    return found


def best_roofs(device: DeviceInfo, measured: Roofline) -> tuple[Roofline, tuple[str, ...]]:
    """The best value ever measured of each roof of `device`, after `measured` was kept, as a busy machine measures
    less; and a sentence for each roof that is now far below its best value, or on why the store cannot be used."""
    # A GPU has its own identity; a CPU has that of its machine.
    name = device.uuid or f"{device.name} of {platform.node()}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rates = {f"{COPY}{size}": rate for size, rate in measured.bandwidth} | dict(measured.peak_flops)
    try:
        store = open_store()
        if store is None:
            return measured, ()
        with store.connected() as connection:
            connection.executemany(
                "INSERT INTO roofs VALUES (?, ?, ?, ?) ON CONFLICT (device, roof) "
                "DO UPDATE SET rate = excluded.rate, at = excluded.at WHERE excluded.rate > rate",
                [(name, roof, rate, now) for roof, rate in rates.items()],
            )
            rows = connection.execute("SELECT roof, rate, at FROM roofs WHERE device = ?", (name,)).fetchall()
    except TunesmithError as error:
        return measured, (str(error),)
    best = {roof: (rate, at) for roof, rate, at in rows}
    copies = {int(roof.removeprefix(COPY)): best.pop(roof) for roof in [*best] if roof.startswith(COPY)}
    bandwidth = tuple((size, rate) for size, (rate, _) in copies.items())
    roofs = replace(measured, bandwidth=bandwidth, peak_flops={roof: rate for roof, (rate, _) in best.items()})
    pairs = [("copy bandwidth", measured.peak_bandwidth or 0.0, *max(copies.values(), default=(0.0, "")), "GB/s")]
    pairs += [(f"{roof} peak", rate, *best[roof], "GFLOP/s") for roof, rate in measured.peak_flops.items()]
    return roofs, tuple(
        f"The {kind} measured now, {rate / 1e9:.3g} {unit}, is far below the {highest / 1e9:.3g} {unit} measured "
        f"on {at[:10]}, from which floors are computed: something else probably uses the device, so times may be "
        "too long."
        for kind, rate, highest, at, unit in pairs
        if 0.0 < rate < ROOF_REPORT_RATIO * highest
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
