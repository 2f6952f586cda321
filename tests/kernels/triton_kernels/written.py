"""A task with a Triton kernel: `out = x + alpha * y`, whose step between elements is 1."""

from pathlib import Path

from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import read_task

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def run(x, y, out, n, step, alpha, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    left = tl.load(x + at * step, mask=inside).to(tl.float32)
    right = tl.load(y + at * step, mask=inside).to(tl.float32)
    tl.store(out + at * step, left + alpha * right, mask=inside)
"""
_TASK = """\
name = "run"
entry = "run"
reference = "reference.py:run"
bytes = "3 * n * sizeof(T)"
types = { T = ["float16", "float32"] }
arguments = [
    { name = "x", role = "in", dtype = "T", shape = ["n"] },
    { name = "y", role = "in", dtype = "T", shape = ["n"] },
    { name = "out", role = "out", dtype = "T", shape = ["n"] },
    { name = "n", role = "scalar", dtype = "int32", value = "n" },
    { name = "step", role = "scalar", dtype = "int32", value = "1" },
    { name = "alpha", role = "scalar", dtype = "float32", value = "0.75" },
]
[backends.triton]
templates = ["run.toml"]
baseline = { source_file = "baseline.py", launch = { grid = "ceil_div(n, 256)", block = "128" } }
[[workloads]]
sizes = { n = 65536 }
types = { T = "float16" }
[[workloads]]
sizes = { n = 50001 }
types = { T = "float32" }
"""
_TEMPLATE = """\
source_file = "run.py"
parameters = [
    { name = "BLOCK", values = [128, 256, 1024], default = 256 },
    { name = "num_warps", values = [1, 4], default = 4 },
]
launch = { grid = "ceil_div(n, BLOCK)", block = "32 * num_warps" }
"""
_REFERENCE = "def run(x, y, n, step, alpha):\n    return {'out': x + alpha * y}\n"


def triton_task(
    folder: Path, kernel: str = KERNEL, fixed: str = '"BLOCK": 256, "num_warps": 4', more: str = ""
) -> Task:
    """more: lines at the end of task.toml."""
    files = {"task.toml": _TASK + more, "run.toml": _TEMPLATE, "reference.py": _REFERENCE, "run.py": kernel}
    for name, text in {**files, "baseline.py": f"{kernel}\n\nFIXED = {{{fixed}}}\n"}.items():
        (folder / name).write_text(text)
    return read_task(folder / "task.toml")
