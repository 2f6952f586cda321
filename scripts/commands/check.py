"""`tunesmith check`: the verdict on a candidate; without a candidate, on the task, as far as no device is needed."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, compile_all, judge, rejected
from tunesmith.actors.judging.task_check import NOT_COMPILED, check_reference, check_task
from tunesmith.actors.process import Isolated, preload
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.cli.app import Backend, Json, ReferenceDeadline, Target, TaskArgument, echo
from tunesmith.cli.options import given, with_settings
from tunesmith.cli.tables import print_json, say
from tunesmith.graph.settings import make_settings
from tunesmith.graph.setup import limits_for, require_work
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.reader.signature import require_signature, require_signatures
from tunesmith.kernels.space import default_refused, device_names
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.taskfile import load_task, parse_config, read_source, template_of
from tunesmith.kernels.spec.template import BACKENDS, MAX_SOURCE_BYTES, described

EXIT_REJECTED = 1


@with_settings("check_time")
def check(
    task: TaskArgument,
    source: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="The kernel to check; if the template joins several files, the last of them. Without this option "
            "the task itself is checked, without a device.",
        ),
    ] = None,
    target: Target = None,
    template: Annotated[
        Path | None, typer.Option(help="The kernel's template (default: none; it is launched as the baseline is).")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Parameters as a JSON object (default: the template's defaults).")
    ] = None,
    backend: Backend = "auto",
    compile_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to compile the source.")] = 60.0,
    reference_deadline: ReferenceDeadline = 60.0,
    run_deadline: Annotated[float, typer.Option(min=0.1, help="Seconds to run one step of the check.")] = 20.0,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the random checks of an earlier verdict, which names its seed.")
    ] = None,
    as_json: Json = False,
    **limited: object,
) -> None:
    """Say whether the kernel of --source is right (exit code 0) or why not (exit code 1); without --source, whether the
    task is right. With --target no device is needed, and nothing is launched. Without a compiler the exit code is 2."""
    loaded = load_task(task)
    if source is None:
        if template is not None or config is not None:
            option = "--template" if template is not None else "--config"
            raise TunesmithError(f"{option}: it goes with a candidate; name its source with --source, or leave it out.")
        _check_task(loaded, *limits_for(loaded, target, backend), reference_deadline, as_json=as_json)
        return
    check_time = make_settings(task=task, **given(limited)).check_time
    options = JudgeOptions(deadlines=Deadlines(compile_deadline, run_deadline, reference_deadline, check_time))
    options = options if seed is None else replace(options, seed=seed)
    verdict = _judged(loaded, target, backend, source, template, config, options)
    if as_json:
        print_json(asdict(verdict))
    else:
        _print(verdict)
    if verdict.verdict == "rejected":
        raise typer.Exit(EXIT_REJECTED)


def _judged(
    task: Task,
    target: str | None,
    backend: str,
    source: Path,
    template: Path | None,
    config: str | None,
    options: JudgeOptions,
) -> CandidateVerdict:
    limits, index = limits_for(task, target, backend)
    require_signatures(task, limits.backend)
    languages = {traits.suffix: traits.language for traits in BACKENDS.values()}
    expected = BACKENDS[limits.backend]
    if source.suffix in languages and source.suffix != expected.suffix:
        raise TunesmithError(
            f"--source: {source} is {languages[source.suffix]}, and {limits.name} takes {expected.language}: name a "
            f"{expected.suffix} file, or another device with --target or --backend."
        )
    if (size := source.stat().st_size) > MAX_SOURCE_BYTES:
        detail = f"{source} has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted."
        return CandidateVerdict("rejected", "source_too_large", detail)
    # Before it becomes a template: a forbidden source is a rejection and not a mistake of the user's.
    if (refused := refuse_text(read_source(source), limits.backend)) is not None:
        return rejected(refused)
    candidate = template_of(task, limits.backend, source, template)
    point = parse_config(config, candidate)
    preload(limits.backend)
    if target is not None:
        # The mistakes that can be found without the device.
        with Isolated("compile", CompileWorker, limits, 0) as compiler:
            meant, seconds = task.workloads_for(limits.kind) or task.workloads, options.deadlines.compile
            made = compile_all([compiler], task, candidate, point, meant, seconds, limits=limits)
        if isinstance(made, Candidate):
            detail = f"it was compiled for {limits.name} and not launched"
            verdict = CandidateVerdict("partial", detail=detail, artifacts={"candidate": made.digests})
        else:
            verdict = rejected(made)
    else:
        check_reference(task, task.workloads_for(limits.kind), seed=0, deadline=options.deadlines.prepare)
        if sys.stderr.isatty():
            options = replace(options, listener=lambda step: echo(f"  {step}", err=True))
        (verdict,) = judge(task, limits, index, [(candidate, point, None)], options)
    if verdict.verdict == "rejected" or target is not None:
        try:
            require_signature(task, candidate, "What may be wrong")
        except TaskError as error:
            # A kernel may take an array by another type and be right, so that this alone rejects none.
            return replace(verdict, notes=(*verdict.notes, str(error)))
    return verdict


def _print(verdict: CandidateVerdict) -> None:
    if verdict.verdict == "rejected":
        say(f"rejected: {verdict.reason} ({REASONS[verdict.reason]})\n  {verdict.detail}")
    else:
        checks = [step for step in verdict.steps if isinstance(step, Passed)]
        own = max((one.largest for step in checks if step.own for one in step.accuracy.values()), default=0.0)
        said = "accepted" if verdict.accepted else f"accepted in part, as {verdict.detail}"
        passed = f"{len(checks)} checks passed, largest error {own:.2f} of the tolerance"
        say(f"{said}: {passed if checks else 'no fault was seen'}")
    if skipped := [step for step in verdict.steps if isinstance(step, Skipped)]:
        say(f"  skipped {len(skipped)} steps (--json lists them), such as {skipped[0].step}: {skipped[0].why}")
    if verdict.seconds:
        say(f"  checking took {verdict.seconds:.0f} s (--seed {verdict.seed} draws the same checks)")
    for one in verdict.unexecuted:
        say(f"  ran in no check: {one}")
    for note in verdict.notes:
        say(f"  {note}")


def _check_task(task: Task, limits: DeviceLimits, index: int, reference_deadline: float, *, as_json: bool) -> None:
    """Prints the parts that are right; a mistake is raised."""
    right, unchecked = check_task(task, limits, index, reference_deadline=reference_deadline)
    missing = [clause for clause in unchecked if clause.startswith(NOT_COMPILED)]
    templates = task.sources(limits.backend).templates
    require_work(task, templates, [limits])
    tuned = task.workloads_for(limits.kind, held_out=False)
    for template in templates:
        if template.runs_on(device_names(limits)):
            right.append(f"template {template.name}: configurations of it are feasible")
            if why := default_refused(template, tuned, limits):
                default = described(template.name, template.default_config)
                unchecked.append(
                    f"template {template.name}: its default, {default}, is not feasible: {why.rstrip('.')}"
                )
    if as_json:
        print_json({"task": task.name, "target": limits.name, "right": right, "not_seen": unchecked})
    else:
        for clause in (*right, *(f"Note: {clause}." for clause in unchecked if clause not in missing)):
            say(f"  {clause}")
    if missing:
        raise TunesmithError(f"The task {task.name} could not be checked as a whole: {missing[0]}.")
    seen = "apart from what the notes say was not checked" if unchecked else "as far as can be seen without a device"
    if not as_json:
        say(f"The task {task.name} is right {seen}, for {limits.name}.")
