"""What was made up never decides alone: contents, scalars and sizes outside of the reference's and the plain kernel's
contract are left out of a verdict, with the reason, and cost a bounded time."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from compiling import write_task

from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, judge
from tunesmith.actors.workers import Deadlines
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Template

pytestmark = pytest.mark.usefixtures("without_sanitizer")
CHECK = 6.0
SIZE = 1024
MAP = "kernel void run(global const float* x, global float* out, float t, int n) {{ int i = get_global_id(0); {} }}"
PLAIN = "if (i < n) out[i] = x[i] * t;"


def task(
    reference: str = "x * t", plain: str = PLAIN, candidate: str = "", *, before: str = "pass", **changed: Any
) -> Task:
    """out = run(x, t). reference: an expression of x and t; before: a statement in front of it; plain, candidate: the
    bodies of kernels; changed: keys of the template."""
    arguments = "x in float32 n | scale = 10.0; out out float32 n; t scalar float32 3; n scalar int32 n"
    function = f"import os, time\n    import numpy as np\n    x, t = inputs['x'], inputs['t']\n    {before}\n"
    with tempfile.TemporaryDirectory() as folder:
        made = write_task(
            Path(folder),
            arguments,
            f"n = {SIZE}",
            source=MAP.format(plain),
            reference=f"{function}    return {{'out': {reference}}}",
            launch='grid = ["ceil_div(n, 64)"], block = [64]',
            tables="[tolerance]\nfloat32 = { rtol = 1e-4, atol = 1e-5 }",
        )
    sources, own = made.sources("opencl"), made.workloads[0].model_copy(update={"name": "own"})
    template = sources.baseline.template.model_dump() | {"name": "candidate", "source": MAP.format(candidate or plain)}
    sources = sources.model_copy(update={"templates": (Template.model_validate(template | changed),)})
    return made.model_copy(update={"workloads": (own,), "backends": {"opencl": sources}})


def verdict(
    made: Task, device: Any, check: float = CHECK, only: str | None = None, seed: int = 1, seconds: float = math.inf
) -> CandidateVerdict:
    template = made.sources("opencl").templates[0]
    deadlines = Deadlines(check=check, prepare=30.0)
    question = (template, template.default_config, only)
    options = JudgeOptions(seed, deadlines, roofline=Roofline(), seconds=seconds)
    return judge(made, device.limits, device.index, [question], options)[0]


def skipped(found: CandidateVerdict, reason: str) -> list[Skipped]:
    return [step for step in found.steps if isinstance(step, Skipped) and step.reason == reason]


def passed(found: CandidateVerdict) -> list[str]:
    return [step.step for step in found.steps if isinstance(step, Passed)]


@pytest.mark.parametrize(
    ("reference", "plain", "candidate"),
    [
        # The correction of a moving average, in the first step of which nothing has been summed.
        ("x / (1 - 0.9**t)", "out[i] = x[i] / (1 - pow(0.9f, t));", "out[i] = x[i] / (t == 0 ? 1 : 1 - pow(0.9f, t));"),
        pytest.param("x * np.divide(t, t)", "out[i] = x[i] * (t / t);", "out[i] = x[i];", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_scalars_that_divide_by_zero_decide_nothing(reference: str, plain: str, candidate: str, device: Any) -> None:
    found = verdict(task(reference, f"if (i < n) {plain}", f"if (i < n) {candidate}"), device, check=2.0)
    assert found.accepted, found.detail
    assert not any(step.endswith("t = 0") for step in passed(found)) and any(", t = " in step for step in passed(found))
    assert any("the reference fails where t is 0," in note and "`values` of t" in note for note in found.notes)


def test_a_rejection_on_a_made_up_scalar_or_size_or_on_contents_names_what_to_write(device: Any) -> None:
    by_scalar, by_size, by_contents = (
        verdict(task("x * t", PLAIN, f"if (i < n) out[i] = {wrong} ? 7 : x[i] * t;"), device)
        for wrong in ("t == 0", "(n > 100 && n < 200)", "isinf(x[i])")
    )
    assert by_scalar.reason == by_size.reason == by_contents.reason == "mismatch"
    assert "such contents of x: " in by_contents.detail and "ends of their `fill` as expr" in by_contents.detail
    assert "if no caller has t = 0" in by_scalar.detail and "list the `values` of t in the task" in by_scalar.detail
    assert "n = 1" in by_size.detail and "give the range of n in `requires`" in by_size.detail


def test_a_time_limit_of_a_verdict_shortens_its_checks_and_loses_no_verdict(device: Any) -> None:
    found = verdict(task(), device, check=600.0, seconds=1.0)
    assert found.accepted and any("within 0.5 s" in note for note in found.notes), found.notes


@pytest.mark.slow
def test_errors_imports_and_writes_beyond_arrays_leave_nothing_out(device: Any, tmp_path: Path) -> None:
    for reference, plain, step in (
        # It chooses by `where` among results, some of which divide by zero.
        ("np.where(x == 0, t, t / x)", "out[i] = x[i] == 0 ? t : t / x[i];", "zeros"),
        # It overflows on the way to a finite result.
        ("t / (1 + np.exp(-x))", "out[i] = t / (1 + exp(-x[i]));", ", large"),
    ):
        found = verdict(task(reference, f"if (i < n) {plain}"), device)
        assert found.accepted and not skipped(found, "reference") and any(step in one for one in passed(found))
    # What a reference imports is not its time.
    made = task()
    slow = f"import os, time\nif not os.path.exists(os.path.join({str(tmp_path)!r}, str(os.getpid()))): time.sleep(4)\n"
    mark = f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w').close()\n"
    made = made.model_copy(update={"reference": made.reference.replace("def run", f"{slow}{mark}def run")})
    found = verdict(made, device)
    assert found.accepted and not skipped(found, "reference")
    # A candidate may do where the plain kernel writes beyond an array.
    found = verdict(task("x * t", PLAIN.removeprefix("if (i < n) ")), device)
    assert found.accepted, found.detail
    assert any("after out" in one.why for one in skipped(found, "plain kernel"))
    assert any("64 (drawn)" in step or "96 (drawn)" in step for step in passed(found))


def test_what_slow_references_leave_no_time_for_is_told(device: Any) -> None:
    begun = time.monotonic()
    found = verdict(task(before=f"x.size > 100 and x.size != {SIZE} and time.sleep(600)"), device, check=8.0)
    assert found.accepted and time.monotonic() - begun < 10 * CHECK
    late = skipped(found, "time")
    waited = {one.why.partition(",")[0] for one in late if "takes longer than 2 s" in one.why}
    assert len(waited) < 6 and any(one.startswith("it is at least as large as") for one in waited)
    assert any("of all pairs" in note for note in found.notes)
    # It is slow there, which is no reason to narrow the task.
    assert not any("the reference fails" in note for note in found.notes)
    # What there was no time for is told.
    found = verdict(task(before="time.sleep(0.05)"), device, check=3.0)
    assert found.accepted and skipped(found, "time")
    [note] = [note for note in found.notes if "--check-time" in note]
    done, _, wanted, *_ = note.split()
    assert 0 < int(done) < int(wanted) and int(done) == sum(not step.startswith("own") for step in passed(found))
    assert sum(step.startswith("own, ") for step in passed(found)) > 4, "its own are not made up"


@pytest.mark.parametrize(
    ("fault", "why", "check"),
    [
        # The note needs a step whose scalars were not changed, which comes after eight crashes: no time limit ends it
        # before, however slowly this machine starts processes.
        ("if (n == 1) *(volatile global int*)0 = 1;", "SIGSEGV", 200.0),
        # The deadline depends on whether an earlier step has loaded the kernel: twenty seconds in the first.
        pytest.param(f"while (n > 700 && n != {SIZE}) ;", "exceeded its deadline", 60.0, marks=pytest.mark.slow),
    ],
    ids=["crash", "hang"],
)
def test_a_plain_kernel_failing_on_made_up_sizes_ends_nothing(fault: str, why: str, check: float, device: Any) -> None:
    found = verdict(task("x * t", f"{fault} {PLAIN}", PLAIN), device, check)
    assert found.accepted, found.detail
    left_out = skipped(found, "plain kernel")
    assert left_out and why in left_out[0].why
    if why == "SIGSEGV":
        assert any("the plain kernel fails where n is" in note and "`requires`" in note for note in found.notes)
    assert any(step.startswith("256 (drawn)") or "(long)" in step for step in passed(found))


@pytest.mark.parametrize(
    ("plain", "constraint", "expected"),
    [
        pytest.param(PLAIN, "n != 8", "accepted", marks=pytest.mark.slow),
        (PLAIN, "n % 128 == 0", "partial"),
        # Where the plain kernel writes beyond the array, no size is taken from anyone.
        pytest.param(PLAIN.removeprefix("if (i < n) "), "n % 64 == 0", "accepted", marks=pytest.mark.slow),
    ],
)
def test_a_template_for_few_sizes_is_right_in_part(plain: str, constraint: str, expected: str, device: Any) -> None:
    made = task("x * t", plain, constraints=[{"expression": constraint}])
    found = verdict(made, device, check=CHECK if expected == "accepted" else 1.0)
    assert found.verdict == expected, found.detail
    assert verdict(made, device, only="own").accepted
