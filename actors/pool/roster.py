"""Who works: the lanes and compile workers of a pool, how they start, and when one is given up.

A worker that is ready has said so: a compile worker with its compiler's version, a lane with its device's name and with
the right answer of a small kernel. Where a device is not what it should be, its lane is taken out with a sentence and
the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunesmith.actors.cluster.handle import LOST, Call, Deadlines, WorkerProcess, cause_of, result_of
from tunesmith.actors.cluster.shares import Share
from tunesmith.actors.lane.lane_host import LaneHost
from tunesmith.actors.lane.queued import queued
from tunesmith.actors.process.workers import CompilerReady, CompileWorker, LaneReady
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.outcome import Crashed, TimedOut, describe
from tunesmith.kernels.spec.task import Task

MAX_IDLE_DEATHS = 3
MAX_TROUBLES = 3
"""Health checks in a row that a device may fail."""
COMPILER_CPUS = 0.25
"""What a compile worker takes of the cluster's processors. Ray's numbers are for placing: with a whole one each, a
tuning would leave no room for the compile workers of another, which would wait for its end. The processors themselves
are shared by the operating system."""
LOOK_SECONDS = 5.0
NO_DEVICE_SECONDS = 60.0
"""How long a cluster may be without any GPU before waiting for one is given up."""


class PoolError(TunesmithError):
    """The pool can no longer work: workers die without doing anything, or no device is left."""


class Roster:
    """The workers of one pool; `say` is told, in a sentence, what a user should know. lane_class, compile_class: what
    runs in the processes."""

    def __init__(
        self,
        task: Task,
        limits: DeviceLimits,
        index: int,
        *,
        lanes: int,
        compilers: int,
        seed: int,
        workloads: Sequence[str],
        deadlines: Deadlines,
        say: Callable[[str], None],
        shared: bool = False,
        lane_class: type = LaneHost,
        compile_class: type = CompileWorker,
    ) -> None:
        self.limits, self.deadlines, self.say = limits, deadlines, say
        self._workloads, self._seed = tuple(workloads), seed
        self._gpu = limits.backend == "cuda"
        exclusive = limits.kind == "cpu"
        lane_actor: Any = ray.remote(num_gpus=1 if self._gpu else 0, num_cpus=0 if self._gpu else 1, max_restarts=0)(
            queued(lane_class)
        )
        if not self._gpu:
            # An OpenCL device's number is this machine's.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            lane_actor = lane_actor.options(scheduling_strategy=here)
        compile_actor: Any = ray.remote(
            num_cpus=0 if exclusive else COMPILER_CPUS, max_restarts=0, scheduling_strategy="SPREAD"
        )(compile_class)
        # Arguments that every worker needs are stored once in the cluster, not sent with each.
        shared_task = ray.put(task)
        self.lanes = [
            WorkerProcess(
                lambda drawn: lane_actor.remote(shared_task, limits, index, drawn),
                seed,
                f"lane {number}",
                deadlines.start,
            )
            for number in range(lanes)
        ]
        self.compilers = [
            WorkerProcess(lambda _: compile_actor.remote(limits, index), seed, f"compiler {number}", deadlines.start)
            for number in range(compilers)
        ]
        self._share = Share(lanes) if shared and self._gpu else None
        self.health: Artifact | None = None
        self._known_health = False
        self._troubles: dict[str, int] = {}
        self._noted: set[str] = set()
        self._without_device: float | None = None
        self._next_look = 0.0

    @property
    def workers(self) -> list[WorkerProcess]:
        return [*self.compilers, *self.lanes]

    def begin(self) -> None:
        """Starts all processes."""
        for worker in self.workers:
            worker.renew()
        for worker in self.compilers:
            self.started(worker)

    def take_turns(self) -> None:
        """Gives lanes back that other tunings have a right to, as soon as they have nothing to do, and takes them again
        when it is this tuning's turn."""
        if self._share is None:
            return
        self._share.renew()
        active = [lane for lane in self.lanes if not lane.resting]
        resting = [lane for lane in self.lanes if lane.resting]
        # Those that still wait for a GPU are given up first.
        active.sort(key=lambda lane: (lane.ready, len(lane.calls)))
        for lane in active[: max(0, len(active) - self._share.allowed)]:
            lane.resting = True
        for lane in resting[: max(0, self._share.allowed - len(active))]:
            lane.resting = False
            if lane.actor is None:
                lane.renew()
        for lane in self.lanes:
            if lane.resting and lane.actor is not None and (not lane.ready or not lane.calls):
                lane.end()
                lane.calls.clear()
                lane.ready = False

    def end(self) -> None:
        """Ends all processes."""
        if self._share is not None:
            self._share.end()
        for worker in self.workers:
            worker.end()

    def started(self, worker: WorkerProcess) -> bool:
        """Whether `worker` can be given work; if it has not been asked to make itself ready, it is now."""
        if worker.ready or worker.calls or worker.resting:
            return worker.ready
        if worker in self.compilers:
            worker.begin(Call(worker.actor.start.remote(), 0.0))
        elif self._known_health:
            # What is for other contents is for a few workloads, which whoever asked for it names.
            workloads = self._workloads if worker.seed == self._seed else ()
            seconds = self.deadlines.prepare
            reference = worker.actor.start.remote(self.health, workloads, worker.seed, seconds)
            worker.begin(Call(reference, seconds))
        return False

    def welcome(self, worker: WorkerProcess, answer: Any) -> None:
        """`worker` has answered that it is ready, or that its device is not what it should be."""
        if isinstance(answer, CompilerReady):
            worker.version, worker.ready = answer.version, True
            self.health, self._known_health = answer.health, True
            return
        if isinstance(answer, Crashed | TimedOut):
            self.died_idle(worker, answer)
            return
        assert isinstance(answer, LaneReady)
        worker.name = f"{answer.name} ({answer.uuid}) on {answer.machine}"
        if self._gpu and answer.name != self.limits.name:
            self.retire(worker, f"it is no {self.limits.name}, which this tuning is for")
            return
        if answer.trouble:
            self._troubles[worker.name] = self._troubles.get(worker.name, 0) + 1
            if self._troubles[worker.name] >= MAX_TROUBLES:
                self.retire(worker, f"it failed {MAX_TROUBLES} health checks: {answer.trouble}")
            else:
                worker.renew()
            return
        if answer.note and worker.name not in self._noted:
            self._noted.add(worker.name)
            self.say(f"{worker.name} is used, but {answer.note}.")
        self._troubles.pop(worker.name, None)
        worker.ready = True

    def retire(self, worker: WorkerProcess, why: str) -> None:
        """Takes a lane out. Raises `PoolError` when it was the last."""
        worker.end()
        worker.calls.clear()
        group = self.lanes if worker in self.lanes else self.compilers
        group.remove(worker)
        sentence = f"{worker.name[0].upper()}{worker.name[1:]} is left out: {why}."
        if not group:
            raise PoolError(f"{sentence} No other is left.")
        self.say(sentence)

    def died_idle(self, worker: WorkerProcess, outcome: Crashed | TimedOut) -> None:
        """A process ended before it did anything. Raises `PoolError` when that goes on and nobody else can work."""
        worker.deaths += 1
        if worker.deaths < MAX_IDLE_DEATHS:
            return
        if self.others_ready(worker):
            self.retire(worker, f"its process ended {worker.deaths} times before doing any work: {describe(outcome)}")
            return
        raise PoolError(f"A worker process ended {worker.deaths} times before doing any work: {describe(outcome)}.")

    def others_ready(self, worker: WorkerProcess) -> bool:
        group = self.lanes if worker in self.lanes else self.compilers
        return any(other.ready for other in group if other is not worker)

    def make_ready(self, worker: WorkerProcess) -> None:
        """Waits until `worker`, or what is left of its group, is ready. Raises `PoolError`."""
        group = self.lanes if worker in self.lanes else self.compilers
        if group is self.lanes and not self._known_health:
            self.make_ready(self.compilers[0])
        while worker in group and not worker.ready:
            if worker.resting:
                # What needs this one lane takes it, whoever's turn it is.
                worker.resting = False
                worker.renew()
            if not worker.calls:
                self.started(worker)
            try:
                left = max(0.0, worker.deadline - time.monotonic())
                answer = result_of(worker.calls[0].reference, left)
            except ray.exceptions.GetTimeoutError:
                worker.renew()
                self.died_idle(worker, TimedOut("start", self.deadlines.start))
                continue
            except LOST as error:
                worker.renew()
                self.died_idle(worker, Crashed("start", cause_of(error)))
                continue
            worker.end_call()
            self.welcome(worker, answer)

    def require_device(self) -> None:
        """Raises `PoolError` when lanes wait for GPUs and the cluster has had none for a while."""
        if not self._gpu or any(lane.ready for lane in self.lanes):
            self._without_device = None
            return
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        if resources.get("GPU", 0.0) >= 1:
            self._without_device = None
        elif self._without_device is None:
            self._without_device = now
        elif now - self._without_device > NO_DEVICE_SECONDS:
            raise PoolError(
                "The Ray cluster has no GPU any more: bring the node back and go on with `tunesmith resume`."
            )
