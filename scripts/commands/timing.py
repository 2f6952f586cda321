"""`tunesmith bench` and `recheck`: known configurations timed, without a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tunesmith.actors.judging.judge import QUICK, compile_all, lock_of, reason_of, require_prepared
from tunesmith.actors.judging.task_check import check_reference
from tunesmith.actors.process import Isolated, preload
from tunesmith.actors.workers import CompileWorker, DeviceWorker
from tunesmith.cli.app import Backend, Json, ReferenceDeadline, TaskArgument
from tunesmith.cli.tables import percent, print_json, print_rows, say, short, speedup, us
from tunesmith.graph.history import best_roofs
from tunesmith.graph.journal.events import Compared, Winner
from tunesmith.graph.journal.log import Journal, RunLog
from tunesmith.graph.settings import as_path
from tunesmith.graph.setup import choose_device, pools
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.build.artifact import Candidate, EvaluationRequest
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.measure.bench import ComparisonRequest, WorkloadComparison
from tunesmith.kernels.measure.opponents import Rival
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import AnyOutcome, Measured, Outcome, describe
from tunesmith.kernels.reader.signature import require_signatures
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.spec.task import FunctionOpponent, KernelOpponent, Task, Workload
from tunesmith.kernels.spec.taskfile import load_task, parse_config, template_of
from tunesmith.kernels.spec.template import Config, Template, described

ROUNDS, SECONDS = 40, 1.0
"""At most so many rounds, and seconds of sampling, in the comparison on one workload."""
DEADLINE = 120.0
"""Seconds that a worker may take for one call."""


def bench(
    task: TaskArgument,
    config: Annotated[str, typer.Option(help="Parameters as a JSON object ({}: the template's defaults).")] = "{}",
    vs: Annotated[
        str, typer.Option(help="What to compare with: baseline, or a source file that is launched like it.")
    ] = "baseline",
    template: Annotated[Path | None, typer.Option(help="A template file (default: the task's first template).")] = None,
    workload: Annotated[str | None, typer.Option(help="One workload (default: all tuned workloads).")] = None,
    backend: Backend = "auto",
    opponents: Annotated[
        Literal["usual", "all", "none"],
        typer.Option(help="Which of the task's opponents to time: usual (not those on request), all, none."),
    ] = "usual",
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    reference_deadline: ReferenceDeadline = 60.0,
    as_json: Json = False,
) -> None:
    """Time one configuration against the baseline, interleaved, with intervals."""
    loaded = load_task(task)
    device = choose_device(loaded, backend, probe())
    kind = device.limits.kind
    chosen = loaded.workloads_for(kind, held_out=False) if workload is None else (loaded.workload(workload),)
    if not chosen:
        raise TunesmithError(f"The task {loaded.name} has no workload for a {kind}; name one with --workload.")
    require_signatures(loaded, device.backend)
    ruled, _ = with_rules(loaded, device.backend)
    tuned_template = template_of(ruled, device.backend, None, template)
    point = parse_config(config, tuned_template)
    against = ruled.sources(device.backend).baseline.template
    if vs != "baseline":
        against = template_of(ruled, device.backend, Path(vs), None, option="--vs")
    for one in chosen:
        if (excluded := infeasible_on(tuned_template, point, one, device.limits)) is not None:
            raise TunesmithError(
                f"The configuration {described(tuned_template.name, point)} is not feasible on {one.name}: "
                f"{excluded.detail.rstrip('.')}; name another with --config."
            )
    preload(device.limits.backend)
    check_reference(loaded, loaded.workloads_for(kind), seed=seed, deadline=reference_deadline)
    pair = {
        f"The template {tuned_template.name}": (tuned_template, point),
        "The baseline" if vs == "baseline" else f"--vs: {vs}": (against, {}),
    }
    found = {"task": ruled.name, "against": vs}
    rivals = ruled.opponents_on(device.backend, opponents)
    found |= _measure(ruled, device, pair, chosen, seed, rivals, reference_deadline)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if any("failure" in row for row in found["workloads"]):
        raise typer.Exit(1)


def _measure(
    task: Task,
    device: DeviceInfo,
    pair: Mapping[str, tuple[Template, Config]],
    workloads: Sequence[Workload],
    seed: int,
    opponents: Sequence[FunctionOpponent | KernelOpponent],
    deadline: float,
) -> dict[str, Any]:
    """Compares the two kernels of `pair`, given by their names in messages, and the opponents."""
    work = {one.name: task.work_of(one) for one in workloads}
    with (
        Isolated("compile", CompileWorker, device.limits, device.index) as compiler,
        Isolated("run", DeviceWorker, task, device.limits, device.index, seed) as examiner,
    ):

        def compiled(template: Template, config: Config) -> Candidate | AnyOutcome:
            return compile_all([compiler], task, template, config, workloads, DEADLINE)

        def prepare(workload: Workload) -> None:
            require_prepared(task, workload.name, examiner.call("prepare", deadline, [workload.name]))

        kernels = dict[str, Candidate]()
        for label, (template, config) in pair.items():
            kernel = compiled(template, config)
            if not isinstance(kernel, Candidate):
                why = describe(kernel).rstrip(".")
                raise TunesmithError(f"{label} cannot be measured ({reason_of(kernel)}): {why}.")
            kernels[label] = kernel
        candidate, baseline = kernels.values()
        rivals: list[Rival] = [
            (one, compiled(one.template, {}) if isinstance(one, KernelOpponent) and not one.configs else None)
            for one in opponents
        ]
        probes = compiler.call("probes", DEADLINE)
        lock = lock_of(examiner)
        lock.acquire(lambda text: typer.echo(text, err=True))
        with lock:
            # Before the roofs, so that a reference that does not end is reported at once.
            prepare(workloads[0])
            roofs = examiner.call("calibrate", DEADLINE, probes if isinstance(probes, dict) else {})
            roofline, notes = best_roofs(device, roofs if isinstance(roofs, Roofline) else Roofline())
            rows = []
            for workload in workloads:
                prepare(workload)
                floor = roofline.floor_seconds(*work[workload.name])
                request = ComparisonRequest(
                    baseline, [candidate], workload.name, ROUNDS, SECONDS, floor or 0.0, opponents=rivals
                )
                rows.append(_row(examiner, workload, kernels, request))
    timed = {
        f"the {kernel} on {row['workload']}": (row["cold"][kernel]["median"], work[row["workload"]])
        for row in rows
        if "cold" in row
        for kernel in ("candidate", "baseline")
    }
    roofline, beaten = roofline.without_beaten(timed)
    for row in rows:
        row["floor_seconds"] = roofline.floor_seconds(*work[row["workload"]])
    about = {"device": device.name, "backend": device.backend, "driver": device.driver, "config": candidate.config}
    codes = {"artifacts": {"candidate": candidate.digests, "baseline": baseline.digests}}
    measured = {"launch_floor_seconds": roofline.launch_seconds, "roofline": asdict(roofline)}
    return {**about, **codes, **measured, "notes": [*notes, *beaten], "workloads": rows}


def _row(
    examiner: Isolated, workload: Workload, kernels: Mapping[str, Candidate], request: ComparisonRequest
) -> dict[str, Any]:
    """The comparison of the two kernels on one workload, without `floor_seconds`, for which all times must be known."""
    row: dict[str, Any] = {"workload": workload.name, "sizes": workload.sizes, "types": workload.types}
    deadline = DEADLINE * (1 + sum(kernel is None for _, kernel in request.opponents))
    result = examiner.call("compare", deadline, request)
    if isinstance(result, WorkloadComparison):
        if result.opponents:
            row["opponents"] = [asdict(opponent) for opponent in result.opponents]
        (result,) = result.results
    if not isinstance(result, Comparison):
        # Each alone beside the reference, as either may be the wrong one, and in a process of its own: a launch that
        # failed may have cost the other one its device.
        found = dict[str, Any]()
        for name, kernel in kernels.items():
            examiner.end()
            alone = examiner.call("visit", DEADLINE, kernel, [workload.name], QUICK)
            found[name] = alone[workload.name] if isinstance(alone, dict) else alone
        wrong = {name: describe(one) for name, one in found.items() if not isinstance(one, Measured)}
        return row | {"failure": {"reason": reason_of(result), "detail": describe(result), "kernels": wrong}}
    row["cold"] = asdict(result) | {"verdict": result.verdict, "half_width": result.half_width}
    return row


def _opponent(opponent: dict[str, Any]) -> str:
    """An opponent's time, and the candidate's speed-up over it."""
    against = opponent["against"][0] if opponent["against"] else None
    if opponent["comparison"] is None or against is None:
        return f"not timed: {opponent['why'] or 'the candidate was not'}"
    times, interval = speedup(*(against[key] for key in ("ratio", "low", "high")))
    return f"{us(opponent['comparison']['candidate']['median'])} us; speed-up over it {times}, 99 % {interval}"


def _print(found: dict[str, Any]) -> None:
    headings = ("workload", "time, us", "baseline, us", "speed-up", "99 %", "verdict", "of floor")
    rows = []
    for row in found["workloads"]:
        if cold := row.get("cold"):
            seconds, floor = cold["candidate"]["median"], row["floor_seconds"]
            ratio = speedup(*(cold[key] for key in ("ratio", "low", "high")))
            times = us(seconds), us(cold["baseline"]["median"])
            rows.append((row["workload"], *times, *ratio, short(cold["verdict"]), percent(floor and floor / seconds)))
    print_rows(headings, rows, f"{found['task']} on {found['device']}")
    for row in found["workloads"]:
        for one in row.get("opponents", []):
            say(f"{row['workload']}, {one['name']} ({one['label']}): {_opponent(one)}")
        if "failure" in row:
            failure = row["failure"]
            wrong = " ".join(f"{name} is at fault: {what}." for name, what in failure["kernels"].items())
            say(f"{row['workload']}: {failure['reason']}: {wrong or failure['detail']}")
    for note in found["notes"]:
        say(f"Note: {note}")
    if found["launch_floor_seconds"]:
        say(f"An empty kernel takes {us(found['launch_floor_seconds'])} us a launch.")


FEW = 3
"""Configurations timed on a shape: its own, and the next best of the run's comparisons there."""


def recheck(
    table: Annotated[Path, typer.Argument(help="The folder of a run that has ended, or its best/.")],
    seed: Annotated[int, typer.Option(help="Seed of the buffers' contents and of the order of launches.")] = 0,
    as_json: Json = False,
) -> None:
    """Time the best few configurations of a run again on this machine, and say what changed."""
    run = as_path(table, "TABLE")
    with Journal(run.parent if (run / "dispatch.json").is_file() else run, create=False, reading=True) as journal:
        log, then = RunLog(journal), dict[str, dict[tuple[str, str], tuple[Winner, float]]]()
        started, verdict, templates = log.started, log.verdict(), log.templates
        for event in log.events(Compared):
            seen = ((one, one.comparison) for one in event.entries)
            then.setdefault(event.workload, {}).update({one.key: (one, it.ratio) for one, it in seen if it is not None})
    if verdict is None or not verdict.dispatch:
        raise TunesmithError(f"{run} has no configuration that is faster than the baseline: there is nothing to time.")
    task, device = started.task, choose_device(started.task, started.device.backend, probe())
    baseline, found = task.sources(device.backend).baseline.template, list[dict[str, Any]]()
    shapes = [task.workload(one.workload) for one in verdict.dispatch]
    check_reference(task, shapes, seed=seed, deadline=started.settings.reference_deadline)
    with pools(task, device, started.settings, []) as make_pool, make_pool() as pool:
        for own in verdict.dispatch:
            name, before = own.workload, then.get(own.workload, {})
            others = sorted((ratio, key) for key, (_, ratio) in before.items() if key != own.key)
            few = [own, *(before[key][0] for _, key in others[: FEW - 1])]
            pairs = [(baseline, {}), *((templates[one.template], one.config) for one in few)]
            plain, *asked = [EvaluationRequest(at, *pair, (name,)) for at, pair in enumerate(pairs)]
            now = pool.compare(plain, asked, name, seed=seed, rounds=ROUNDS, budget_seconds=SECONDS).results
            texts = [described(templates[one.template].name, one.config) for one in few]
            row = {"workload": name, "configuration": texts[0], "then": own.ratio}
            found.append(row | moved(list(zip(texts, now, strict=True))))
    about = {"tuned_on": f"{started.device.name}, driver {started.device.driver}"}
    about["now_on"] = f"{device.name}, driver {device.driver}"
    if as_json:
        print_json({**about, "workloads": found})
    else:
        typer.echo(f"Tuned on {about['tuned_on']}; now on {about['now_on']}.")
        headings = ("workload", "configuration", "speed-up then", "now", "99 %", "change")
        print_rows(headings, map(_shown, found), left=2, prose=("configuration", "change"))
    if any(row["moved"] for row in found):
        raise typer.Exit(1)


def moved(results: Sequence[tuple[str, Comparison | Outcome]]) -> dict[str, Any]:
    """The change for the first of `results`, a shape's own configuration: a sentence, empty where nothing did."""
    (_, own), *others = results
    if not isinstance(own, Comparison):
        return {"now": None, "low": None, "high": None, "moved": f"it fails: {describe(own)}"}
    faster = [(it.ratio, text) for text, it in others if isinstance(it, Comparison) and it.high < own.low]
    sentence = {"faster": "", "slower": "the baseline is faster"}.get(own.verdict, "no longer shown to be faster")
    sentence = f"faster now: {min(faster)[1]}" if faster else sentence
    return {"now": own.ratio, "low": own.low, "high": own.high, "moved": sentence}


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    now = speedup(row["now"], row["low"], row["high"])
    return row["workload"], row["configuration"], f"{1 / row['then']:.2f}x", *now, row["moved"] or "none"
