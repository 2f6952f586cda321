"""A task with a Triton kernel: `out = x + alpha * y`, whose step between elements is 1."""

from pathlib import Path

from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import read_task

FILES = Path(__file__).with_name("files")
KERNEL = (FILES / "run.py").read_text()


def triton_task(
    folder: Path, kernel: str = KERNEL, fixed: str = '"BLOCK": 256, "num_warps": 4', more: str = ""
) -> Task:
    """more: lines at the end of task.toml."""
    for name in ("task.toml", "run.toml", "reference.py"):
        (folder / name).write_text((FILES / name).read_text() + (more if name == "task.toml" else ""))
    (folder / "run.py").write_text(kernel)
    (folder / "baseline.py").write_text(f"{kernel}\n\nFIXED = {{{fixed}}}\n")
    return read_task(folder / "task.toml")
