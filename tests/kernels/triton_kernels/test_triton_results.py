"""Drafted kernels by Triton's interpreter on the CPU: what a template computes at several points of its space."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_triton_draft import ADD, PRODUCT, ROWS, SHARED, drafted

from tunesmith.kernels.spec.task import Task, geometry
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Config

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tunesmith[triton]'")
pytestmark = pytest.mark.xdist_group("triton")
INTERPRETED = Path(__file__).with_name("interpreted.py")


def results(folder: Path, task: Task, sizes: dict[str, int], config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays before and after a launch of the task's template."""
    template, draw, before = task.sources("triton").templates[0], np.random.default_rng(3), dict[str, Any]()
    workload = task.workloads[0].model_copy(update={"sizes": sizes})
    config = {**template.default_config, **config}
    for one in task.arguments:
        if one.role == "scalar":
            before[one.name] = np.array(task.scalar_of(one, workload))
        else:
            shape = task.shape_of(one, workload)
            before[one.name] = draw.standard_normal(shape).astype(task.dtype_of(one, workload))
    constants = {name: np.array(value) for name, value in config.items() if name not in TRITON_OPTIONS}
    (folder / "kernel.py").write_text(template.source)
    np.savez(folder / "before.npz", **before, **constants)
    grid = ",".join(map(str, geometry(template, config, workload).grid))
    files = [str(folder / name) for name in ("kernel.py", "before.npz", "after.npz")]
    command = [sys.executable, str(INTERPRETED), files[0], template.entry, files[1], grid, files[2]]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return before, dict(np.load(folder / "after.npz"))


@pytest.mark.parametrize("config", [{"BLOCK": 512}, {"BLOCK": 2048, "num_warps": 8}])
def test_elements(tmp_path: Path, config: Config) -> None:
    before, after = results(tmp_path, drafted(tmp_path, ADD), {"n": 1500}, config)
    np.testing.assert_allclose(after["out_ptr"], before["x_ptr"] + before["y_ptr"], rtol=1e-6)


def test_rows_whose_block_a_heuristic_gives(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    before, after = results(tmp_path, drafted(tmp_path, ROWS), {"count": 3, "columns": 100}, {})
    rows = np.minimum(before["x"], 4.0)
    np.testing.assert_allclose(after["mean"], rows.mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["y"], rows - rows.mean(axis=1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [{"BM": 32, "BN": 64, "BK": 16, "GROUP": 4}, {"BM": 64, "BN": 128, "BK": 64}])
def test_products(tmp_path: Path, config: Config) -> None:
    before, after = results(tmp_path, drafted(tmp_path, PRODUCT), {"M": 70, "N": 90, "K": 50}, config)
    expected = before["a"].astype(float) @ before["b"].astype(float)
    np.testing.assert_allclose(after["c"].astype(float), expected, rtol=2e-3, atol=2e-2)
