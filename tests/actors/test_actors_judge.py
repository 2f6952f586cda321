"""The judge and a lane on PoCL: whose fault a deadline is, who has the device meanwhile, and a process that dies."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.judging import judge as judging
from tunesmith.actors.judging.judge import CandidateVerdict, JudgeOptions, judge, reason_of
from tunesmith.actors.pool.workers import DEVICE_BUSY, PROCESS_GONE, Lane
from tunesmith.actors.process import pack, unpack
from tunesmith.actors.workers import Deadlines, LaneReady
from tunesmith.hw import device_lock as exclusive
from tunesmith.hw.device_lock import DeviceLock, Holder
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.backends import open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.check import sanitizer as sanitize
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import CompileFailed, Crashed, Measured, Outcome, TimedOut
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

DATA = Path(__file__).resolve().parent.parent / "data"
FINE, ENDLESS, CRASH = 0, 1, 2
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
    (judged,) = verdicts(with_reference(task, slow), device, FINE, deadlines=Deadlines(run=7.0), roofline=None)
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
        verdicts(broken, device, FINE, deadlines=Deadlines(prepare=1.0))


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


NAME = "16384"


@pytest.fixture
def lane(task: Task, device: Any) -> Iterator[Lane]:
    made = Lane(task, device.limits, device.index)
    yield made
    made.end()


@pytest.fixture(scope="module")
def packed(task: Task, device: Any) -> Callable[[int], bytes]:
    """A visit with a trouble, as it is sent."""
    template, workload = task.sources("opencl").templates[0], task.workload(NAME)
    compiler = open_compiler(device.limits, device.index)

    @functools.cache
    def give(trouble: int) -> bytes:
        config: dict[str, Any] = {"GROUP": 16, "TROUBLE": trouble}
        artifact = compiler.compile(specialise(template, config, workload.types))
        assert isinstance(artifact, Artifact)
        made = Candidate(template, config, {types_key(workload): artifact})
        return pack(made, (NAME,), Precision(budget_seconds=0.02, min_samples=3))

    return give


def visit(lane: Lane, data: bytes, seconds: float = 30.0, *, wait: bool = True) -> Any:
    """wait: until nobody else on this machine uses the device."""
    if wait:
        lane.acquire()
    (result,) = unpack(lane.visit_packed(data, seconds))
    return result


def test_whatever_ends_the_process_is_told_and_the_lane_starts_again(lane: Lane, packed: Any) -> None:
    """A deadline, a kernel that kills its process, and a kill from outside."""

    def start() -> None:
        assert isinstance(lane.start(None, [NAME], 0, 60.0), LaneReady)
        assert isinstance(visit(lane, packed(FINE))[NAME], Measured)

    start()
    lane.acquire()
    started = time.monotonic()
    assert visit(lane, packed(ENDLESS), 1.0) == TimedOut("run", 1.0)
    assert 1.0 <= time.monotonic() - started < 60.0
    assert visit(lane, packed(FINE)) == PROCESS_GONE, "there is nothing to run it until the lane was started again"
    start()
    found = visit(lane, packed(CRASH))
    assert isinstance(found, Crashed)
    start()
    os.kill(lane._process._process.pid, signal.SIGKILL)
    found = visit(lane, packed(FINE))
    assert isinstance(found, Crashed) and "SIGKILL" in found.detail
    start()


def test_a_device_that_others_use_is_busy_until_it_is_acquired(lane: Lane, packed: Any) -> None:
    ready = lane.start(None, [NAME], 0, 60.0)
    assert isinstance(ready, LaneReady)
    with DeviceLock(ready.uuid):
        assert visit(lane, packed(FINE), wait=False) == DEVICE_BUSY
    lane.acquire()
    assert not DeviceLock(ready.uuid).try_acquire()
    assert isinstance(visit(lane, packed(FINE))[NAME], Measured)
    with DeviceLock(ready.uuid):
        pass


def test_a_device_whose_lock_cannot_be_had_is_not_waited_for(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_LOCK_DIR", str(tmp_path))
    assert isinstance(lane.start(None, [], 0, 60.0), LaneReady)
    for path in list(tmp_path.rglob("*.lock")):
        path.unlink()
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        lane.acquire()
    assert lane.waiting_for() == ""


def test_the_device_is_held_while_buffers_are_made(task: Task, device: Any, tmp_path: Path) -> None:
    """Contents are made and the reference computes there, which another process's measurement must not meet."""
    uuid, seen = open_device(device.limits, device.index).uuid, tmp_path / "seen"
    look = (
        f"from tunesmith.hw.device_lock import DeviceLock; file = open({str(seen)!r}, 'a'); "
        f"lock = DeviceLock({uuid!r}); print(lock.try_acquire(), file=file); lock.release(); file.close()"
    )
    body = task.reference.replace(":\n", f":\n    {look}\n", 1)
    other = next(one.name for one in task.workloads if one.name != NAME)
    lane = Lane(task.model_copy(update={"reference": body}), device.limits, device.index)
    try:
        assert isinstance(lane.start(None, [NAME], 0, 60.0), LaneReady)
        first = seen.read_text().split()
        with DeviceLock(uuid):
            pass
        lane.acquire()
        assert lane.run("prepare", [other]) is None
        with DeviceLock(uuid):
            pass
    finally:
        lane.end()
    found = seen.read_text().split()
    assert first and len(found) > len(first) and set(found) == {"False"}
