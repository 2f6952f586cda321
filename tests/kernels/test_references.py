"""References as people have them: a PyTorch function, or the original kernel itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import open_device
from tunesmith.kernels.check.reference import examine_reference
from tunesmith.kernels.launch.workload_data import WorkloadData, reference_results
from tunesmith.kernels.spec.reference_text import runnable_reference
from tunesmith.kernels.spec.task import ORIGINAL_IS_REFERENCE, Task
from tunesmith.kernels.spec.taskfile import read_task

SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add"


def scale_add(folder: Path, reference: str, keys: str) -> Task:
    """The test task with another reference."""
    shutil.copytree(SCALE_ADD, folder / "task")
    path = folder / "task" / "task.toml"
    path.write_text(path.read_text().replace('reference = "reference.py:scale_add"', keys))
    (folder / "task" / "reference.py").write_text(reference)
    return read_task(path)


class TestTorch:
    @pytest.mark.parametrize("returned", ['{"out": torch.add(a * x, y)}', "a * x + y", "(a * x + y,)"])
    def test_it_computes_in_float64_on_the_host(self, tmp_path: Path, returned: str) -> None:
        torch = pytest.importorskip("torch")
        text = (
            "import torch\n\ndef scale_add(x, y, a, n):\n"
            f"    assert x.dtype == torch.float64 and x.device.type == 'cpu'\n    return {returned}\n"
        )
        task = scale_add(tmp_path, text, 'reference = "reference.py:scale_add"\nframework = "torch"')
        x, y = np.arange(16384.0), np.ones(16384)
        results = reference_results(task, task.workloads[0], {"x": x, "y": y})
        assert isinstance(results["out"], np.ndarray) and np.array_equal(results["out"], 2 * x + y)
        examine_reference(task, task.workloads[0], 0, twice=True)
        assert torch.get_default_dtype() == torch.float32

    def test_the_file_that_a_run_leaves_takes_numpy_arrays(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        task = scale_add(
            tmp_path, "def scale_add(x, y, a, n):\n    return a * x + y\n", 'reference = "r.py:scale_add"'.replace(
                "r.py", "reference.py") + '\nframework = "torch"'
        )  # fmt: skip
        namespace: dict[str, Any] = {}
        exec(runnable_reference(task), namespace)
        assert namespace["scale_add"](x=np.ones(2), y=np.ones(2), a=3.0, n=2)["out"].tolist() == [4.0, 4.0]

    def test_another_framework_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TunesmithError, match="key framework: choose 'numpy' or 'torch'"):
            scale_add(
                tmp_path, "def scale_add(x, y, a, n): ...\n", 'reference = "reference.py:scale_add"\nframework = "jax"'
            )


class TestOriginal:
    def test_its_results_are_expected(self, tmp_path: Path, device: Any) -> None:
        task = scale_add(tmp_path, "", 'reference = "baseline"')
        opened = open_device(device.limits, device.index)
        data = WorkloadData(opened, task, task.workloads[1], seed=3, max_bytes=1 << 24)
        [x, y] = [opened.array(data.view(place, 0), "float32") for place in data.places[:2]]
        expected = data.expected_of(0)["out"]
        assert np.array_equal(expected, (np.float32(2) * x + y).astype(np.float64))

    def test_a_verdict_says_what_it_is_worth(self, tmp_path: Path) -> None:
        task = scale_add(tmp_path, "", 'reference = "baseline"')
        assert task.original_is_reference and task.caveats == (ORIGINAL_IS_REFERENCE,)
        assert "no proof" in ORIGINAL_IS_REFERENCE
        with pytest.raises(SystemExit, match="nothing on the host to compare with"):
            exec(runnable_reference(task) + "\nbaseline(x=1)\n", {})

    def test_a_framework_beside_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TunesmithError, match="so leave it out"):
            scale_add(tmp_path, "", 'reference = "baseline"\nframework = "torch"')


def test_the_original_as_reference_end_to_end(tmp_path: Path, device: Any, here: Any) -> None:
    scale_add(tmp_path, "", 'reference = "baseline"')
    done = here("check", tmp_path / "task", "--source", tmp_path / "task" / "baseline.cl", "--backend", "opencl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accepted: ") and ORIGINAL_IS_REFERENCE in done.stdout
