"""The judge on PoCL: whose fault a deadline is, and who has the device meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.judging import judge as judging
from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, Limits, judge, reason_of
from tunesmith.hw import device_lock as exclusive
from tunesmith.hw.device_lock import DeviceLock, Holder
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import open_device
from tunesmith.kernels.check import sanitizer as sanitize
from tunesmith.kernels.outcome import CompileFailed, Crashed, Outcome, TimedOut
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

DATA = Path(__file__).resolve().parent.parent / "data"
FINE, CRASH = 0, 2
KNOWN = Roofline()
"""For a judgement in which the device's roofs do not matter: measuring them takes longer than the rest of it."""


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        # As NVRTC 13.0 said it under a bound on its address space.
        (CompileFailed("candidate(11): catastrophic error: out of memory"), "compile_crashed"),
        (CompileFailed('candidate(3): error: identifier "memory" is undefined'), "compile_failed"),
        (TimedOut("compile", 6.0), "compile_timeout"),
        (TimedOut("run", 6.0), "timed_out"),
        (Crashed("run", "it is gone"), "crashed"),
    ],
)
def test_an_outcome_has_a_reason(outcome: Outcome, reason: str) -> None:
    """A compiler that ran out of memory did not refuse the source."""
    assert reason_of(outcome) == reason


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(DATA / "troubled" / "task.toml"))


def verdicts(task: Task, device: Any, *troubles: int, **options: Any) -> list[CandidateVerdict]:
    """On the template with each of `troubles`, on one workload."""
    template = task.sources("opencl").templates[0]
    questions = [(template, {"GROUP": 16, "TROUBLE": trouble}, "16384") for trouble in troubles]
    return judge(task, device.limits, device.index, questions, JudgeOptions(**{"roofline": KNOWN} | options))


def with_reference(task: Task, first: str) -> Task:
    """`task`, whose reference begins with the statement `first`."""
    body = task.reference.replace(":\n", f":\n    {first}\n", 1)
    assert body != task.reference
    return task.model_copy(update={"reference": body})


@pytest.mark.slow
def test_a_slow_reference_is_not_held_against_the_candidate(task: Task, device: Any, tmp_path: Path) -> None:
    """It takes longer, once, than a step may run."""
    once = tmp_path / "once"
    slow = f"import os, time; os.path.exists({str(once)!r}) or (open({str(once)!r}, 'w').close(), time.sleep(8))"
    (judged,) = verdicts(with_reference(task, slow), device, FINE, deadlines=Limits(run=7.0), roofline=None)
    assert once.exists() and judged.accepted, judged


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import time; time.sleep(600)", r"took longer than 1 s; most likely the reference scale_add does not end"),
        ("import os; os.abort()", r"SIGABRT.*most likely the reference scale_add ends it"),
    ],
)
def test_a_reference_that_hangs_or_dies_is_named(task: Task, device: Any, statement: str, said: str) -> None:
    broken = with_reference(task, statement)
    with pytest.raises(TunesmithError, match=said):
        verdicts(broken, device, FINE, deadlines=Limits(prepare=1.0))


def test_the_device_is_held_from_the_first_buffers_to_the_sanitizer(
    task: Task, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a candidate has ended the process that runs kernels."""
    uuid = open_device(device.limits, device.index).uuid
    seen: list[tuple[str, bool]] = []

    def note(text: str) -> None:
        if free := (other := DeviceLock(uuid)).try_acquire():
            other.release()
        seen.append((text, free))

    def tool(*arguments: Any) -> Any:
        note("sanitizer")
        return sanitize.sanitize(*arguments)

    monkeypatch.setattr(judging, "sanitize", tool)
    assert [one.reason for one in verdicts(task, device, CRASH, FINE, listener=note)] == ["crashed", ""]
    first = next(at for at, (text, _) in enumerate(seen) if text.startswith("preparing"))
    assert not any(free for text, free in seen[first:] if text.startswith(("preparing", "checking", "sanitizer"))), seen
    assert seen[-1][0] == "sanitizer"
    with DeviceLock(uuid):
        pass


def test_who_has_the_device_is_said(task: Task, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive, "REPORT_AFTER_SECONDS", 0.2)
    said: list[str] = []
    other = DeviceLock(open_device(device.limits, device.index).uuid, Holder(28171, "gpu-1", "tunesmith tune gemm"))
    other.acquire()

    def listener(text: str) -> None:
        if text.startswith("waiting"):
            said.append(text)
            other.release()

    (found,) = verdicts(task, device, FINE, listener=listener)
    assert found.accepted
    assert len(said) == 1 and said[0].endswith(" s"), said
    assert said[0].startswith("waiting for the device: pid 28171 on gpu-1, tunesmith tune gemm, for "), said


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], sanitize.Sanitized]:
    """What a stand-in for compute-sanitizer, a shell script, makes of a candidate on three workloads. Its folder has
    the job it is given; `$tool` is which of the tools it is, `$done` where it says how many launches were made."""
    from tunesmith.hw.targets import resolve_target
    from tunesmith.kernels.build.artifact import Candidate

    def run(script: str) -> sanitize.Sanitized:
        tool = tmp_path / "compute-sanitizer"
        lines = [
            "#!/bin/sh",
            "tool=${1#--tool=}",
            'for last; do done="$job"; job="$last"; done',
            f'cp "$job" {tmp_path}/job.$$ && mv {tmp_path}/job.$$ {tmp_path}/job',
            script,
        ]
        tool.write_text("\n".join(lines) + "\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        task = load_task(str(DATA.parent / "raw" / "rope"))
        suspect = Candidate(task.sources("cuda").baseline.template, {}, {}), list(task.workloads[:3])
        (found,) = sanitize.sanitize([suspect], task, resolve_target("h200"), 3, 0)
        return found

    return run


def test_compute_sanitizer_is_run_on_the_device_in_question(
    tmp_path: Path, pretended: Callable[[str], sanitize.Sanitized]
) -> None:
    import pickle

    assert pretended(f'touch {tmp_path}/ran.$tool; printf 3 > "$done"') == sanitize.Sanitized()
    jobs, task, index, _ = pickle.loads((tmp_path / "job").read_bytes())
    assert index == 3
    assert {path.suffix[1:] for path in tmp_path.glob("ran.*")} == set(sanitize.SANITIZER_TOOLS)
    sizes = [task.bytes_of(workload) for _, workload in jobs]
    assert len(sizes) == 3 and sizes == sorted(sizes)


FOUND = f"echo '========= Oh' && exit {sanitize.ERROR_EXIT_CODE}; echo 'another cannot be run'; exit 1"
LATE = 'printf 1 > "$done" || printf 3 > "$done"'
BROKEN = 'echo "no such tool" && exit 1; printf 3 > "$done"'


@pytest.mark.parametrize(
    ("tool", "script", "expected"),
    [
        *((tool, FOUND, f"{tool}: Oh") for tool in sanitize.SANITIZER_TOOLS),
        ("racecheck", LATE, "compute-sanitizer: racecheck had no time for "),
        ("initcheck", BROKEN, "compute-sanitizer: initcheck could not be run: no such tool"),
    ],
)
def test_the_result_of_each_tool_is_told(
    tool: str, script: str, expected: str, pretended: Callable[[str], sanitize.Sanitized]
) -> None:
    found = pretended(f"[ $tool = {tool} ] && {script}")
    said = found.found if script == FOUND else found.note
    assert said.startswith(expected) and bool(found.found) == (script == FOUND)
    assert script != LATE or said.count(",") == 1


STRIDE = """
__kernel void scale_add(__global const float *x, __global const float *y, __global float *out, float a, int n) {
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) out[i] = a * x[i] + y[i];
}"""


@pytest.mark.parametrize(
    ("grid", "source", "said"),
    [
        ("ceil_div(n, 16)", "", ""),
        ("n", "", "The baseline is launched with 16 times the blocks that it needs "),
        # One workload needs them.
        ("min(n, 400)", "", ""),
        # A block that is missing is made up for by others.
        ("n", STRIDE, ""),
    ],
)
def test_a_baseline_with_blocks_that_do_nothing_is_told(device: Any, grid: str, source: str, said: str) -> None:
    task = load_task(str(DATA / "scale_add" / "task.toml"))
    sources = task.sources("opencl")
    template = sources.baseline.template
    launch = template.launch.model_copy(update={"grid": (grid,)})
    template = template.model_copy(update={"launch": launch, "source": source or template.source})
    small = task.workloads[1].model_copy(update={"name": "small", "sizes": {"n": 64}})
    baseline = sources.baseline.model_copy(update={"template": template})
    backends = {"opencl": sources.model_copy(update={"baseline": baseline})}
    task = task.model_copy(update={"workloads": (task.workloads[1], small), "backends": backends})
    asked = sources.templates[0], {"GROUP": 16, "ITEMS": 4, "UNROLL": 0}, None
    (found,) = judge(task, device.limits, device.index, [asked], JudgeOptions(0, Limits(check=1.0), roofline=KNOWN))
    assert found.accepted, found
    assert found.baseline_note.startswith(said) and bool(found.baseline_note) == bool(said), found.baseline_note
