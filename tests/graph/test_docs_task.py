"""The task that docs/tasks.md builds and the program of docs/using.md, as a reader saves them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import simulate_device

from tunesmith.graph.run import tune
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```\w+\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


FIRST = ("kernel.cl", "reference.py", "template.toml", "task.toml")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("first")
    for name, text in zip(FIRST, blocks("tasks.md"), strict=False):
        (folder / name).write_text(text)
    return load_task(str(folder))


def test_the_first_task_is_right(first: Task, device: Any) -> None:
    sources, compiler = first.sources("opencl"), open_compiler(device.limits, device.index)
    assert len(feasible(sources.templates[0], first.workloads, device.limits)) == 10
    for template, config in ((sources.baseline.template, {}), (sources.templates[0], {"GROUP": 16, "COLUMNS": 4})):
        assert isinstance(compiler.compile(specialise(template, config, {})), Artifact)


@pytest.mark.slow
def test_the_first_task_wins(first: Task, device: Any, ray_cluster: Any, tmp_path: Path) -> None:
    found = tune(first, run_dir=tmp_path / "run", rounds=1, wisdom=False).summary
    assert found.ratio is not None and found.ratio < 0.5


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("scale")
    sources = [f"{name}.{end}" for end in ("cu", "cl") for name in ("baseline", "template")]
    names = ["task.toml", "reference.py", *sources, "template.cuda.toml"]
    for name, text in zip(names, blocks("tasks.md")[len(FIRST) :], strict=True):
        (folder / name).write_text(text)
    template = (folder / "template.cuda.toml").read_text()
    (folder / "template.opencl.toml").write_text(template.replace("template.cu", "template.cl"))
    return load_task(str(folder))


def test_its_cuda_sources_compile(task: Task) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    compiler = open_compiler(resolve_target("h200"))
    sources = task.sources("cuda")
    for template, config in ((sources.baseline.template, {}), (sources.templates[0], {"BLOCK": 128, "VEC": 4})):
        for dtype in task.types["T"]:
            found = compiler.compile(specialise(template, config, {"T": dtype}))
            assert isinstance(found, Artifact), found


def test_its_constraint_holds_for_each_workload_by_itself(task: Task) -> None:
    template, limits = task.sources("opencl").templates[0], resolve_target("h200")
    tuned, held_out = task.workloads
    assert len(feasible(template, [tuned], limits)) == 15
    assert len(feasible(template, [held_out], limits)) == 10


@pytest.fixture
def best(task: Task, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a run exports that found one configuration for all shapes, and another for the tuned one."""
    times = {"{'BLOCK': 64, 'VEC': 4}": 5e-6, "{'BLOCK': 256, 'VEC': 8}": 4e-6, "{}": 20e-6}
    simulate_device(monkeypatch)
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: times.get(str(config), 9e-6))
    found = tune(task, run_dir=tmp_path / "run", backend="opencl", strategy="exhaustive", rounds=1)
    return found.folder / "best"


def test_the_program_of_the_page_runs_an_untuned_shape(best: Path, tmp_path: Path) -> None:
    # PoCL on processors newer than itself needs help, which is no matter of the page.
    known = (
        "import pyopencl\nfrom tunesmith.kernels.backends.opencl import name_processor\n"
        "for platform in pyopencl.get_platforms():\n"
        "    for one in platform.get_devices():\n        name_processor(one)\n"
    )
    (tmp_path / "use.py").write_text(known + blocks("using.md")[0])
    run = [sys.executable, str(tmp_path / "use.py"), str(best)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "right {'BLOCK': 64, 'VEC': 4}\n"), done.stderr


def test_what_is_exported_says_what_other_shapes_need(best: Path) -> None:
    general = json.loads((best / "general" / "launch.json").read_text())
    assert general["launch"] == {"grid": ["ceil_div(n, BLOCK * VEC)"], "block": ["BLOCK"], "shared_bytes": "0"}
    assert [(one["types"], one["source"]) for one in general["sources"]] == [
        ({"T": "float16"}, "kernel-float16.cl"),
        ({"T": "float32"}, "kernel-float32.cl"),
    ]
    rows = json.loads((best / "dispatch.json").read_text())["shapes"]
    assert [(row["sizes"], row["types"], row["folder"]) for row in rows] == [
        ({"n": 1048576}, {"T": "float16"}, "1048576"),
        ({"n": 1000003}, {"T": "float32"}, "general"),
    ]
