"""`tunesmith init` and what comes after it: the space, and `tunesmith check` of a task, which needs no device."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from compiling import edit, write_task

SOURCE = """__global__ void saxpy(float a, const float* in, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * in[i] + y[i];
}
"""


def fill_in(folder: Path) -> None:
    for file in folder.glob("[tr]*"):
        file.write_text("\n".join(line.split("  # FILL:")[0] for line in file.read_text().splitlines()))


def test_from_a_source_and_its_headers_to_a_space_or_the_reasons_why_not(here: Any, tmp_path: Path) -> None:
    (tmp_path / "saxpy.cu").write_text(SOURCE)
    drafted = here("init", "saxpy.cu", cwd=tmp_path)
    assert drafted.returncode == 0, drafted.stderr
    assert "saxpy: a draft of the task saxpy, with 4 line(s) to fill in:" in drafted.stdout
    unfinished = here("tune", "saxpy", cwd=tmp_path)
    assert unfinished.returncode == 2
    assert "saxpy/task.toml, line 12, is still to be filled in: the value of a;" in unfinished.stderr
    fill_in(tmp_path / "saxpy")
    (tmp_path / "saxpy" / "reference.py").write_text("def saxpy(a, in_, y, n):\n    return {'y': a * in_ + y}\n")
    shown = here("space", "saxpy", "--target", "h200", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "template by-rules" in shown.stdout and "ITEMS" in shown.stdout
    (tmp_path / "odd.cu").write_text(SOURCE.replace("int i", 'asm volatile("");\n    int i'))
    assert "it has inline assembly." in here("init", "odd.cu", "--out", "odd", cwd=tmp_path).stdout
    fill_in(tmp_path / "odd")
    shown = here("space", "odd", "--target", "h200", cwd=tmp_path)
    assert shown.returncode == 2
    assert "has no cuda template, and the rules make none (line 2: it has inline assembly)" in shown.stderr
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "scale.h").write_text(
        "#pragma once\n__device__ float scaled(float x) { return SCALE * x; }\n"
    )
    (tmp_path / "k.cu").write_text(
        '#include "scale.h"\n__global__ void k(const float* x, float* y, int n) {\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = scaled(x[i]);\n}\n"
    )
    missing = here("init", "k.cu", cwd=tmp_path)
    assert missing.returncode == 2 and "undeclared names: scaled (k.cu:4)" in missing.stderr and "-I" in missing.stderr
    assert "scale.h" in missing.stderr
    drafted = here("init", "k.cu", "-I", "headers", "-D", "SCALE=3.0f", cwd=tmp_path)
    assert drafted.returncode == 0, drafted.stderr
    source = (tmp_path / "k" / "baseline.cu").read_text()
    assert "#define SCALE 3.0f\n" in source and "float scaled(float x)" in source and "include" not in source
    wrong = here("init", "k.cu", "-I", "headers", "-D", "3=x", "--out", "other", cwd=tmp_path)
    assert wrong.returncode == 2 and "-D: '3=x' is not of the form" in wrong.stderr


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_nothing(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    (tmp_path / "saxpy.cu").write_text(SOURCE)
    if there:
        (tmp_path / "saxpy").mkdir()
    write, written = Path.write_text, list[Path]()

    def until_full(path: Path, *given: Any, **options: Any) -> int:
        written.append(path)
        write(path, *given, **options)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", until_full)
        refused = here("init", "saxpy.cu", cwd=tmp_path)
    assert refused.returncode == 2 and "--out: saxpy cannot be written (No space left on device)" in refused.stderr
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == (["saxpy", "saxpy.cu"] if there else ["saxpy.cu"])


def test_a_file_for_nvcc_becomes_a_task_that_is_right(here: Any, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    head = "\ufeff#include <cstdint>\n#include <vector>\ntemplate <typename T>\n"
    kernel = SOURCE.replace("int n", "int n, int64_t b = 3").replace("float*", "T*").replace("y[i];", "b;")
    tail = "template __global__ void saxpy<float>(float, const float*, float*, int, int64_t);\nint main() {}\n"
    (tmp_path / "saxpy.cu").write_text(head + kernel + tail, encoding="utf-8")
    assert here("init", "saxpy.cu", cwd=tmp_path).returncode == 0
    source = (tmp_path / "saxpy" / "baseline.cu").read_text()
    assert "main" not in source and "<vector>" not in source and "#include <cuda/std/cstdint>" in source
    fill_in(tmp_path / "saxpy")
    (tmp_path / "saxpy" / "reference.py").write_text("def saxpy(a, in_, n, b):\n    return {'y': a * in_ + b}\n")
    checked = here("check", "saxpy", "--target", "sm_90", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "baseline: its signature is that of the arguments" in checked.stdout


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
