"""The judge and a lane on PoCL: whose fault a deadline is, who has the device meanwhile, a process that dies, and steps
that are spread over processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tunesmith.actors.judging import judge as judging
from tunesmith.actors.judging.judge import (
    CandidateVerdict,
    Findings,
    HeldDevice,
    JudgeOptions,
    StepRunner,
    compile_all,
    judge,
)
from tunesmith.actors.pool import DEVICE_BUSY, PROCESS_GONE, Lane
from tunesmith.actors.process import Isolated, unpack
from tunesmith.actors.workers import Deadlines, LaneReady
from tunesmith.hw import device_lock as exclusive
from tunesmith.hw.device_lock import DeviceLock, Holder
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import Specialised, code_key
from tunesmith.kernels.check import sanitizer as sanitize
from tunesmith.kernels.check.coverage import Coverage
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.outcome import CompileFailed, Crashed, Outcome, TimedOut, WrongResult
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import library_tasks, load_task, read_task

pytestmark = pytest.mark.usefixtures("without_sanitizer")
DATA = Path(__file__).resolve().parent.parent / "data"
FINE, CRASH, UNWRITTEN = 0, 2, 6
KNOWN = Roofline()
"""For a judgement in which the device's roofs do not matter: measuring them takes longer than the rest of it."""


def test_an_outcome_has_a_reason() -> None:
    """A compiler that ran out of memory did not refuse the source."""
    for outcome, reason in (
        # As NVRTC 13.0 said it under a bound on its address space.
        (CompileFailed("candidate(11): catastrophic error: out of memory"), "compile_crashed"),
        (CompileFailed('candidate(3): error: identifier "memory" is undefined'), "compile_failed"),
        (TimedOut("compile", 6.0), "compile_timeout"),
        (TimedOut("run", 6.0), "timed_out"),
        (Crashed("run", "it is gone"), "crashed"),
    ):
        assert judging.reason_of(outcome) == reason


class Compiler:
    """Takes long for some types, as Triton's assembler does for large constants."""

    def compile(self, source: Specialised) -> Artifact:
        time.sleep(60.0 if "define T half" in source.source else 0.0)
        return Artifact("opencl", "", source.entry, b"", source.digest)


def test_machine_code_that_compiles_too_slowly_is_left_out() -> None:
    task = read_task(library_tasks()["softmax"])
    kernel, workload = task.sources("opencl").baseline.template, task.workloads[0]
    fast, slow = (workload.model_copy(update={"types": {"T": name}}) for name in ("float32", "float16"))
    with Isolated("compile", Compiler) as compiler:
        ask = partial(compile_all, [compiler], task, kernel, {})
        assert ask([fast, slow], 1.0) == TimedOut("compile", 1.0)
        made = ask([slow, fast, fast], 1.0, ignored=(TimedOut,))
        assert isinstance(made, Candidate) and not made.artifacts, "no time is left"
        made = ask([fast, slow], 1.0, ignored=(TimedOut,))
    assert isinstance(made, Candidate) and set(made.artifacts) == {code_key(task, kernel, fast)}


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(DATA / "troubled" / "task.toml"))


def verdicts(task: Task, device: Any, *troubles: int, **options: Any) -> list[CandidateVerdict]:
    """On the template with each of `troubles`, on one workload."""
    template = task.sources("opencl").templates[0]
    questions = [(template, {"GROUP": 16, "TROUBLE": trouble}, "16384") for trouble in troubles]
    return judge(task, device.limits, device.index, questions, JudgeOptions(**{"roofline": KNOWN} | options))


def test_without_time_for_all_the_first_have_verdicts(task: Task, device: Any) -> None:
    assert [one.accepted for one in verdicts(task, device, FINE, FINE, seconds=0.01)] == [True]


def test_a_brief_verdict_is_on_made_up_sizes_alone(task: Task, device: Any) -> None:
    template = task.sources("opencl").templates[0]
    questions = [(template, {"GROUP": 16, "TROUBLE": trouble}, None) for trouble in (FINE, UNWRITTEN)]
    # The first step does not count, so that the time is enough for it on a busy machine.
    options = JudgeOptions(deadlines=Deadlines(check=20.0), brief=True)
    fine, wrong = judge(task, device.limits, device.index, questions, options)
    passed = [step for step in fine.steps if isinstance(step, Passed)]
    assert fine.accepted and passed and not any(step.own for step in passed)
    assert (wrong.verdict, wrong.reason) == ("rejected", "unwritten")


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


def test_a_reference_that_hangs_or_dies_is_named(task: Task, device: Any) -> None:
    for statement, said in (
        ("import time; time.sleep(600)", r"took longer than 1 s; most likely the reference scale_add does not end"),
        ("import os; os.abort()", r"SIGABRT.*most likely the reference scale_add ends it"),
    ):
        with pytest.raises(TunesmithError, match=said):
            verdicts(with_reference(task, statement), device, FINE, deadlines=Deadlines(prepare=1.0))


def test_the_device_is_held_throughout_and_who_has_it_is_said(task: Task, device: Any, monkeypatch: Any) -> None:
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
    # Who has it is said.
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
    assert said[0].startswith("waiting for the device: pid 28171 on gpu-1, tunesmith tune gemm, has held it for "), said


NAME = "16384"


@pytest.fixture
def lane(task: Task, device: Any) -> Iterator[Lane]:
    made = Lane(task, device.limits, device.index)
    yield made
    made.end()


def test_a_visit_finds_its_device_busy_or_its_process_gone(lane: Lane) -> None:
    """The pool makes such a visit again; what a visit gives otherwise, tests of the pool show."""
    ready = lane.start(None, [], 0, 60.0)
    assert isinstance(ready, LaneReady)
    with DeviceLock(ready.uuid):
        assert unpack(lane.visit_packed(b"", 30.0))[0] == DEVICE_BUSY
    lane.acquire()
    assert not DeviceLock(ready.uuid).try_acquire()
    os.kill(lane._process._process.pid, signal.SIGKILL)
    (found,) = unpack(lane.visit_packed(b"", 30.0))
    assert isinstance(found, Crashed) and "SIGKILL" in found.detail
    assert unpack(lane.visit_packed(b"", 30.0))[0] == PROCESS_GONE, "there is none until the lane is started again"
    with DeviceLock(ready.uuid):
        pass


def test_a_device_whose_lock_cannot_be_had_is_not_waited_for(lane: Lane, tmp_path: Path, monkeypatch: Any) -> None:
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


KERNELS: Any = (mock.Mock(), mock.Mock(), "not counted")
TASK = load_task(str(Path(__file__).resolve().parent.parent / "data" / "scale_add" / "task.toml"))


def pretended_step(wrong: bool = False, seconds: float = 0.0, nbytes: int = 1, derived: bool = False) -> Any:
    """wrong: it rejects the kernel; seconds: how long it takes, an error where negative; nbytes: of its workload."""
    return SimpleNamespace(wrong=wrong, seconds=seconds, workload=nbytes, derived=derived)


class PretendedRunner:
    """Stands for a process; done: who did which step."""

    limits = None
    task = SimpleNamespace(bytes_of=lambda workload: workload)
    device = SimpleNamespace(leave=lambda: None)

    def __init__(self, number: int, done: dict[int, int]) -> None:
        self.number, self.done, self.killed = number, done, threading.Event()
        self.examiner = SimpleNamespace(kill=self.killed.set)

    def is_cold(self, step: Any) -> bool:
        return False

    def run(self, step: Any, place: int, findings: Findings, source: object) -> Outcome | Passed:
        if step.seconds < 0:
            raise TunesmithError("the task is at fault")
        self.killed.wait(step.seconds)
        self.done[place] = self.number
        return WrongResult("mismatch", "out", str(place)) if step.wrong else Passed(str(place), {}, {}, True)


def run(
    steps: list[Any], count: int, budget: float = 60.0, runners: list[Any] | None = None
) -> tuple[Findings, dict[int, int]]:
    """The findings, and who did which step; steps on more than 10 bytes are the first runner's."""
    done, findings, source = dict[int, int](), Findings(KERNELS, budget), mock.MagicMock()
    runners = [] if runners is None else runners
    runners += [PretendedRunner(number, done) for number in range(count)]
    with mock.patch("tunesmith.actors.judging.judge.excluded", return_value=None):
        judging.run_steps(runners, steps, 10.0, findings, source)
    released = [place for ((place,), _) in source.return_value.__enter__.return_value.release.call_args_list]
    assert sorted(released) == sorted(done)
    return findings, done


@pytest.mark.parametrize("runners", [1, 3])
def test_all_steps_are_done_once_and_the_first_wrong_one_in_the_plan_decides(runners: int) -> None:
    findings, done = run([pretended_step() for _ in range(40)], runners)
    assert sorted(done) == list(range(40)) and findings.wrong() is None
    assert [one.step for one in findings.passed()] == [str(place) for place in range(40)]
    # The first of the two is slower: with several processes the second is known before it.
    steps = [pretended_step(), pretended_step(wrong=True, seconds=0.3), pretended_step(wrong=True)]
    findings, done = run([*steps, *(pretended_step() for _ in range(200))], runners)
    assert findings.wrong() == (WrongResult("mismatch", "out", "1"), steps[1])
    assert [one.step for one in findings.passed()] == ["0"]
    assert len(done) < 200, "nothing behind it was wanted"


def test_large_workloads_are_one_process_alone_and_an_error_ends_all() -> None:
    steps = [pretended_step(nbytes=100 if place % 3 == 0 else 1, seconds=0.01) for place in range(30)]
    findings, done = run(steps, 3)
    assert len(findings.passed()) == 30
    assert {done[place] for place in range(0, 30, 3)} == {0} and len(set(done.values())) > 1
    runners: list[Any] = []
    slow, wrong = pretended_step(seconds=600.0), pretended_step(seconds=-1.0)
    with pytest.raises(TunesmithError, match="at fault"):
        run([slow, wrong, slow], 3, 60.0, runners)
    assert all(one.killed.is_set() for one in runners)


def test_who_waits_or_begins_uses_up_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every slow step, whose process is killed, would be a first one again, and nothing would end the verdict."""
    own = [pretended_step(seconds=0.3), pretended_step(seconds=0.05, derived=True)]
    assert not run(own, 1, 0.25)[0].is_spent and run([pretended_step(seconds=0.3, derived=True)], 1, 0.25)[0].is_spent
    for after in (False, True):
        monkeypatch.setattr(PretendedRunner, "is_cold", lambda runner, _, after=after: after if runner.done else True)
        assert run([pretended_step(seconds=0.3, derived=True)], 1, 0.25)[0].is_spent == after
    lock: Any = mock.Mock()
    device = HeldDevice(lock, print)
    device.take()
    other = threading.Thread(target=lambda: (device.take(), device.leave()))  # one that has ended
    other.start()
    other.join()
    assert not lock.release.called, "this thread uses it"
    device.leave()
    assert lock.release.called


def runner_of(call: Any, **options: Any) -> StepRunner:
    """One whose process answers calls by `call`."""
    examiner: Any = SimpleNamespace(starts=1, call=call)
    device: Any = SimpleNamespace(take=lambda: 0.0)
    return StepRunner(TASK, resolve_target("h200"), Deadlines(), examiner, device, lambda _: None, **options)


def made_up(size: int) -> Step:
    workload = TASK.workloads[0].model_copy(update={"sizes": {"n": size}, "name": str(size)})
    return Step(workload, Contents(), derived=True)


def called(method: str, work: Any) -> str:
    """The function that a process is to call on a step's data, or else its method."""
    return work.func.__name__ if method == "on_step" else method


def test_the_time_in_which_checks_are_compiled_is_not_the_kernels() -> None:
    """Else a slow start is taken for a slow kernel, and all larger sizes are left out: a short deadline is only that of
    a launch, and not of the first one in a process, which loads the kernel."""
    limits, findings, calls = Deadlines(run=20.0), Findings(KERNELS, 20.0), list[tuple[str, float]]()

    def call(method: str, seconds: float, _: Step, work: Any) -> Any:
        """Like a process in which everything is right."""
        calls.append((called(method, work), seconds))
        return {"time_baseline": 0.001, "measure_baseline": ({},)}.get(called(method, work))

    examiner: Any = SimpleNamespace(starts=1, call=call)
    runner = StepRunner(TASK, resolve_target("h200"), limits, examiner, examiner, lambda _: None, Path())
    short = limits.made_up_step(findings.seconds)
    assert short < limits.run

    def short_calls(types: dict[str, str]) -> list[str]:
        calls.clear()
        workload = TASK.workloads[0].model_copy(update={"types": types})
        assert runner.try_plain(Step(workload, Contents(), derived=True), findings) is None
        assert calls[-1] == ("measure_baseline", limits.run)
        return [method for method, seconds in calls if seconds <= short]

    for types in ({"T": "float32"}, {"T": "float16"}):
        assert short_calls(types) == [] and short_calls(types) == ["time_baseline"]
    examiner.starts += 1
    assert short_calls({"T": "float16"}) == []
    findings = Findings(KERNELS, 20.0)

    def call(method: str, seconds: float, _: Step, work: Any) -> TimedOut | None:
        return TimedOut("run", seconds) if called(method, work) == "measure_baseline" else None

    runner = runner_of(call, baseline_ends=True)
    assert runner.try_plain(made_up(100), findings) is not None
    assert runner.is_cold(made_up(100)) and findings.left_out(made_up(8)) is None
    for size in (100, 200):
        found = findings.left_out(made_up(size))
        assert found is not None and found.reason == "time" and "at least as large as 100" in found.why


def test_each_edge_of_memory_occurs_on_made_up_sizes_and_all_on_the_task_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def call(method: str, seconds: float, _: Step, work: Any) -> Any:
        if called(method, work) == "launch_at_edges":
            tried.append(work.args[-1])
        answers = {"launch_at_edges": True, "skips_right_results": None}
        return answers.get(called(method, work), Passed("", {}, {}, True))

    runner = runner_of(call)
    for left_out in ("try_plain", "_cover"):
        monkeypatch.setattr(StepRunner, left_out, lambda *_: None)
    for place in range(40):
        assert isinstance(runner.run(made_up(8), place, Findings(KERNELS, 20.0), mock.MagicMock()), Passed)
    assert len(tried) == 40 and set(tried) == {"end", "start", "read-only"}
    tried.clear()
    runner.run(Step(TASK.workloads[0], Contents()), 0, Findings(KERNELS, 20.0), mock.MagicMock())
    assert tried == ["end", "start", "read-only"]


@pytest.mark.parametrize("plain_is_right", [True, False])
def test_a_kernel_that_is_wrong_when_warps_are_slow_is_rejected_where_the_plain_one_is_right(
    plain_is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, launched = WrongResult("mismatch", "out", "it is 0"), list[Any]()

    def call(method: str, seconds: float, _: Step, work: Any) -> Any:
        if called(method, work) == "wrong_when_delayed":
            launched.append(work.args[0])
            return wrong if work.args[0] is not twins[1] or not plain_is_right else None
        answers = {"launch_at_edges": True, "skips_right_results": None}
        return answers.get(called(method, work), Passed("", {}, {}, True))

    runner, twins = runner_of(call), (mock.Mock(), mock.Mock())
    for left_out in ("try_plain", "_cover"):
        monkeypatch.setattr(StepRunner, left_out, lambda *_: None)
    plain, own = (Coverage(mock.Mock(), mock.MagicMock()) for _ in range(2))
    own.plain = plain
    for one in (own, plain):
        one.marked.__contains__.return_value = True  # type: ignore[attr-defined]
    monkeypatch.setattr(Coverage, "twin", lambda one, _: twins[one is plain])
    monkeypatch.setattr("tunesmith.actors.judging.judge.code_key", lambda *_: ())
    findings = Findings((mock.Mock(), mock.Mock(), own), 20.0)
    found = runner.run(made_up(8), 0, findings, mock.MagicMock())
    assert launched == list(twins)
    if plain_is_right:
        assert (
            isinstance(found, WrongResult) and found.reason == "nondeterministic" and "delayed: it is 0" in found.detail
        )
    else:
        assert isinstance(found, Passed) and any("order of warps" in one for one in findings.unchecked)
    runner.run(made_up(8), 16, findings, mock.MagicMock())
    assert len(launched) == 2


@pytest.mark.parametrize(("fails_on", "left_out"), [("negative", True), ("zeros", False)])
def test_a_made_up_scalar_that_the_plain_kernel_is_not_for_rejects_nothing(fails_on: str, left_out: bool) -> None:
    """An attention with a negative scale: on which contents a kernel overflows is chance."""
    wrong = WrongResult("mismatch", "out", "it is inf")

    def call(method: str, _: float, step: Step, work: Any) -> Any:
        if called(method, work) == "measure_baseline" and step.contents.kind == fails_on:
            return Skipped(step.name, "the plain kernel is not right there")
        return {"verify": wrong, "time_baseline": 0.001, "measure_baseline": ({},)}.get(called(method, work))

    runner = runner_of(call)
    step = made_up(8)
    scaled = replace(step, contents=replace(step.contents, scalars=(("scale", -1.0),)))
    found = runner.run(scaled, 0, Findings(KERNELS, 20.0), mock.MagicMock())
    assert isinstance(found, Skipped) if left_out else found == wrong
    assert runner.run(step, 0, Findings(KERNELS, 20.0), mock.MagicMock()) == wrong
