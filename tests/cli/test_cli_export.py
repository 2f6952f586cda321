"""The winners of a real run on an OpenCL device, for programs without Tunesmith."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["n=5000"], ""),
        ([], "not nothing, as in: python dispatch.py n=16\n"),
        *(([given], f"not {given}, as in") for given in ("n", "n=-5", "n=abc", "n=0", "m=5000")),
        (["n=5000", "T=float16"], "Give n, with sizes as whole numbers of at least 1, not n=5000 T=float16"),
    ],
)
def test_best_says_which_kernel_serves_a_shape(finished_run: Any, arguments: list[str], wanted: str) -> None:
    command = [sys.executable, str(finished_run.folder / "best" / "dispatch.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == (1 if wanted else 0) and wanted in done.stderr
    assert wanted or done.stdout.split(":")[0] in ("baseline", "general")


def test_a_form_of_another_backend_is_refused(finished_run: Any, here: Any, tmp_path: Path) -> None:
    done = here("export", finished_run.folder, "--as", "torch", "--out", tmp_path / "new")
    assert done.returncode == 2 and "was tuned with opencl" in done.stderr and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_rule_is_fitted_on_the_device(finished_run: Any, command: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run.folder, folder)
    done = command("resume", folder, "--dispatch-shapes", 4)
    assert done.returncode == 0, done.stderr
    assert "Dispatch on 2 unseen shapes" in done.stdout and "Dispatch rule, fitted to 4 shapes" in done.stdout
