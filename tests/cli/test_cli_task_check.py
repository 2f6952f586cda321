"""`tunesmith check` of a task, which needs no device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compiling import write_task
from scale_task import edit

KERNEL = """extern "C" __global__ void run(const float* x, float* y, int n) {
    __shared__ float unused[64];
    unused[threadIdx.x % 64] = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + unused[threadIdx.x % 64];
}
"""

COUNTS = f"__device__ int count;\n{KERNEL.replace('2 *', 'count++ *')}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("cuda.bindings")
    launch, reference = 'grid = ["ceil_div(n, 256)"], block = [256]', "return {'y': 2 * inputs['x']}"
    task = {"source": KERNEL, "reference": reference, "backends": ("cuda",), "launch": launch}
    write_task(tmp_path, "x in float32 n; y out float32 n; n scalar int32 n", "n = 100000000", **task)
    return tmp_path


def test_a_task_is_checked_without_a_device(here: Any, folder: Path) -> None:
    done = here("check", ".", "--target", "sm_90", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [clause.split(":")[0] for clause in found["right"]] == ["baseline", "baseline", "reference"]
    assert "(made smaller)" in found["right"][2]
    assert found["not_seen"] == [
        'baseline: the source declares 256 bytes of shared memory, the task says 0: write `static_shared_bytes = "256"`'
    ]


def test_a_reference_that_fails_on_a_made_up_size_is_called_on_the_task_s_own(here: Any, folder: Path) -> None:
    edit(folder, "reference.py", "2 * inputs['x']", "(2 * inputs['x']).reshape(-1, 40000).reshape(-1)")
    edit(folder, "task.toml", "n = 100000000", "n = 400000")
    done = here("check", ".", "--target", "sm_90", cwd=folder)
    assert done.returncode == 0 and "gives every output on 400000\n" in done.stdout, done.stderr
    assert "reshape" not in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        ("run.c", "2 * x[i]", "2 * z[i]", 'identifier "z" is undefined'),
        ("run.c", KERNEL, COUNTS, "by count the kernel can tell one launch from another"),
        ("task.toml", "block = [256]", "block = [2048]", "it cannot be launched on the workload 100000000"),
        ("reference.py", "inputs['x']", "inputs['x'].nothing", "raises AttributeError"),
    ],
)
def test_what_is_wrong_is_one_sentence(here: Any, folder: Path, file: str, old: str, new: str, wanted: str) -> None:
    edit(folder, file, old, new)
    done = here("check", ".", "--target", "sm_90", cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert wanted in line and line.endswith(".")
    if file == "task.toml":
        # The commands that need no device look at the same first.
        assert wanted in here("prompts", ".", "--target", "sm_90", cwd=folder).stderr
