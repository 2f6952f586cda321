"""Fixtures of several tests: a task on the OpenCL CPU with its template compiled, and NVRTC."""

from pathlib import Path
from typing import Any

import pytest
from compiling import compiled_candidate, nvrtc_for

from tunesmith.kernels.backends import open_device
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.measure.bench import Bench
from tunesmith.kernels.spec.taskfile import load_task

SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add" / "task.toml"


@pytest.fixture(scope="module")
def bench(device: Any) -> Bench:
    return Bench(load_task(str(SCALE_ADD)), device.limits, device.index)


@pytest.fixture(scope="module")
def opened(device: Any) -> Any:
    return open_device(device.limits, device.index)


@pytest.fixture(scope="session")
def nvrtc() -> Any:
    pytest.importorskip("cuda.bindings")
    return nvrtc_for("sm_90")


@pytest.fixture(scope="session")
def candidate(device: Any) -> Candidate:
    task = load_task(str(SCALE_ADD))
    return compiled_candidate(task, device, task.sources("opencl").templates[0])
