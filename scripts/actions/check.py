"""`tunesmith check`: the verdict on one candidate."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tunesmith.actors.judging.judge import SEED, Limits, Verdict, judge, rejected
from tunesmith.actors.judging.reference import ReferenceCheck, meant_for
from tunesmith.cli.app import echo
from tunesmith.graph.setup.device_choice import choose_device
from tunesmith.hw.probe import Device, probe
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.check.check import REASONS
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.rewrite.signature import require_signature, require_signatures
from tunesmith.kernels.spec.files.candidate_file import parse_config, read_source, template_of
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.template import MAX_SOURCE_BYTES

EXIT_ACCEPTED, EXIT_REJECTED = 0, 1
PLAIN_SECONDS = 5.0
"""Between two lines of progress where standard error is not a terminal."""


def run_check(
    reference: ReferenceCheck,
    source: Path,
    template: Path | None,
    config: str | None,
    backend: str,
    limits: Limits,
    *,
    as_json: bool,
) -> int:
    """Prints the verdict on a candidate for the task of `reference`; returns the exit code."""
    task = reference.task
    device = choose_device(task, backend, probe())
    size = source.stat().st_size if source.is_file() else 0
    if size > MAX_SOURCE_BYTES:
        verdict = Verdict(
            "rejected", "source_too_large", f"{source} has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted."
        )
    else:
        verdict = _judged(reference, device, source, template, config, limits)
    if as_json:
        json.dump(verdict.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(verdict)
    return EXIT_REJECTED if verdict.verdict == "rejected" else EXIT_ACCEPTED


def _judged(
    reference: ReferenceCheck, device: Device, source: Path, template: Path | None, config: str | None, limits: Limits
) -> Verdict:
    # Before it becomes a template, as a source no template may hold is a rejection and no mistake of the user's.
    refused = refuse_text(read_source(source), device.limits.backend)
    if refused is not None:
        return rejected(refused)
    task = reference.task
    require_signatures(task, device.backend)
    made = template_of(task, device.backend, source, template)
    reference.examine(meant_for(task, device.limits))
    reference.result()
    question = (made, parse_config(config, made), None)
    listener = _progress()
    verdict = judge(task, device.limits, device.index, [question], seed=SEED, deadlines=limits, listener=listener)[0]
    if verdict.verdict != "rejected":
        return verdict
    try:
        require_signature(task, made, "What may explain it")
    except TaskError as error:
        # A kernel may take an array by another type and be right, so that this alone rejects none.
        return replace(verdict, notes=(*verdict.notes, str(error)))
    return verdict


def _progress() -> Callable[[str], None]:
    """Prints what is being done on standard error: every step on a terminal, elsewhere a line now and then."""
    every, last = 0.0 if sys.stderr.isatty() else PLAIN_SECONDS, time.monotonic()

    def show(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            echo(f"  {text}", err=True)

    return show


def _skipped(verdict: Verdict) -> dict[str, list[str]]:
    """The steps that were skipped, by the reason: hundreds of derived shapes can share one, but for the numbers in
    it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for step in verdict.steps:
        if isinstance(step, Skipped):
            found.setdefault(re.sub(r"[0-9][0-9.e+-]*|nan|inf", "#", step.why), (step.why, []))[1].append(step.step)
    return dict(found.values())


def _print(verdict: Verdict) -> None:
    if verdict.verdict != "rejected":
        checks = [step for step in verdict.steps if isinstance(step, Passed)]
        own = max((one.largest for step in checks if step.own for one in step.accuracy.values()), default=0.0)
        said = "accepted" if verdict.accepted else f"accepted in part, as {verdict.detail}"
        echo(f"{said}: {len(checks)} checks passed, largest error {own:.2f} of the tolerance")
        errors = [(one.largest, step, name) for step in checks for name, one in step.accuracy.items()]
        worst, where, name = max(errors, key=lambda error: error[0], default=(0.0, None, ""))
        if where is not None and worst > max(1.0, own):
            echo(
                f"  on {where.step} it is {worst:.2f}, and the baseline's {where.baseline[name].largest:.2f}: on sizes "
                "and contents that the task does not name, errors are compared with the baseline's"
            )
    else:
        echo(f"rejected: {verdict.reason} ({REASONS[verdict.reason]})")
        echo(f"  {verdict.detail}")
    for why, steps in _skipped(verdict).items():
        more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
        echo(f"  skipped {steps[0]}{more}: {why}")
    if verdict.seconds:
        echo(f"  checking took {verdict.seconds:.0f} s")
    for one in verdict.unexecuted:
        echo(f"  ran in no check: {one}")
    for note in filter(None, (verdict.baseline_note, *verdict.notes)):
        echo(f"  {note}")
