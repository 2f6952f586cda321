"""A lane on PoCL: a process that dies is replaced."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.pool.workers import DEVICE_BUSY, PROCESS_GONE, Lane
from tunesmith.actors.process import pack, unpack
from tunesmith.actors.workers import LaneReady
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.kernels.backends import open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Crashed, Measured, TimedOut
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

DATA = Path(__file__).resolve().parent.parent / "data"
FINE, ENDLESS, CRASH = 0, 1, 2
NAME = "16384"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(DATA / "troubled" / "task.toml"))


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
