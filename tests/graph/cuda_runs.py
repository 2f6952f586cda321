"""Without a GPU: a finished run (machine code by NVRTC, invented times), and a driver that launches nothing."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tunesmith.graph.context import Context
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import Journal
from tunesmith.graph.results.best import export_best
from tunesmith.graph.results.exports import Package
from tunesmith.graph.roles.verdict import build_verdict
from tunesmith.graph.settings import make_settings
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

LIMITS = resolve_target("sm_90")
ORIGIN = events.Origin(command="tunesmith tune a|b", host="a test's host", python="3.11", commit="0123456789ab")


@contextmanager
def cuda_context(folder: Path, task: Task, limits: DeviceLimits = LIMITS) -> Iterator[Context]:
    """A run in `folder` that has begun with the task's first template."""
    template, settings = task.sources(limits.backend).templates[0], make_settings(task=task.name)
    device = DeviceInfo(backend=limits.backend, index=0, name="a test's GPU", limits=limits, driver="0")

    def no_pool() -> Any:
        raise AssertionError("an export needs no device")

    with Journal(folder, create=True) as journal:
        journal.append(events.RunStarted(settings=settings, task=task, device=device, origin=ORIGIN))
        journal.append(events.TemplateAdded(template=template))
        yield Context(task, device, (limits,), settings, journal, no_pool)


def compared(context: Context, workload: str, seconds: float, code: str = "", baseline: str = "") -> events.Compared:
    """An entry of the journal in which the first template's default configuration took so long, the baseline 2 us.
    code, baseline: digests of their machine code."""
    template = context.task.sources("cuda").templates[0]
    samples = compare([[seconds] * 3] * 5, [[2e-6] * 3] * 5)
    entry = events.FinalistResult(template=template.id, config=template.default_config, comparison=samples, code=code)
    made = events.Compared(workload=workload, entries=(entry,), baseline_code=baseline, compiler="NVRTC of a test")
    context.journal.append(made, "round-1")
    return made


def write_cuda_run(folder: Path, task_name: str, ratios: Mapping[str, float], most: int = 3) -> Package:
    """A run on `most` workloads of a task. ratios: time over baseline of the general configuration, by workload; others
    take 0.9 of the baseline's."""
    whole = load_task(task_name)
    on_gpu = whole.workloads_for("gpu", held_out=False)[:most]
    with cuda_context(folder, whole.model_copy(update={"workloads": on_gpu})) as context:
        found = [compared(context, one.name, ratios.get(one.name, 0.9) * 2e-6) for one in on_gpu]
        context.journal.append(events.RooflineMeasured(roofline=Roofline()))
        template = context.task.sources("cuda").templates[0]
        winner = events.Winner(template=template.id, config=template.default_config)
        verdict = build_verdict(context, found, [winner], {})
        context.journal.append(events.VerdictReached(verdict=verdict), "round-1")
        export_best(context, folder / "best", verdict)
    return Package(folder)


class StubDriver:
    """A CUDA driver's library in `folder`, which records its launches."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("there is no C compiler")
        self.folder, self.file = folder, folder / "libcuda.so.1"
        source = Path(__file__).with_name("stub_cuda.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", self.file, source], check=True)
        (folder / "libcuda.so").symlink_to(self.file.name)
        self.library = ctypes.CDLL(str(self.file))
        self.library.stub_last.restype = ctypes.POINTER(ctypes.c_longlong)

    @property
    def launches(self) -> int:
        return int(self.library.stub_launches())

    def last(self) -> tuple[int, ...]:
        """Geometry, dynamic shared memory, stream and function of the last launch."""
        return tuple(self.library.stub_last()[:9])

    def arguments(self, count: int) -> list[int]:
        """The first four bytes of each argument of the last launch."""
        return [self.library.stub_argument(at) for at in range(count)]
