"""`tunesmith check` of a task, which needs no device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TASK = """
name = "twice"
entry = "twice"
reference = "reference.py:twice"
bytes = "8 * n"
arguments = [
    { name = "x", role = "in", dtype = "float32", shape = ["n"] },
    { name = "y", role = "out", dtype = "float32", shape = ["n"] },
    { name = "n", role = "scalar", dtype = "int32", value = "n" },
]

[backends.cuda]
baseline = { source_file = "twice.cu", launch = { grid = ["ceil_div(n, 256)"], block = [256] } }

[[workloads]]
sizes = { n = 100000000 }
"""
KERNEL = """extern "C" __global__ void twice(const float* x, float* y, int n) {
    __shared__ float unused[64];
    unused[threadIdx.x % 64] = 0;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + unused[threadIdx.x % 64];
}
"""

COUNTS = f"__device__ int count;\n{KERNEL.replace('2 *', 'count++ *')}"


def write(folder: Path, old: str = "", new: str = "", *, file: str = "task.toml") -> None:
    files = {"task.toml": TASK, "twice.cu": KERNEL, "reference.py": "def twice(x, n):\n    return {'y': 2 * x}\n"}
    files[file] = files[file].replace(old, new, 1)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_a_task_is_checked_without_a_device(here: Any, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    write(tmp_path)
    done = here("check", ".", "--target", "sm_90", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [clause.split(":")[0] for clause in found["right"]] == ["baseline", "baseline", "reference"]
    assert "(made smaller)" in found["right"][2]
    assert found["not_seen"] == [
        'baseline: the source declares 256 bytes of shared memory, the task says 0: write `static_shared_bytes = "256"`'
    ]


def test_a_reference_that_fails_on_a_made_up_size_is_called_on_the_task_s_own(here: Any, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    write(tmp_path, "2 * x", "(2 * x).reshape(-1, 40000).reshape(-1)", file="reference.py")
    (tmp_path / "task.toml").write_text(TASK.replace("n = 100000000", "n = 400000"))
    done = here("check", ".", "--target", "sm_90", cwd=tmp_path)
    assert done.returncode == 0 and "gives every output on 400000\n" in done.stdout, done.stderr
    assert "reshape" not in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        ("twice.cu", "2 * x[i]", "2 * z[i]", 'identifier "z" is undefined'),
        ("twice.cu", KERNEL, COUNTS, "by count the kernel can tell one launch from another"),
        ("task.toml", "block = [256]", "block = [2048]", "it cannot be launched on the workload 100000000"),
        ("reference.py", "2 * x", "x.nothing", "raises AttributeError"),
    ],
)
def test_what_is_wrong_is_one_sentence(here: Any, tmp_path: Path, file: str, old: str, new: str, wanted: str) -> None:
    pytest.importorskip("cuda.bindings")
    write(tmp_path, old, new, file=file)
    done = here("check", ".", "--target", "sm_90", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert wanted in line and line.endswith(".")
    if file == "task.toml":
        # The commands that need no device look at the same first.
        assert wanted in here("prompts", ".", "--target", "sm_90", cwd=tmp_path).stderr
