"""The library's opponents that are PyTorch functions compute what their tasks do, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith.kernels.backends import open_device
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.measure.opponents import Prepared, prepare_opponent
from tunesmith.kernels.spec.task import FunctionOpponent, Task, Workload
from tunesmith.kernels.spec.taskfile import library_tasks, load_task

torch = pytest.importorskip("torch", reason="the opponents are functions of PyTorch")
SIZES = {"m": 5, "n": 3, "k": 2, "h": 4, "d": 40, "pairs": 8}
OPPONENTS = [(name, one) for name in library_tasks() for one in load_task(name).opponents]


def prepared(task: Task, opponent: FunctionOpponent, dtype: str, device: Any) -> Any:
    sizes = {name: SIZES[name] for name in task.size_names}
    workload = Workload(name="small", sizes=sizes, types={"T": dtype})
    opened = open_device(device.limits, device.index)
    data = WorkloadData(opened, task, workload, seed=0, max_bytes=1 << 28)
    return prepare_opponent(opponent, data, opened.sample_seconds)


def test_every_task_has_one() -> None:
    assert {name for name, _ in OPPONENTS} == set(library_tasks())
    # Importing PyTorch takes seconds, so that a plain tuning does without.
    assert all(one.on_request for _, one in OPPONENTS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("name", "opponent"), [pytest.param(*one, id=f"{one[0]}-{one[1].name}") for one in OPPONENTS])
def test_they_compute_what_the_task_does(name: str, opponent: FunctionOpponent, dtype: str, device: Any) -> None:
    """What is compiled runs as it is written here."""
    with torch.compiler.set_stance("force_eager"):
        found = prepared(load_task(name), opponent, dtype, device)
    assert isinstance(found, Prepared), found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "opponent"), [pytest.param(*one, id=one[0]) for one in OPPONENTS if one[1].label == "compiled"]
)
def test_compiled_ones_do_so_compiled(name: str, opponent: FunctionOpponent, device: Any) -> None:
    found = prepared(load_task(name), opponent, "float16", device)
    assert isinstance(found, Prepared), found
