"""The journal: everything that was decided and measured in a run, append-only, on disk before it counts; and its
readers, `RunLog` and the `Tree` of templates with their measurements.

An entry is an event of `tunesmith.graph.journal.events` with its place in the run; nothing is ever changed or removed
(a trigger sees to it). The write-ahead log makes each append durable against the death of the process at any moment.
Readers write nothing; pure functions of evaluations are beside them: seconds, objectives, observations, failures.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from tunesmith import __version__
from tunesmith.graph.journal import events as kinds
from tunesmith.graph.journal.events import KINDS, Event, Racing, Verdict
from tunesmith.graph.state import Plan
from tunesmith.hw.errors import TunesmithError, refusals
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.outcome import Evaluation, Measured, Objective, WrongResult, describe
from tunesmith.kernels.search import Observation
from tunesmith.kernels.spec.taskfile import explain
from tunesmith.kernels.spec.template import Config, Template, config_key

# The file

FORMAT = 5
"""Version of the table and of all events in it; no other is read. A file in which no journal was begun yet has 0."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    elapsed REAL NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    stage TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of_kind ON events (kind, sequence);
CREATE INDEX IF NOT EXISTS time_of_sessions ON events (session, elapsed);
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER IF NOT EXISTS events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""

E = TypeVar("E", bound=Event, covariant=True)
T = TypeVar("T", bound=Event)
RESTORE = "restore the file from a copy, or start the run anew in another folder"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: "make the folder and its files writable, or copy the run to where they are",
    sqlite3.SQLITE_PERM: "make the folder and its files readable and writable, or copy the run to where they are",
    sqlite3.SQLITE_CANTOPEN: "make the folder and its files readable and writable, or copy the run to where they are",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: "make room on the disk, or copy the run to another disk",
    sqlite3.SQLITE_BUSY: "end the program that has the file open, or wait for it",
}
"""Remedies by SQLite's codes; other errors mean that the file itself is damaged."""


class JournalError(TunesmithError):
    """The folder holds no run, or a run that this version cannot read."""


@contextmanager
def _explained(failed: str, then: str = "") -> Iterator[None]:
    """Makes a `JournalError` of an error of SQLite's: `failed` with the reason, the remedy, and what to do `then`."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # The lowest byte is the kind of error.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        why = " ".join(str(error).split())
        raise JournalError(f"{failed} ({why}): {_REMEDIES.get(code, RESTORE)}{then}.") from error


@dataclass(frozen=True, slots=True)
class Entry(Generic[E]):
    """An event and its place. at: seconds since the epoch."""

    sequence: int
    at: float
    stage: str
    event: E


class Journal(AbstractContextManager["Journal"]):
    """The journal of the run in `folder`. Opening it begins a new session, whose time is added to the old ones'.

    reading: nothing will be written, so that a run on a disk that is full or read-only can be looked at as well.
    """

    def __init__(self, folder: Path, *, create: bool, reading: bool = False) -> None:
        path, self.folder = folder / "journal.sqlite", folder
        if create:
            with refusals(f"The folder {folder} cannot be made", "choose another --run-dir"):
                folder.mkdir(parents=True, exist_ok=True)
        elif not path.is_file():
            raise not_a_run(folder, "journal.sqlite")
        with _explained(f"{path} cannot be used as a journal"):
            self._connection = _connected(path, reading=reading)
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise JournalError(
                    f"{path} was written by a version of Tunesmith with the journal format {version}, and this one "
                    f"({__version__}) reads format {FORMAT} only: use the version that began the run, or tune again in "
                    "another folder."
                )
            tables = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not version and (others := {name for (name,) in tables} - {"events", "sqlite_sequence"}):
                raise JournalError(f"{path} is not a journal of Tunesmith: it has a table {min(others)}; {RESTORE}.")
            if reading and not version:  # an empty file
                self._connection.close()
                self._connection = _open(":memory:")
            if not version:
                self._connection.executescript(_SCHEMA)
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            ended = self._connection.execute("SELECT session, MAX(elapsed) FROM events GROUP BY session").fetchall()
        if not all(isinstance(one, int) and isinstance(elapsed, int | float) for one, elapsed in ended):
            raise JournalError(f"{path} cannot be used as a journal (an entry has no session or no time): {RESTORE}.")
        self._session = max((session for session, _ in ended), default=0) + 1
        self._before: float = sum(elapsed for _, elapsed in ended)
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def append(self, event: Event, stage: str = "") -> int:
        """Writes one event and returns its sequence number; it is on disk on return. Raises `JournalError`."""
        return self.append_all([(event, stage)])

    def append_all(self, events: Sequence[tuple[Event, str]]) -> int:
        """Writes events with their stages in one transaction, which a kill leaves whole or out; else as `append`."""
        place = self._session, time.monotonic() - self._started, time.time()
        rows = [(*place, event.kind, stage, json.dumps(event.to_json())) for event, stage in events]
        resume = f", and go on with `tunesmith resume {self.folder}`; its measurements are kept"
        with _explained(f"The journal in {self.folder} cannot be written", resume):
            cursor = self._connection.execute(
                "INSERT INTO events (session, elapsed, at, kind, stage, data) VALUES "
                + ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows)),
                [value for row in rows for value in row],
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def entries(self, *of: type[T], after: int = 0) -> Iterator[Entry[T]]:
        """Entries of these kinds (all with `Event`) after the number `after`, in order. Raises `JournalError`."""
        names = [] if Event in of else [kind.kind for kind in of]
        of_kinds = f"AND kind IN ({', '.join('?' * len(names))})" if names else ""
        query = f"SELECT sequence, at, kind, stage, data FROM events WHERE sequence > ? {of_kinds}"
        with _explained(f"The journal in {self.folder} cannot be read"):
            rows = self._connection.execute(f"{query} ORDER BY sequence", [after, *names]).fetchall()
        for row in rows:
            yield self._read(row)

    def seconds_spent(self) -> float:
        """Working time of all sessions; an old session counts up to its last event."""
        return self._before + time.monotonic() - self._started

    def _read(self, row: tuple[Any, ...]) -> Entry[Any]:
        sequence, at, kind, stage, data = row
        model = KINDS.get(kind)
        why = f"there is no kind '{kind}' in this version"
        if model is not None:
            try:
                return Entry(sequence, at, stage, model.model_validate(from_json(data)))
            except ValidationError as error:
                why = explain(error, None)
            except (ValueError, TypeError) as error:
                why = f"its data is not valid JSON: {error}"
        raise JournalError(
            f"Entry {sequence} ({kind}) of the journal in {self.folder} is damaged or of another version ({why}); "
            f"{RESTORE}."
        )


def not_a_run(path: Path, missing: str) -> JournalError:
    """The error for a `path` without the file `missing` of a run, with the run that it lies in or holds."""
    around = [one for one in path.absolute().parents if (one / "journal.sqlite").is_file()]
    held = sorted((one.parent for one in path.glob("*/journal.sqlite")), key=lambda one: -one.stat().st_mtime)
    meant = next((f"; did you mean {one}?" for one in (*around, *held)), ".")
    why = f"it holds no {missing}" if path.exists() else "it does not exist"
    return JournalError(f"{path} is not the folder of a run: {why}{meant}")


def remove_journal(folder: Path) -> None:
    """Removes the files of the journal in `folder`."""
    for suffix in ("", "-wal", "-shm"):
        (folder / f"journal.sqlite{suffix}").unlink(missing_ok=True)


_open = partial(sqlite3.connect, isolation_level=None, check_same_thread=False, timeout=10)


def _connected(path: Path, *, reading: bool) -> sqlite3.Connection:
    """A connection to the file. One for reading makes no file beside it where it can do without."""
    if reading:
        # Without a write-ahead log no process has the journal open, and the file is complete.
        log = path.with_name(f"{path.name}-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        return _open(f"{path.absolute().as_uri()}?{how}", uri=True)
    connection = _open(path)
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL loses nothing when the process is killed; only a power cut can take the last commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


# The run that its entries amount to

ByWorkload = Mapping[str, float]
"""Numbers by the names of workloads."""


def seconds_of(evaluation: Evaluation) -> dict[str, float]:
    """Seconds by workload, where they were measured."""
    return quantities_of(evaluation, "time")


def quantities_of(evaluation: Evaluation, of: Objective) -> dict[str, float]:
    """The objective quantity by workload, where it is known."""
    measured = {name: one.quantity(of) for name, one in evaluation.outcomes.items() if isinstance(one, Measured)}
    return {name: quantity for name, quantity in measured.items() if quantity is not None}


def weighted_geomean(ratios: ByWorkload, weights: ByWorkload) -> float:
    """The weighted geometric mean of `ratios` by name: the objective of a general configuration."""
    total = sum(weights[name] for name in ratios)
    return math.exp(sum(weights[name] * math.log(ratio) for name, ratio in ratios.items()) / total)


def objective(
    evaluation: Evaluation, workloads: Sequence[str], baseline: ByWorkload, weights: ByWorkload, of: Objective = "time"
) -> float | None:
    """Weighted geometric mean of the objective over the baseline's on `workloads`; None unless all are measured."""
    quantities = quantities_of(evaluation, of)
    if evaluation.failure is not None or not workloads or not quantities.keys() >= set(workloads):
        return None
    return weighted_geomean({name: quantities[name] / baseline[name] for name in workloads}, weights)


def observation(
    evaluation: Evaluation, workloads: Sequence[str], baseline: ByWorkload, weights: ByWorkload, of: Objective = "time"
) -> Observation:
    """The result for the search: the objective with its interval, or the kind of failure. The errors of workloads are
    taken as independent: half-widths add in quadrature in the logarithm."""
    value = objective(evaluation, workloads, baseline, weights, of)
    if value is None:
        failure = evaluation.failure
        return Observation(None, failure=failure.kind if failure else "not_measured")
    total = sum(weights[name] for name in workloads)
    variance, dropped = 0.0, False
    for name, outcome in evaluation.outcomes.items():
        if not isinstance(outcome, Measured):
            continue
        dropped = dropped or outcome.dropped
        half = math.log(max(outcome.high, outcome.low) / outcome.low) / 2 if outcome.low > 0 else 0.0
        energy = outcome.energy.error if outcome.energy is not None else 0.0
        squares = {"time": half**2, "energy": energy**2, "edp": half**2 + energy**2}[of]
        variance += (weights[name] / total) ** 2 * squares if name in workloads else 0.0
    width = math.exp(math.sqrt(variance))
    return Observation(value, (value / width, value * width), dropped=dropped)


def racing(found: Iterable[Evaluation]) -> Racing:
    """The savings of ending the measurement of clear losers early."""
    measured = [one for each in found for one in each.outcomes.values() if isinstance(one, Measured)]
    early, full = ([one.sampling_seconds for one in measured if one.dropped == dropped] for dropped in (True, False))
    usual, spent = sum(full) / len(full) if full else 0.0, sum(full) + sum(early)
    saved = sum(max(0.0, usual - one) for one in early)
    return Racing(dropped=len(early), sampling_seconds=round(spent, 3), saved_seconds=round(saved, 3))


def failures_by_kind(found: Iterable[Evaluation]) -> dict[str, int]:
    """The number of failed evaluations, by the kind of their first failure."""
    return dict(Counter(failure.kind for evaluation in found if (failure := evaluation.failure) is not None))


VerifiedKernel = tuple[str, str, str]
"""Template id, configuration as text, and the workload it was examined for: empty for all."""
TRIAL, REPAIR = "-trial", "-repair"
"""Behind a round's stage: trials of its new templates; what its test measures in place of rejected configurations."""


def stage_of(round_number: int) -> str:
    """The stage of a round's entries."""
    return f"round-{round_number}"


def round_of(stage: str) -> int:
    """The round of a stage; 0 for the run as a whole."""
    return int(stage.split("-")[1]) if stage.startswith("round-") else 0


def begun(folder: Path) -> Entry[kinds.RunStarted]:
    """The beginning of the run in `folder`. Raises `JournalError`."""
    with Journal(folder, create=False, reading=True) as journal:
        return RunLog(journal).begun


class RunLog:
    """The run in `journal`, up to its entry `before`. Raises `JournalError` for an entry that cannot be read."""

    def __init__(self, journal: Journal, before: float = math.inf) -> None:
        self._journal, self._before = journal, before
        self._entries: dict[tuple[type[Event], str | None], list[Entry[Any]]] = defaultdict(list)
        """The entries read so far, by kind and stage, and by kind alone (stage None)."""

    def entries(self, kind: type[T], stage: str | None = None) -> Sequence[Entry[T]]:
        """The entries of a kind in their order; of one stage, or of all."""
        known = self._entries[kind, None]
        for entry in self._journal.entries(kind, after=known[-1].sequence if known else 0):
            if entry.sequence < self._before:
                known.append(entry)
                self._entries[kind, entry.stage].append(entry)
        return self._entries[kind, stage]

    def events(self, kind: type[T], stage: str | None = None) -> list[T]:
        """The events of a kind in their order; of one stage, or of all."""
        return [entry.event for entry in self.entries(kind, stage)]

    def last(self, kind: type[T], stage: str | None = None) -> T | None:
        """The newest event of a kind, if any."""
        found = self.entries(kind, stage)
        return found[-1].event if found else None

    # The run as a whole

    @property
    def begun(self) -> Entry[kinds.RunStarted]:
        """The beginning of the run. Raises `JournalError` where the journal has none."""
        if not (found := self.entries(kinds.RunStarted)):
            raise JournalError(f"The journal in {self._journal.folder} has no beginning of a run: tune again.")
        return found[-1]

    @property
    def started(self) -> kinds.RunStarted:
        return self.begun.event

    def extended_after(self, entry: Entry[Event]) -> bool:
        """Whether the run was extended after an entry, which then no longer ends it."""
        # An extension that only asks for a dispatch rule grants no rounds, and leaves the search as it ended.
        later = (one.event for one in self.entries(kinds.Extended) if one.sequence > entry.sequence)
        return any(extension.rounds is not None for extension in later)

    @property
    def baseline(self) -> Evaluation | None:
        """The evaluation of the baseline, once it is measured."""
        return next((event.evaluation for event in reversed(self.events(kinds.BaselineMeasured))), None)

    @property
    def baseline_seconds(self) -> dict[str, float] | None:
        """The baseline's seconds on each tuned workload where it was measured; None before that."""
        return None if self.baseline is None else seconds_of(self.baseline)

    @property
    def roofline(self) -> Roofline | None:
        """The device's roofs, once they are measured."""
        return next((event.roofline for event in reversed(self.events(kinds.RooflineMeasured))), None)

    # Plans

    @property
    def plans(self) -> list[Plan]:
        """The plans of all rounds, each as a person approved it, or as the planner made it where nobody did."""
        stages = dict.fromkeys(entry.stage for entry in self.entries(kinds.Planned))
        return [plan for stage in stages if (plan := self.plan(stage)) is not None]

    def plan(self, stage: str) -> Plan | None:
        """The plan of a round, as a person approved it, or as the planner made it where nobody did."""
        event = self.last(kinds.PlanApproved, stage) or self.last(kinds.Planned, stage)
        return None if event is None else event.plan

    # Templates

    @property
    def templates(self) -> dict[str, Template]:
        """The templates of the run by their ids."""
        return {event.id: event.template for event in self.events(kinds.TemplateAdded)}

    def template(self, named: str) -> Template:
        """The template of an id that an entry names."""
        if (found := self.templates.get(named)) is None:
            raise JournalError(f"The journal has no entry with the template '{named}', which others name: {RESTORE}.")
        return found

    def seeds(self, stage: str, template_id: str) -> list[Config]:
        """Configurations that a model proposes for a template of a round."""
        proposed = (event for event in self.events(kinds.SeedsProposed, stage) if event.template == template_id)
        return [config for event in proposed for config in event.configs]

    def vetoed(self) -> dict[str, str]:
        """Ids of the templates that roles took out of the run, and why."""
        return {event.template: event.why for event in self.events(kinds.TemplateVetoed)}

    # Evaluations

    @property
    def evaluation_count(self) -> int:
        """The number of evaluated configurations."""
        return len(self.entries(kinds.Evaluated))

    def evaluations(self, stage: str | None = None) -> list[Evaluation]:
        """Evaluations in the order they ended; of one stage, or of all."""
        return [event.evaluation for event in self.events(kinds.Evaluated, stage)]

    def evaluations_of(self, template_id: str) -> Sequence[Entry[kinds.Evaluated]]:
        """The evaluations of one template, in the order they ended."""
        return [entry for entry in self.entries(kinds.Evaluated) if entry.event.evaluation.template == template_id]

    def gain(self, number: int) -> float:
        """The share by which round `number` shortened the least times of right configurations, over the tuned workloads
        by weight."""
        wrong, baseline = self.rejected(), self.baseline_seconds or {}
        found = [(round_of(entry.stage), entry.event.evaluation) for entry in self.entries(kinds.Evaluated)]
        right = [(made, one) for made, one in found if (one.template, config_key(one.config)) not in wrong]

        def least(last: int) -> dict[str, float]:
            """By workload, the baseline's included, up to a round."""
            times = [seconds_of(one) for made, one in right if made <= last and one.failure is None]
            return {name: min([own, *(one.get(name, own) for one in times)]) for name, own in baseline.items()}

        before, now = least(number - 1), least(number)
        return 1 - weighted_geomean({name: now[name] / before[name] for name in baseline}, self.started.task.weights)

    # Tests

    def comparisons(self, stage: str) -> dict[str, kinds.Compared]:
        """The last comparisons of a round's finalists, by workload; opponents follow the order of the newest."""
        found: dict[str, kinds.Compared] = {}
        for event in self.events(kinds.Compared, stage):
            own = {one.key for one in event.entries}
            before = found[event.workload].entries if event.workload in found else ()
            kept = (one for one in before if one.key not in own)
            found[event.workload] = event.model_copy(update={"entries": (*event.entries, *kept)})
        return found

    def slower_than_baseline(self, template: str) -> list[str]:
        """Workloads, held-out ones too, where all configurations of a template were slower when last compared."""
        last: dict[str, dict[str, str]] = {}
        for event in self.events(kinds.Compared):
            # An event has the finalists of one comparison only.
            for one in event.entries:
                if one.template == template and one.comparison is not None:
                    last.setdefault(event.workload, {})[config_key(one.config)] = one.comparison.verdict
        return [workload for workload, found in last.items() if set(found.values()) == {"slower"}]

    def examinations(self, *, brief: bool = False) -> dict[VerifiedKernel, kinds.Examined]:
        """The last examination of each kernel, with the rejections of brief ones; or the `brief` ones alone."""
        found = [one for one in self.events(kinds.Examined) if one.brief == brief or one.verdict == "rejected"]
        return {(*one.key, one.workload): one for one in found}

    def rejected(self) -> dict[tuple[str, str], str]:
        """Kernels (template id, configuration as text) that a comparison or an examination found wrong, and why."""
        met = [(event.workload, one) for event in self.events(kinds.Compared) for one in event.entries]
        failed = [(where, one.key, one.failure) for where, one in met if isinstance(one.failure, WrongResult)]
        wrong = {key: f"on {where}: {describe(failure)}" for where, key, failure in failed}
        return wrong | {one.key: one.detail for one in self.examinations().values() if one.verdict == "rejected"}

    def verdict(self, stage: str | None = None) -> Verdict | None:
        """The last verdict, of a round or of the run."""
        return next((event.verdict for event in reversed(self.events(kinds.VerdictReached, stage))), None)

    def evidence(self, which: str, config: Config) -> kinds.EvidenceKept | None:
        """The evidence on the machine code of a kernel ("baseline" or a template's id) at a configuration."""
        key = config_key(config)
        found = (event for event in self.events(kinds.EvidenceKept) if (event.which, event.config) == (which, key))
        return next(found, None)


REJECTED = "wrong in the last check"
"""The kind of failure of configurations that the search took for right."""
LIBRARY = "library"
"""The parent of a template that the task brings."""
NO_EFFECT_RATIO = 1.01
"""A parameter whose values differ by less in time is reported as having no effect."""
NOTABLE_TIME_RATIO = 0.98
"""Time ratio below which an improvement on one workload is reported."""


class Node(kinds.TemplateAdded):
    """A template that can be tuned or branched from, and its results so far.

    round: of its first appearance, 0 while unused; found: its evaluations, in order, without rejected ones; ranked:
    complete objectives (time over baseline, geometric mean over the tuned workloads) with the evaluation, the best
    first; vetoed: why a role took it out, empty if none did; rejected: configurations that the search took for right
    and a last comparison or an examination found wrong, and why.
    """

    round: int = 0
    found: tuple[Evaluation, ...] = ()
    ranked: tuple[tuple[float, Evaluation], ...] = ()
    vetoed: str = ""
    rejected: tuple[tuple[Config, str], ...] = ()

    @property
    def best(self) -> float | None:
        return self.ranked[0][0] if self.ranked else None

    @property
    def best_config(self) -> Config | None:
        return self.ranked[0][1].config if self.ranked else None

    @property
    def best_seconds(self) -> dict[str, float]:
        """The least time on each workload, over all configurations."""
        least: dict[str, float] = {}
        for evaluation in self.found:
            if evaluation.failure is None:
                for name, seconds in seconds_of(evaluation).items():
                    least[name] = min(seconds, least.get(name, math.inf))
        return least

    @property
    def failures(self) -> list[tuple[str, int, str]]:
        """Kind, how often, and one example, the most frequent first."""
        failed = [(failure, one.config) for one in self.found if (failure := one.failure) is not None]
        seen: list[tuple[str, str]] = [(one.kind, f"{describe(one)} at {config}") for one, config in failed]
        seen += [(REJECTED, f"{why} at {config}") for config, why in self.rejected]
        first = dict(reversed(seen))
        return [(kind, count, first[kind]) for kind, count in Counter(kind for kind, _ in seen).most_common()]

    @property
    def at_edge(self) -> dict[str, object]:
        """Parameters at the end of their range in the best configuration, with the value, where the range has at least
        three sizes and could go on: sizes start at 1, and whole numbers from 0 on stand for alternatives, not sizes."""
        found: dict[str, object] = {}
        for parameter in self.template.parameters:
            sizes = [one for one in parameter.values if isinstance(one, int | float) and not isinstance(one, bool)]
            if self.best_config is None or len(sizes) < max(3, len(parameter.values)):
                continue
            if sorted(sizes) == list(range(len(sizes))):
                continue
            value = self.best_config[parameter.name]
            if value == max(sizes) or (value == min(sizes) and min(sizes) > 1):
                found[parameter.name] = value
        return found

    @property
    def faster_by_workload(self) -> dict[str, tuple[float, Config]]:
        """Workloads on which another configuration takes at most `NOTABLE_TIME_RATIO` of the best one's time, with that
        ratio and the configuration: the price of one configuration for all workloads."""
        if not self.ranked:
            return {}
        of_best = seconds_of(self.ranked[0][1])
        found: dict[str, tuple[float, Config]] = {}
        for _, evaluation in self.ranked[1:]:
            for name, seconds in seconds_of(evaluation).items():
                least = found[name][0] if name in found else NOTABLE_TIME_RATIO
                if name in of_best and seconds / of_best[name] < least:
                    found[name] = (seconds / of_best[name], evaluation.config)
        return found

    @property
    def effects(self) -> list[tuple[str, dict[object, float]]]:
        """For each parameter the least objective measured with each value, as a multiple of the best; the parameter
        whose values differ most comes first. A value that was tried seldom may look worse than it is."""
        found: list[tuple[str, dict[object, float]]] = []
        if self.best is None:
            return found
        for parameter in self.template.parameters:
            least: dict[object, float] = {}
            for value, evaluation in self.ranked:
                least.setdefault(evaluation.config[parameter.name], value / self.best)
            if len(least) > 1:
                found.append((parameter.name, {one: least[one] for one in parameter.values if one in least}))
        return sorted(found, key=lambda one: -max(one[1].values()))

    @property
    def without_effect(self) -> list[str]:
        """Parameters whose values all came within `NO_EFFECT_RATIO` of the best."""
        return [name for name, seen in self.effects if max(seen.values()) < NO_EFFECT_RATIO]


@dataclass(frozen=True, slots=True)
class Tree:
    """nodes in the order in which they appeared, unused ones of the library last."""

    nodes: tuple[Node, ...]
    attempts: tuple[kinds.BranchAbandoned, ...] = ()

    def node(self, template: str) -> Node | None:
        """The node of a template's id, or of the name of a template of the task."""
        by_name = (node for node in self.nodes if node.parent == LIBRARY and node.template.name == template)
        return next((node for node in self.nodes if node.id == template), None) or next(by_name, None)

    @property
    def untried(self) -> list[Node]:
        """The task's own templates that no round has used yet."""
        return [node for node in self.usable if node.parent == LIBRARY and node.round == 0]

    @property
    def ranked(self) -> list[Node]:
        """The measured nodes, the best first, without vetoed ones."""
        measured = [node for node in self.nodes if node.best is not None and not node.vetoed]
        return sorted(measured, key=lambda node: node.best or math.inf)

    @property
    def usable(self) -> list[Node]:
        return [node for node in self.nodes if not node.vetoed]


def read_tree(log: RunLog, library: Sequence[Template], workloads: Sequence[str], weights: ByWorkload) -> Tree:
    """The tree as `log` has it, with templates of `library` that were not used yet. Objectives are over `workloads`."""
    of: Objective = "time" if log.baseline is None else log.started.settings.objective
    baseline = {} if log.baseline is None else quantities_of(log.baseline, of)
    wrong, vetoed = log.rejected(), log.vetoed()
    evaluations: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in log.evaluations():
        evaluations[evaluation.template].append(evaluation)
    nodes: dict[str, Node] = {}
    for entry in log.entries(kinds.TemplateAdded):
        added, tried = entry.event, evaluations[entry.event.id]
        if added.id in nodes:
            continue
        found = [one for one in tried if (one.template, config_key(one.config)) not in wrong]
        rejected = {key: one.config for one in tried if (key := (one.template, config_key(one.config))) in wrong}
        values = [(objective(one, workloads, baseline, weights, of), one) for one in found if baseline]
        ranked = sorted(((value, one) for value, one in values if value is not None), key=lambda item: item[0])
        nodes[added.id] = Node(
            **dict(added),
            round=round_of(entry.stage),
            found=tuple(found),
            ranked=tuple(ranked),
            vetoed=vetoed.get(added.id, ""),
            rejected=tuple((config, wrong[key]) for key, config in rejected.items()),
        )
    for template in library:
        nodes.setdefault(template.id, Node(template=template, vetoed=vetoed.get(template.id, "")))
    return Tree(tuple(nodes.values()), tuple(log.events(kinds.BranchAbandoned)))
