"""Plain kernels in the style that people write, of sixteen kinds with what comes in production; sizes are small.

Of production's three the plain baselines are in the library.
"""

import functools
import re
import sys
import tempfile
from pathlib import Path

from tunesmith.kernels.reader.draft import Draft, draft
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import read_task

PLAIN = Path(__file__).with_name("plain")
SIZES = {
    "gelu": {"n": 1003},
    "add_relu": {"n": 777},
    "row_sum": {"n": 700, "rows": 3},
    "softmax": {"n": 601, "rows": 3},
    "layernorm": {"n": 333, "rows": 3},
    "transpose": {"rows": 67, "cols": 45},
    "stencil1d": {"n": 1009},
    "stencil2d": {"h": 37, "w": 45},
    "matvec": {"m": 301, "n": 19},
    "histogram": {"n": 1001},
    "gather": {"n": 555},
    "scatter": {"n": 555},
    "dequantise": {"n": 1024, "group": 32},
    "depthwise": {"c": 5, "n": 99},
    "matmul": {"M": 33, "N": 41, "K": 17},
    "scale_rows": {"n": 333, "rows": 4},
}
KERNELS = {name: (PLAIN / f"{name}.cu").read_text(encoding="utf-8") for name in SIZES}
SHAPES = {
    "scatter": {"out": "n"},
    "gather": {"table": "n"},
    "histogram": {"bins": "100"},
    "dequantise": {"scale": "n"},
    "stencil1d": {"x": "n"},
    "stencil2d": {"in": "h * w"},
    "depthwise": {"x": "c * n", "f": "3 * c"},
}
"""What a draft asks for besides sizes: lengths of arrays whose indices are data, or may leave the array."""


@functools.cache
def draft_of(name: str) -> Draft:
    return draft(KERNELS[name], None, "my.cu")


def answered(name: str) -> dict[str, str]:
    """The files of the draft with its questions answered."""
    sizes, files = SIZES[name], dict[str, str]()
    for file, text in draft_of(name)[1].items():
        text = re.sub(r" +# FILL:.*", "", text)
        if file == "task.toml":
            text = re.sub(r"sizes = \{.*\}", _toml(sizes), text)
            for array, shape in SHAPES.get(name, {}).items():
                array = f"{array}_" if array == "in" else array
                text = re.sub(rf'(name = "{array}", .*shape = )\[[^\]]*\]', rf'\1["{shape}"]', text)
        if file == "reference.py":
            text = re.sub(r"def .*", f"def {name}(**given): return given", text).split('    """')[0]
        files[file] = text
    return files


def _toml(sizes: dict[str, int]) -> str:
    return f"sizes = {{ {', '.join(f'{size} = {value}' for size, value in sizes.items())} }}"


def _written(files: dict[str, str], folder: Path) -> None:
    for file, text in files.items():
        (folder / file).write_text(text)


@functools.cache
def drafted(name: str) -> tuple[Task, list[str]]:
    """The drafted task with its questions answered, and the questions."""
    left = [found for text in draft_of(name)[1].values() for found in re.findall(r"# FILL: (.*)", text)]
    with tempfile.TemporaryDirectory() as folder:
        _written(answered(name), Path(folder))
        return read_task(Path(folder) / "task.toml"), left


M = 1 << 20
LINE = ({"n": 8 * M}, {"n": 3 * M}, {"n": 100_003})
ROWS = ({"n": 4096, "rows": 4096}, {"n": 1024, "rows": 8192}, {"n": 1003, "rows": 33})
LARGE: dict[str, tuple[dict[str, int], ...]] = {
    **dict.fromkeys(("gelu", "add_relu", "stencil1d", "gather", "scatter", "histogram"), LINE),
    **dict.fromkeys(("row_sum", "softmax", "layernorm", "scale_rows"), ROWS),
    "transpose": ({"rows": 4096, "cols": 4096}, {"rows": 2048, "cols": 6144}, {"rows": 333, "cols": 517}),
    "stencil2d": ({"h": 4096, "w": 4096}, {"h": 2048, "w": 6144}, {"h": 333, "w": 517}),
    "matvec": ({"m": 8192, "n": 4096}, {"m": 16384, "n": 1024}, {"m": 333, "n": 517}),
    "dequantise": ({"n": 32 * M, "group": 128}, {"n": 8 * M, "group": 32}, {"n": 100_003, "group": 7}),
    "depthwise": ({"c": 1024, "n": 16384}, {"c": 4096, "n": 1024}, {"c": 33, "n": 517}),
    "matmul": ({"M": 1024, "N": 1024, "K": 1024}, {"M": 2048, "N": 1024, "K": 512}, {"M": 133, "N": 217, "K": 95}),
}
"""Two tuned sizes of tens of megabytes, and a held-out size that nothing divides."""
INDICES = {"gather": ("index", 50_000), "scatter": ("index", 50_000), "histogram": ("data", 50)}
"""Arrays of indices, which lie below twice this number: places that exist at every size."""


def write_tasks(folder: Path) -> None:
    """Writes a task of each kernel at sizes of `LARGE`, compared with the plain kernel itself."""
    for name in KERNELS:
        files = answered(name)
        del files["reference.py"]
        text = re.sub(r"(?m)^reference = .*", 'reference = "baseline"', files["task.toml"])
        text = text.partition("\n[[workloads]]\n")[0] + "\n"
        if name in INDICES:
            array, middle = INDICES[name]
            fill = f'fill = {{ kind = "uniform", mean = {middle - 1}, scale = {middle - 1} }}'
            text = re.sub(rf'(name = "{array}", .*)fill = \{{[^}}]*\}}', rf"\1{fill}", text)
        for at, sizes in enumerate(LARGE[name]):
            held_out = "held_out = true\n" if at == 2 else ""
            text += f'[[workloads]]\n{_toml(sizes)}\ndevices = ["gpu"]\n{held_out}'
        (folder / name).mkdir(parents=True)
        _written(files | {"task.toml": text}, folder / name)


if __name__ == "__main__":
    write_tasks(Path(sys.argv[1]))
