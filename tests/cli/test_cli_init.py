"""`tunesmith init` and what comes after it: the space, and `tunesmith check` of a task, which needs no device;
definitions of FlashInfer-Bench as drafts of tasks."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from compiling import edit, write_task
from typer.testing import CliRunner

from tunesmith.cli.main import app
from tunesmith.kernels.backends import CompilerUnavailable
from tunesmith.kernels.launch.reference import expected_results
from tunesmith.kernels.spec.foreign import MAX_TUNED, read_definition
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.taskfile import MARK, read_task

SOURCE = """__global__ void saxpy(float a, const float* in, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * in[i] + y[i];
}
"""


def fill_in(folder: Path) -> None:
    for file in folder.glob("[tr]*"):
        file.write_text("\n".join(line.split(f"  {MARK}")[0] for line in file.read_text().splitlines()))


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
    (tmp_path / "odd.cu").write_text(SOURCE.replace("int i", "tex2D<float>(0, 1, 2);\n    int i"))
    assert "it calls tex2D, which the rules do not know." in here("init", "odd.cu", "--out", "odd", cwd=tmp_path).stdout
    fill_in(tmp_path / "odd")
    shown = here("space", "odd", "--target", "h200", cwd=tmp_path)
    assert shown.returncode == 2
    assert (
        "has no cuda template, and the rules make none (line 2: it calls tex2D, which the rules do not know)"
        in shown.stderr
    )
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


def test_a_task_is_checked_without_a_device(here: Any, folder: Path, monkeypatch: Any) -> None:
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
    # Without the compiler it is not said to be right.
    refused = Mock(side_effect=CompilerUnavailable("CUDA C++ cannot be compiled here."))
    monkeypatch.setattr("tunesmith.actors.judging.task_check.compile_all", refused)
    done = here("check", ".", "--target", "sm_90", cwd=folder)
    told = "could not be checked as a whole: baseline: it was not compiled, as CUDA C++ cannot be compiled here."
    assert done.returncode == 2 and told in done.stderr and "its signature is" in done.stdout


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


DEFINITION = json.loads((Path(__file__).resolve().parents[1] / "data" / "flashinfer" / "scaled.json").read_text())


def workload(rows: int, groups: int, scale: float = 0.5) -> dict[str, Any]:
    given = {"x": {"type": "random"}, "starts": {"type": "random"}, "scale": {"type": "scalar", "value": scale}}
    return {"workload": {"uuid": "u", "axes": {"rows": rows, "groups": groups, "ends": groups + 1}, "inputs": given}}


def drafted(folder: Path, workloads: list[dict[str, Any]], **changed: Any) -> tuple[Path, str]:
    """The folder of the task, drafted in a data set, and what was said."""
    for name in ("definitions", "workloads"):
        (folder / name / "other").mkdir(parents=True)
    path = folder / "definitions" / "other" / "scaled.json"
    path.write_text(json.dumps(DEFINITION | changed))
    if workloads:
        lines = "\n".join(map(json.dumps, workloads))
        (folder / "workloads" / "other" / "scaled-rows.v1.jsonl").write_text(lines)
    done = CliRunner().invoke(app, ["init", str(path), "--out", str(folder / "task")])
    assert done.exit_code == 0, done.output
    return folder / "task", done.output


def filled(task: Path) -> Task:
    fill_in(task)
    return read_task(task / "task.toml")


def test_a_definition_and_its_workloads_are_a_task_but_for_its_kernel(tmp_path: Path) -> None:
    shapes = [(rows, groups) for rows in (8, 64, 512, 4096, 0) for groups in (1, 3)]
    folder, said = drafted(tmp_path, [workload(*one) for one in shapes])
    assert "what starts holds" in said and "the launch of the kernel" in said and "value of scale" not in said
    task = filled(folder)
    assert task.name == task.entry == "scaled_rows_v1" and task.requires == (
        "rows >= groups",
        "(groups + 1) <= rows + 64",
    )
    assert "# It also demands: ends == starts[-1].item()" in (folder / "task.toml").read_text()
    assert len(task.workloads) == 8 and sum(not one.held_out for one in task.workloads) == MAX_TUNED
    arguments = {one.name: one for one in task.arguments}
    assert list(arguments) == ["x", "starts", "scale", "y", "rows", "ends", "groups"]
    assert task.shape_of(arguments["starts"], task.workload("64x3")) == (4,)
    assert task.scalar_of(arguments["ends"], task.workload("64x3")) == 4 and arguments["scale"].value == "0.5"
    taken = "const __half* x, const int* starts, float scale, __nv_bfloat16* y, int rows, int ends, int groups"
    assert f"scaled_rows_v1({taken})" in (folder / "baseline.cu").read_text()
    assert "the value of scale" in drafted(tmp_path / "two", [workload(8, 1, 0.5), workload(8, 3, 2.0)])[1]
    assert "the sizes you use" in drafted(tmp_path / "none", [])[1]


def test_the_definition_s_own_reference_is_the_task_s(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    task = filled(drafted(tmp_path, [workload(8, 3)])[0])
    found = expected_results(np, task, task.workloads[0], {"x": np.ones((8, 64)), "starts": np.arange(4.0)})
    assert set(np.asarray(found["y"]).ravel()) == {4.5}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"no name": {"type": "var"}}}, "is not a definition of FlashInfer-Bench: key axes"),
        ({"inputs": {"x": {"shape": ["rows"], "dtype": "float4_e2m1"}}}, "the dtype float4_e2m1 is not known here"),
    ],
)
def test_mistakes_in_a_definition_are_one_sentence(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(DEFINITION | changed))
    with pytest.raises(TaskError, match=message):
        read_definition(path)
    path.write_text(json.dumps({"KernelSpecification": {}}))
    assert read_definition(path) is None
