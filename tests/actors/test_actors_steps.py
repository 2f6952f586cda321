"""Steps spread over processes: what decides, who does what, and how they end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.judging.judge import JudgeOptions, judge
from tunesmith.actors.judging.steps import Budget, Findings, HeldDevice, Limits, StepRunner, run_steps
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.outcome import Outcome, WrongResult
from tunesmith.kernels.spec.taskfile import load_task

TASK = load_task(str(Path(__file__).resolve().parent.parent / "data" / "scale_add" / "task.toml"))


@dataclass
class PretendedWorkload:
    bytes_moved: int


@dataclass
class PretendedStep:
    """wrong, raises: what it does; seconds: how long it takes; nbytes: of its workload."""

    wrong: bool = False
    raises: bool = False
    seconds: float = 0.0
    nbytes: int = 1
    derived: bool = False

    @property
    def workload(self) -> PretendedWorkload:
        return PretendedWorkload(self.nbytes)


class PretendedTask:
    def bytes_of(self, workload: PretendedWorkload) -> int:
        return workload.bytes_moved


@dataclass
class PretendedExaminer:
    killed: threading.Event = field(default_factory=threading.Event)

    def kill(self) -> None:
        self.killed.set()


@dataclass
class PretendedDevice:
    def leave(self) -> None:
        pass


@dataclass
class PretendedRunner:
    """Stands for a process."""

    number: int
    done: dict[int, int]
    task: PretendedTask = field(default_factory=PretendedTask)
    examiner: PretendedExaminer = field(default_factory=PretendedExaminer)
    device: PretendedDevice = field(default_factory=PretendedDevice)

    def excluded(self, asked: object, step: PretendedStep) -> None:
        return None

    def is_cold(self, step: PretendedStep) -> bool:
        return False

    def run(self, asked: object, step: PretendedStep, place: int, findings: Findings, source: object) -> None:
        self.examiner.killed.wait(step.seconds)
        if step.raises:
            raise TunesmithError("the task is at fault")
        self.done[place] = self.number
        found: Outcome | Passed = Passed(str(place), {}, {}, True)
        findings.note(place, WrongResult("mismatch", "out", str(place)) if step.wrong else found)


@dataclass
class PretendedPreparation:
    """Whose steps are all prepared."""

    released: list[int] = field(default_factory=list)

    def __enter__(self) -> PretendedPreparation:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def release(self, place: int) -> None:
        self.released.append(place)

    def cancel(self) -> None:
        pass


def run(steps: list[PretendedStep], runners: int, most_bytes: float = 10.0) -> tuple[Findings, dict[int, int], Any]:
    done: dict[int, int] = {}
    pretended: Any = [PretendedRunner(number, done) for number in range(runners)]
    steps_of: Any = steps
    asked: Any = None
    source: Any = PretendedPreparation()
    findings = Findings(Budget(60.0))
    run_steps(pretended, asked, steps_of, most_bytes, findings, lambda _: source)
    assert sorted(source.released) == sorted(done)
    return findings, done, pretended


@pytest.mark.parametrize("runners", [1, 3])
def test_all_steps_are_done_once_and_passed_in_order(runners: int) -> None:
    findings, done, _ = run([PretendedStep() for _ in range(40)], runners)
    assert sorted(done) == list(range(40)) and findings.wrong() is None
    assert [one.step for one in findings.passed()] == [str(place) for place in range(40)]


@pytest.mark.parametrize("runners", [1, 3])
def test_the_first_wrong_step_in_the_plan_decides(runners: int) -> None:
    # The first of the two is slower: with several processes the second is known before it.
    steps = [PretendedStep(), PretendedStep(wrong=True, seconds=0.3), PretendedStep(wrong=True)]
    findings, done, _ = run([*steps, *(PretendedStep() for _ in range(200))], runners)
    assert findings.wrong() == WrongResult("mismatch", "out", "1")
    assert [one.step for one in findings.passed()] == ["0"]
    assert len(done) < 200, "nothing behind it was wanted"


def test_large_workloads_are_one_process_alone() -> None:
    steps = [PretendedStep(nbytes=100 if place % 3 == 0 else 1, seconds=0.01) for place in range(30)]
    findings, done, _ = run(steps, 3)
    assert len(findings.passed()) == 30
    assert {done[place] for place in range(0, 30, 3)} == {0}
    assert len(set(done.values())) > 1


def test_an_error_ends_all_processes_at_once() -> None:
    steps = [PretendedStep(seconds=600.0), PretendedStep(raises=True), PretendedStep(seconds=600.0)]
    done: dict[int, int] = {}
    pretended: Any = [PretendedRunner(number, done) for number in range(3)]
    asked: Any = None
    with pytest.raises(TunesmithError, match="at fault"):
        source: Any = PretendedPreparation()
        run_steps(pretended, asked, list[Any](steps), 10.0, Findings(Budget(60.0)), lambda _: source)
    assert all(one.examiner.killed.is_set() for one in pretended)


@pytest.mark.slow
def test_several_processes_give_the_verdict_of_one(device: Any) -> None:
    template = TASK.sources("opencl").templates[0]
    question = (template, template.default_config, None)
    one, several = (
        judge(TASK, device.limits, device.index, [question], JudgeOptions(3, processes=count))[0] for count in (1, 3)
    )
    assert one.accepted and several.accepted
    assert [step.step for step in one.steps] == [step.step for step in several.steps]


class PretendedLock:
    held = False

    def acquire(self, report: object) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


def test_the_device_is_free_while_all_that_are_left_wait() -> None:
    lock: Any = PretendedLock()
    device = HeldDevice(lock, print)
    device.take()
    other = threading.Thread(target=lambda: (device.take(), device.leave()))  # one that has ended
    other.start()
    other.join()
    assert lock.held, "this thread uses it"
    device.leave()
    assert not lock.held
    device.take()
    assert lock.held


def test_the_task_s_own_workloads_use_up_no_time_for_made_up_ones() -> None:
    runner, budget = PretendedRunner(0, {}), Budget(0.5)
    source, nothing, runners = PretendedPreparation(), None, [runner]
    steps = [PretendedStep(seconds=0.6), PretendedStep(seconds=0.1, derived=True)]
    arguments: Any = (runners, nothing, steps, 10.0, Findings(budget), lambda _: source)
    run_steps(*arguments)
    assert not budget.is_spent
    arguments = (runners, nothing, [PretendedStep(seconds=0.6, derived=True)], 10.0, Findings(budget), lambda _: source)
    run_steps(*arguments)
    assert budget.is_spent


def test_what_is_larger_than_a_slow_size_is_left_out_of_later_steps_too() -> None:
    budget = Budget(60.0)
    steps = {size: made_up(size) for size in (8, 100, 200)}
    Findings(budget).note_slow(steps[100], "the reference takes longer than 2 s")
    later = Findings(budget)
    assert later.left_out(steps[8]) is None
    for size in (100, 200):
        found = later.left_out(steps[size])
        assert found is not None and found.reason == "time" and "at least as large as 100" in found.why


def made_up(size: int) -> Step:
    workload = TASK.workloads[0].model_copy(update={"sizes": {"n": size}, "name": str(size)})
    return Step(workload, Contents(), derived=True)


@dataclass
class RecordingExaminer:
    """Answers like a process in which everything is right, and keeps its calls with their deadlines."""

    starts: int = 1
    calls: list[tuple[str, float]] = field(default_factory=list)

    def call(self, method: str, seconds: float, *_: object) -> float | None:
        self.calls.append((method, seconds))
        return 0.001 if method == "time_baseline" else None


def test_the_time_in_which_checks_are_compiled_is_not_the_kernels() -> None:
    """Else a slow start is taken for a slow kernel, and all larger sizes are left out: a short deadline is only that of
    a launch, and not of the first one in a process, which loads the kernel."""
    limits, findings, examiner = Limits(run=20.0), Findings(Budget(20.0)), RecordingExaminer()
    stand_in: Any = examiner
    runner = StepRunner(TASK, resolve_target("h200"), limits, stand_in, stand_in, lambda _: None)
    baseline: Any = None
    short = limits.made_up_step(findings.budget)
    assert short < limits.run

    def short_calls(types: dict[str, str]) -> list[str]:
        examiner.calls.clear()
        workload = TASK.workloads[0].model_copy(update={"types": types})
        assert runner.try_plain(baseline, Step(workload, Contents(), derived=True), Path(), findings) is None
        assert examiner.calls[-1] == ("try_baseline", limits.run)
        return [method for method, seconds in examiner.calls if seconds <= short]

    for types in ({"T": "float32"}, {"T": "float16"}):
        assert short_calls(types) == []
        assert short_calls(types) == ["time_baseline"]
    examiner.starts += 1
    assert short_calls({"T": "float16"}) == []
