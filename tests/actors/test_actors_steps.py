"""Steps spread over processes: what decides, who does what, and how they end."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tunesmith.actors.judging.judge import JudgeOptions, judge
from tunesmith.actors.judging.steps import Findings, HeldDevice, StepRunner, run_steps
from tunesmith.actors.workers import Deadlines
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import Passed, Skipped
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.outcome import Outcome, TimedOut, WrongResult
from tunesmith.kernels.spec.taskfile import load_task

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
    with mock.patch("tunesmith.actors.judging.steps.excluded", return_value=None):
        run_steps(runners, steps, 10.0, findings, source)
    released = [place for ((place,), _) in source.return_value.__enter__.return_value.release.call_args_list]
    assert sorted(released) == sorted(done)
    return findings, done


@pytest.mark.parametrize("runners", [1, 3])
def test_all_steps_are_done_once_and_passed_in_order(runners: int) -> None:
    findings, done = run([pretended_step() for _ in range(40)], runners)
    assert sorted(done) == list(range(40)) and findings.wrong() is None
    assert [one.step for one in findings.passed()] == [str(place) for place in range(40)]


@pytest.mark.parametrize("runners", [1, 3])
def test_the_first_wrong_step_in_the_plan_decides(runners: int) -> None:
    # The first of the two is slower: with several processes the second is known before it.
    steps = [pretended_step(), pretended_step(wrong=True, seconds=0.3), pretended_step(wrong=True)]
    findings, done = run([*steps, *(pretended_step() for _ in range(200))], runners)
    assert findings.wrong() == (WrongResult("mismatch", "out", "1"), steps[1])
    assert [one.step for one in findings.passed()] == ["0"]
    assert len(done) < 200, "nothing behind it was wanted"


def test_large_workloads_are_one_process_alone() -> None:
    steps = [pretended_step(nbytes=100 if place % 3 == 0 else 1, seconds=0.01) for place in range(30)]
    findings, done = run(steps, 3)
    assert len(findings.passed()) == 30
    assert {done[place] for place in range(0, 30, 3)} == {0}
    assert len(set(done.values())) > 1


def test_an_error_ends_all_processes_at_once() -> None:
    runners: list[Any] = []
    slow, wrong = pretended_step(seconds=600.0), pretended_step(seconds=-1.0)
    with pytest.raises(TunesmithError, match="at fault"):
        run([slow, wrong, slow], 3, 60.0, runners)
    assert all(one.killed.is_set() for one in runners)


@pytest.mark.slow
def test_several_processes_give_the_verdict_of_one(device: Any) -> None:
    template = TASK.sources("opencl").templates[0]
    question = (template, template.default_config, None)
    one, several = (
        judge(TASK, device.limits, device.index, [question], JudgeOptions(3, processes=count))[0] for count in (1, 3)
    )
    assert one.accepted and several.accepted
    assert [step.step for step in one.steps] == [step.step for step in several.steps]


def test_the_device_is_free_while_all_that_are_left_wait() -> None:
    lock: Any = mock.Mock()
    device = HeldDevice(lock, print)
    device.take()
    other = threading.Thread(target=lambda: (device.take(), device.leave()))  # one that has ended
    other.start()
    other.join()
    assert not lock.release.called, "this thread uses it"
    device.leave()
    assert lock.release.called


def test_the_task_s_own_workloads_use_up_no_time_for_made_up_ones() -> None:
    own = [pretended_step(seconds=0.3), pretended_step(seconds=0.05, derived=True)]
    assert not run(own, 1, 0.25)[0].is_spent
    assert run([pretended_step(seconds=0.3, derived=True)], 1, 0.25)[0].is_spent


@pytest.mark.parametrize(("before", "after", "counts"), [(True, False, False), (True, True, True)])
def test_a_first_step_uses_up_time_only_where_it_fails(
    monkeypatch: pytest.MonkeyPatch, before: bool, after: bool, counts: bool
) -> None:
    """Else every slow step, whose process is killed, would be a first one again, and nothing would end the verdict."""
    monkeypatch.setattr(PretendedRunner, "is_cold", lambda runner, _: after if runner.done else before)
    assert run([pretended_step(seconds=0.3, derived=True)], 1, 0.25)[0].is_spent == counts


def made_up(size: int) -> Step:
    workload = TASK.workloads[0].model_copy(update={"sizes": {"n": size}, "name": str(size)})
    return Step(workload, Contents(), derived=True)


def test_the_time_in_which_checks_are_compiled_is_not_the_kernels() -> None:
    """Else a slow start is taken for a slow kernel, and all larger sizes are left out: a short deadline is only that of
    a launch, and not of the first one in a process, which loads the kernel."""
    limits, findings, calls = Deadlines(run=20.0), Findings(KERNELS, 20.0), list[tuple[str, float]]()

    def call(method: str, seconds: float, *_: object) -> float | None:
        """Like a process in which everything is right."""
        calls.append((method, seconds))
        return 0.001 if method == "time_baseline" else None

    examiner: Any = SimpleNamespace(starts=1, call=call)
    runner = StepRunner(TASK, resolve_target("h200"), limits, examiner, examiner, lambda _: None, Path())
    short = limits.made_up_step(findings.seconds)
    assert short < limits.run

    def short_calls(types: dict[str, str]) -> list[str]:
        calls.clear()
        workload = TASK.workloads[0].model_copy(update={"types": types})
        assert runner.try_plain(Step(workload, Contents(), derived=True), findings) is None
        assert calls[-1] == ("try_baseline", limits.run)
        return [method for method, seconds in calls if seconds <= short]

    for types in ({"T": "float32"}, {"T": "float16"}):
        assert short_calls(types) == []
        assert short_calls(types) == ["time_baseline"]
    examiner.starts += 1
    assert short_calls({"T": "float16"}) == []


def test_a_plain_kernel_that_overruns_in_a_first_step_rules_out_larger_sizes() -> None:
    findings = Findings(KERNELS, 20.0)

    def call(method: str, seconds: float, *_: object) -> TimedOut | None:
        return TimedOut("run", seconds) if method == "try_baseline" else None

    examiner: Any = SimpleNamespace(starts=1, call=call)
    runner = StepRunner(
        TASK, resolve_target("h200"), Deadlines(), examiner, examiner, lambda _: None, Path(), baseline_ends=True
    )
    assert runner.try_plain(made_up(100), findings) is not None
    assert runner.is_cold(made_up(100)) and findings.left_out(made_up(8)) is None
    for size in (100, 200):
        found = findings.left_out(made_up(size))
        assert found is not None and found.reason == "time" and "at least as large as 100" in found.why


def test_each_edge_of_memory_occurs_on_made_up_sizes_and_all_on_the_task_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def call(method: str, _: float, *arguments: Any) -> Any:
        if method == "try_edges":
            tried.append(arguments[-1])
        return True if method == "try_edges" else Passed("", {}, {}, True)

    examiner: Any = SimpleNamespace(starts=1, call=call)
    device: Any = SimpleNamespace(take=lambda: 0.0)
    runner = StepRunner(TASK, resolve_target("h200"), Deadlines(), examiner, device, lambda _: None)
    for left_out in ("try_plain", "_cover"):
        monkeypatch.setattr(StepRunner, left_out, lambda *_: None)
    for place in range(40):
        assert isinstance(runner.run(made_up(8), place, Findings(KERNELS, 20.0), mock.MagicMock()), Passed)
    assert len(tried) == 40 and set(tried) == {"end", "start", "read-only"}
    tried.clear()
    runner.run(Step(TASK.workloads[0], Contents()), 0, Findings(KERNELS, 20.0), mock.MagicMock())
    assert tried == ["end", "start", "read-only"]


@pytest.mark.parametrize(("fails_on", "left_out"), [("negative", True), ("zeros", False)])
def test_a_made_up_scalar_that_the_plain_kernel_is_not_written_for_rejects_nothing(
    fails_on: str, left_out: bool
) -> None:
    """An attention with a negative scale: on which contents a kernel overflows is chance."""
    wrong = WrongResult("mismatch", "out", "it is inf")

    def call(method: str, _: float, *arguments: Any) -> Any:
        step = arguments[-1]
        if method == "try_baseline" and step.contents.kind == fails_on:
            return Skipped(step.name, "the plain kernel is not right there")
        return {"verify": wrong, "time_baseline": 0.001}.get(method)

    examiner: Any = SimpleNamespace(starts=1, call=call)
    device: Any = SimpleNamespace(take=lambda: 0.0)
    runner = StepRunner(TASK, resolve_target("h200"), Deadlines(), examiner, device, lambda _: None)
    step = made_up(8)
    scaled = replace(step, contents=replace(step.contents, scalars=(("scale", -1.0),)))
    found = runner.run(scaled, 0, Findings(KERNELS, 20.0), mock.MagicMock())
    assert isinstance(found, Skipped) if left_out else found == wrong
    assert runner.run(step, 0, Findings(KERNELS, 20.0), mock.MagicMock()) == wrong
