"""A run from start to end: `tune` begins one, `resume` continues it after an interruption, or extends it.

Owns the folder of a run, its lock, and its extensions, which the journal keeps as the settings that they changed. The
roles are called by the graph of `build`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tunesmith.actors.judging.task_check import check_reference
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch import measure_further_shapes
from tunesmith.graph.history import best_roofs, learn, suggest
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import Journal, JournalError, RunLog, remove_journal
from tunesmith.graph.models.opening import check_models, destination, open_models
from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.results.summary import Summary, summarise
from tunesmith.graph.settings import Settings, as_path, make_settings, new_run_dir, require_new_folder
from tunesmith.graph.setup import choose_device, device_for, inventory_for, limits_of, pools, require_work
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import Backend
from tunesmith.hw.probe import DeviceInfo
from tunesmith.kernels.reader.signature import require_signatures
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.search import STRATEGIES
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import LIBRARY, find_task, load_task, read_task

if TYPE_CHECKING:
    from tunesmith.graph.models.calls import Models
    from tunesmith.graph.roles.approval import Ask


def _extended(journal: Journal, settings: Settings, given: dict[str, Any]) -> Settings:
    """Journals the extension of a run by the settings `given`, whose evaluations, rounds and time come on top, and
    returns all settings. dispatch_shapes alone continues no search. On `TunesmithError` nothing is written."""
    changed = {name: given[name] for name in ("dispatch_shapes",) if name in given}
    if given.keys() - changed.keys():
        log, spent, more_time = RunLog(journal), journal.seconds_spent(), given.get("time_limit")
        had, step = max((plan.round for plan in log.plans), default=0), log.last(events.StepTaken)
        limit = math.inf if settings.time_limit is None else settings.time_limit
        # A run also ends by time when the rest is only enough for a comparison.
        if not more_time and (spent >= limit or (step is not None and step.done == "time")):
            raise TunesmithError(
                f"The run's time limit of {limit:.0f} s is spent; say with --time-limit how much longer it may take."
            )
        if "evaluations" not in given and settings.evaluations <= log.evaluation_count:
            raise TunesmithError("The run has measured all that it may; say with --more how many to add.")
        # Evaluations that were left over at an earlier end are made as well.
        changed["evaluations"] = settings.evaluations + given.get("evaluations", 0)
        changed["rounds"] = had + given["rounds"] if "rounds" in given else max(settings.rounds, had + 1)
        if more_time:
            changed["time_limit"] = spent + more_time
    extended = make_settings(**settings.model_dump(mode="json") | changed)
    if changed:
        journal.append(events.Extended(**changed))
    return extended


class RunResult(BaseModel, frozen=True):
    """The result of a run. summary: as in summary.json; valid: some configuration is right on all workloads."""

    folder: Path
    summary: Summary

    @property
    def valid(self) -> bool:
        return self.summary.general is not None


def tune(
    task: str | Path | Task,
    *,
    run_dir: str | Path | None = None,
    listener: Listener = silent,
    models: Models | None = None,
    ask: Ask | None = None,
    **settings: Any,
) -> RunResult:
    """Tunes `task` (a library task's name, the path of a task.toml, or a task itself) and returns the result.

    settings: the options of `tunesmith tune` (`Settings`). run_dir: a folder without a run; left out,
    runs/<task>-<number>. models: language models of your own; ask: asks a person about plans, where `approve` wants it.
    Raises `TunesmithError` for a mistake of the user's, and `Waiting` when the run waits, such as for answers in a
    file; `resume(run_dir)` continues after it, and after an interruption.
    """
    if models is not None and not hasattr(models, "ask_all"):
        raise TunesmithError(f"models: give language models of your own, not {models!r:.80}; a name goes to model=.")
    chosen = make_settings(task=task.name if isinstance(task, Task) else str(task), **settings)
    folder = as_path(run_dir, "--run-dir") if run_dir is not None else new_run_dir(chosen.task, Path("runs"))
    if chosen.roles:
        from tunesmith.graph.build import load_roles, place

        place(load_roles(), chosen.roles)
    loaded = task if isinstance(task, Task) else load_task(chosen.task)
    check_models(chosen)
    if chosen.strategy not in STRATEGIES:
        raise TunesmithError(f"--strategy: there is no '{chosen.strategy}'; choose one of {', '.join(STRATEGIES)}.")
    device, limits = device_for(loaded, chosen)
    require_signatures(loaded, device.backend)
    written = chosen.transport != "none" or models is not None
    if not written:
        # A kernel that comes without a template gets one by rules; the journal keeps it with the task.
        loaded, _ = with_rules(loaded, device.backend)
    if (folder / "journal.sqlite").exists():
        _clear(folder)
    else:
        require_new_folder(folder, "--run-dir")
    require_work(loaded, loaded.sources(device.backend).templates, limits)
    earlier = suggest(loaded, device, chosen, limits, written=written)
    # Before the run begins, so that a resume need not check the reference again.
    meant = loaded.workloads_for(device.limits.kind)
    check_reference(loaded, meant, seed=chosen.seed, deadline=chosen.reference_deadline)
    with Journal(folder, create=True) as journal, hold_run(folder):
        if earlier is not None:
            # Before `RunStarted`: a run that was begun has everything it needs.
            journal.append(earlier)
            if count := len(earlier.suggestions):
                listener(Progress("start", f"configurations of earlier runs go first: {count}; --no-wisdom omits them"))
        origin = origin_of(None if isinstance(task, Task) else chosen.task)
        journal.append(events.RunStarted(settings=chosen, task=loaded, device=device, origin=origin))
        with _opened(loaded, device, chosen, journal, listener, models) as context:
            return _carry_on(context, ask)


def resume(
    run_dir: str | Path,
    *,
    more: int = 0,
    rounds: int | None = None,
    time_limit: float | str | None = None,
    dispatch_shapes: int | None = None,
    as_recorded: bool = False,
    listener: Listener = silent,
    models: Models | None = None,
    ask: Ask | None = None,
) -> RunResult:
    """Continues the run in `run_dir`: no measurement is lost or made twice.

    more: so many further configurations, also for a run that has ended, in so many further `rounds` (one, if left out
    and none is left); time_limit: further seconds, or a text such as "10m"; dispatch_shapes: as the setting, also for a
    run that has ended. Raises `TunesmithError` where that leaves nothing to do, and where the task's files have changed
    since the run was begun, unless `as_recorded` says to continue with the journal's copy of them.
    """
    folder = as_path(run_dir, "run_dir")
    asked = {"evaluations": more, "rounds": rounds, "time_limit": time_limit, "dispatch_shapes": dispatch_shapes}
    # Settings of these names have the same bounds.
    given = make_settings(task="", **{name: value for name, value in asked.items() if value})
    with Journal(folder, create=False) as journal, hold_run(folder):
        log = RunLog(journal)
        started = log.started
        settings, task, old = started.settings, started.task, started.device
        for extension in log.events(events.Extended):
            settings = settings.model_copy(update=extension.model_dump(exclude_none=True))
        changed = "" if as_recorded or started.origin.in_memory else changed_files(task, settings.task, old.backend)
        if changed:
            raise TunesmithError(
                f"The files of the task {task.name} have changed since the run in {folder} was begun ({changed}): go "
                "on with the recorded ones by --as-recorded, or start a new run for the new ones."
            )
        inventory = inventory_for(settings.backend)
        same = [one for one in inventory.of(old.backend) if one.name == old.name]
        if not same:
            here = choose_device(task, old.backend, inventory).name
            raise JournalError(
                f"{folder} was measured on {old.name}, but this machine has {here}: resume it where it began."
            )
        settings = _extended(journal, settings, given.model_dump(include=given.model_fields_set - {"task"}))
        with _opened(task, same[0], settings, journal, listener, models) as context:
            return _carry_on(context, ask)


@contextmanager
def _opened(
    task: Task, device: DeviceInfo, settings: Settings, journal: Journal, listener: Listener, models: Models | None
) -> Iterator[Context]:
    """The context of a run; its pool starts when a role first needs it, and ends with the block."""
    # A model's templates are tried on the held-out workloads, too.
    kinds = (False, True) if models is not None or settings.transport != "none" else (False,)
    prepared = [one.name for kind in kinds for one in task.workloads_for(device.limits.kind, held_out=kind)]
    with pools(task, device, settings, prepared, listener, lambda: context.seconds_left()) as make_pool:
        context = Context(task, device, limits_of(device, settings), settings, journal, make_pool, listener, models)
        if settings.wisdom:
            context.best_roofs = partial(best_roofs, device)
        with closing(context):
            yield context


def origin_of(task: str | None) -> events.Origin:
    """The origin of a run that begins now, of a task by its name or path; None for one without a file."""
    program, *arguments = sys.argv or [""]
    file = None if task is None else find_task(task)
    return events.Origin(
        command=shlex.join([Path(program).name, *arguments]),
        host=platform.node(),
        python=platform.python_version(),
        commit="" if task is None else _commit(LIBRARY if file is None else file.resolve().parent),
        in_memory=task is None,
    )


def _commit(folder: Path) -> str:
    """The commit of the git repository with the files of `folder`, with "-dirty" where they differ; or empty."""

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=10).stdout

    try:
        # An environment may lie inside the repository of another project, which ignores it.
        return git("describe", "--always", "--dirty", "--abbrev=12", "--match=").strip() if git("ls-files") else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def changed_files(begun: Task, name: str, backend: Backend) -> str:
    """How the task `name` differs from a run's that was `begun`, as a clause; empty if not, or without files."""
    path = find_task(name)
    if path is None:
        return ""
    try:
        present = read_task(path)
    except TunesmithError as error:
        return str(error).rstrip(".")
    # The task of a run by rules also has the template that the rules made.
    old, both = begun.model_dump(mode="json"), (present, with_rules(present, backend)[0])
    news = [one.model_dump(mode="json") for one in both]
    keys = min(([key for key in new if new[key] != old.get(key)] for new in news), key=len)
    return "" if old in news else f"{path}: {', '.join(keys) or 'a template'}"


def _clear(folder: Path) -> None:
    """Empties the folder of a run without measurements, as after a mistake in the task; else a `TunesmithError`."""
    with Journal(folder, create=False) as journal, hold_run(folder):
        for event in [entry.event for entry in journal.entries(events.Event)]:
            failed = isinstance(event, events.BaselineMeasured) and event.evaluation.failure is not None
            begins = isinstance(event, events.EarlierResults | events.RunStarted | events.RooflineMeasured)
            if not (failed or begins):
                go_on = f"`tunesmith resume {shlex.quote(str(folder))}`"
                raise TunesmithError(f"--run-dir: {folder} holds a run already; go on with {go_on}, or choose another.")
        remove_journal(folder)


def _carry_on(context: Context, ask: Ask | None) -> RunResult:
    """Runs the graph from the state in the journal to its end."""
    from tunesmith.graph.build import build_graph, ended_by, roles_of, start_of, steps_at_most
    from tunesmith.graph.roles.approval import decide

    context.approve = partial(decide, context, ask)
    if ended_by(context.log):
        context.listener(Progress("done", "the run had ended; --more N lets it measure more"))
    else:
        if count := context.log.evaluation_count:
            context.listener(Progress("resume", f"{count} of {context.settings.evaluations} evaluations are there"))
        settings = context.settings
        if context.models is None:
            journal = context.journal
            context.models = open_models(settings, journal, journal.folder, context.listener, context.seconds_left)
        if where := destination(settings):
            context.listener(Progress("model", where))
        graph = build_graph(roles_of(settings), settings.roles).compile()
        try:
            graph.invoke(start_of(context.log), {"recursion_limit": steps_at_most(settings)}, context=context)
        except TunesmithError as error:
            # LangGraph adds a note on its own task, which does not help a user.
            vars(error).pop("__notes__", None)
            raise
    if context.settings.dispatch_shapes:
        measure_further_shapes(context)
    return finish(context)


def finish(context: Context) -> RunResult:
    """Writes summary, report and best/."""
    from tunesmith.graph.build import ended_by
    from tunesmith.graph.results.best import export_best
    from tunesmith.graph.results.report import render_report

    done, folder = ended_by(context.log), context.journal.folder
    if done:
        learn(context)
    summary = summarise(context, done)
    try:
        export_best(context, folder / "best", summary)
        (folder / "summary.json").write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
        (folder / "report.html").write_text(render_report(context.log, summary), encoding="utf-8")
    except OSError as error:
        raise JournalError(
            f"The run in {folder} cannot be written ({error}); its measurements are kept: make room on the disk, "
            f"and go on with `tunesmith resume {folder}`."
        ) from error
    return RunResult(folder=folder, summary=summary)


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Holds the run in `folder` for this process, so that no two work on it; the hold ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(f"Another process is at work on the run in {folder}; stop it, or wait.") from error
        yield
    finally:
        os.close(descriptor)


__all__ = ["RunResult", "TunesmithError", "resume", "tune"]
