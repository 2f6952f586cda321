"""Templates by rules, and drafts, are the same in every process: strings have another hash in each."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_kernels import KERNELS, draft_of, drafted
from rewrite_cases import LINE, OWN, RAW, kernel

from tunesmith.kernels.rewrite.template import rewrite
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import LIBRARY, read_task
from tunesmith.kernels.spec.template import LaunchGeometry

DATA = RAW.parent / "data"
NAMES = ("first", "second", "third", "fourth")
ARRAYS = {name: ("in", "float32", "n * n") for name in "ab"} | {name: ("inout", "float32", "n * n") for name in NAMES}
TURNS = "for (int k = threadIdx.x; k < n; k += blockDim.x)"
BACKWARDS = " ".join(f"{name}[r * n + k] += {name}[r * n + n - 1 - k];" for name in NAMES)
SUMS = """int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    float s = 0, t = 0, u = 0, v = 0;
    for (int k = 0; k < n; ++k) { s += a[r * n + k] * b[k * n + c]; t += s; u += t; v += u; }
    first[r * n + c] = s + t + u + v;"""
EACH = "int r = blockIdx.x * blockDim.x + threadIdx.x; if (r >= n) return; for (int k = 0; k < n; ++k)"
ELEMENTS = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) first[i] = a[i];"
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
HALF, CUBE = LaunchGeometry(grid=("n // 2",), block=("64",)), LaunchGeometry(grid=("n",), block=("8", "4", "2"))
SEVERAL = {
    "sums": kernel(SUMS, ARRAYS, SQUARE),
    "lanes": kernel(f"{EACH} {{ {BACKWARDS} }}", ARRAYS, LINE),
    "turns": kernel(f"int r = blockIdx.x; {TURNS} {{ {BACKWARDS} }} {TURNS} {{ {BACKWARDS} }}", ARRAYS, HALF),
    "axes": kernel(ELEMENTS, ARRAYS, CUBE),
}
"""Kernels with several sums, arrays or axes that a rule names in its code or in its reason."""


def sources(folders: list[str]) -> Iterator[tuple[str, Task]]:
    for file in sorted(file for folder in folders for file in Path(folder).glob("*/task.toml")):
        yield str(file), read_task(file)
    yield from ((name, drafted(name)[0]) for name in KERNELS)
    yield from (OWN | SEVERAL).items()


def everything(folders: list[str]) -> dict[str, object]:
    """What the rules make of each source, with those of tasks in `folders`, and the drafts of the plain kernels."""
    made: dict[str, object] = {}
    for name, task in sources(folders):
        for backend in task.backends:
            template, skipped = (found := rewrite(task, backend)).template, found.skipped
            made[f"{name} {backend}"] = [skipped, template and [template.id, template.model_dump(mode="json")]]
    for name in KERNELS:
        made[f"draft of {name}"] = repr(draft_of(name))
    return made


@pytest.mark.parametrize(
    ("seeds", "folders"), [((0,), [DATA]), pytest.param((1, 2, 3), [DATA, RAW, LIBRARY], marks=pytest.mark.slow)]
)
def test_what_the_rules_make_depends_on_nothing_but_the_source(seeds: tuple[int, ...], folders: list[Path]) -> None:
    """In this process, whose seed is drawn, and in those with `seeds`."""
    environments = [{**os.environ, "PYTHONHASHSEED": str(seed)} for seed in seeds]
    given = list(map(str, folders))
    command = [sys.executable, __file__, *given]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, env=one) for one in environments]
    here = json.loads(json.dumps(everything(given)))
    assert len(here) > 45
    for other in begun:
        there = json.loads(other.communicate(timeout=280)[0])
        assert {name for name in here if there[name] != here[name]} == set()


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1:])))
