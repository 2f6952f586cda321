"""`tunesmith export` of a real run on an OpenCL device: its own test, and its C program, agree with the reference."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HEADERS = Path(__file__).resolve().parents[1] / "data" / "opencl_headers"


@pytest.fixture(scope="module")
def exported(finished_run: Any, command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "out"
    done = command("export", finished_run.folder, "--as", "opencl", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(out) and "  scale_add.h" in done.stdout
    return out


def test_the_exports_own_test_passes(exported: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_scale_add.py"]
    # Without plugins of ours, which the package does not ask for and which take a second to import.
    environment = {**os.environ, "PYTHONPATH": str(exported), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=exported, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def test_the_example_of_its_readme_runs_and_shows_the_signature(exported: Path, tmp_path: Path) -> None:
    readme = (exported / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "use.py").write_text(example + "\nassert (out == 3).all(), out\n")
    environment = {**os.environ, "PYTHONPATH": str(exported)}
    run = [sys.executable, str(tmp_path / "use.py")]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "`scale_add(queue, x, y, out, sizes, types=(), a=2.0) -> event`" in readme and "CL/cl.h" in readme


def test_the_c_program_agrees_with_the_reference(exported: Path, tmp_path: Path) -> None:
    compiler, library = shutil.which("gcc"), opencl_library()
    if compiler is None or library is None:
        pytest.skip("there is no C compiler, or no OpenCL library to link with")
    program = tmp_path / "example"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-isystem{HEADERS}"]
    linked = [str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-o", str(program)]
    subprocess.run([compiler, *flags, str(exported / "example.c"), *linked], check=True)
    # A shape that nobody tuned, which no group of 16 divides.
    n, random = 1_003, np.random.default_rng(0)
    x, y = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    for name, array in (("x", x), ("y", y), ("out", np.zeros_like(x))):
        array.tofile(tmp_path / f"{name}.bin")
    files = [str(tmp_path / f"{name}.bin") for name in ("x", "y", "out")]
    subprocess.run([program, "0", str(n), *files], check=True, timeout=60, env=opencl_environment())
    reference = runpy.run_path(str(exported / "scale_add_opencl" / "reference.py"))["scale_add"]
    want = reference(x=x.astype(np.float64), y=y.astype(np.float64), a=2.0, n=n)["out"]
    np.testing.assert_allclose(np.fromfile(files[2], dtype=np.float32), want, rtol=1e-6)
    refused = subprocess.run([program, "7", str(n), *files], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "TYPES is a number from 0 to 0" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["n=5000"], ""),
        ([], "n is missing, as in: python dispatch.py n=16"),
        (["n"], "n is a whole number of at least 1, not ''"),
        (["n=-5"], "n is a whole number of at least 1, not '-5'"),
        (["n=abc"], "n is a whole number of at least 1, not 'abc'"),
        (["n=0"], "n is a whole number of at least 1, not '0'"),
        (["m=5000"], "there is no m; give n"),
        (["n=5000", "T=float16"], "there is no T; give n"),
    ],
)
def test_best_says_which_kernel_serves_a_shape(finished_run: Any, arguments: list[str], wanted: str) -> None:
    command = [sys.executable, str(finished_run.folder / "best" / "dispatch.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if wanted else 0) and done.stderr.startswith(wanted)
    assert wanted or done.stdout.split(":")[0] in ("baseline", "general")


def test_a_form_of_another_backend_is_refused(finished_run: Any, here: Any, tmp_path: Path) -> None:
    done = here("export", finished_run.folder, "--as", "torch", "--out", tmp_path / "new")
    assert done.returncode == 2 and "was tuned with opencl" in done.stderr and not (tmp_path / "new").exists()


def opencl_library() -> Path | None:
    """The loader of OpenCL drivers that pyopencl brings, or the system's."""
    import pyopencl

    folder = Path(pyopencl.__file__).resolve().parent
    found = [*folder.glob(".libs/libOpenCL*"), *folder.parent.glob("pyopencl.libs/libOpenCL*")]
    found += [path for path in map(Path, ("/usr/lib/x86_64-linux-gnu/libOpenCL.so",)) if path.exists()]
    return found[0] if found else None


def opencl_environment() -> dict[str, str]:
    """In which the loader that pyopencl brings finds the driver that it brings; another loader ignores it."""
    import pyopencl

    folder = Path(pyopencl.__file__).resolve().parent
    return {**os.environ, "PYOPENCL_HOME": str(folder), "LD_LIBRARY_PATH": str(folder / ".libs")}


@pytest.mark.slow
def test_a_rule_is_fitted_on_the_device(finished_run: Any, command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run.folder, folder)
    done = command("resume", folder, "--dispatch-shapes", 4)
    assert done.returncode == 0, done.stderr
    assert "Dispatch on 2 unseen shapes" in done.stdout and "Dispatch rule, fitted to 4 shapes" in done.stdout
