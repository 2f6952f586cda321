"""Importing this room loads no GPU library, so that it works and is quick everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tunesmith.hw


def test_no_gpu_library_is_loaded():
    names = sorted(path.stem for path in Path(tunesmith.hw.__path__[0]).glob("[a-z]*.py"))
    assert "probe" in names
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module('tunesmith.hw.' + name)\n"
        "heavy = {'pynvml', 'cuda', 'cupy', 'pyopencl', 'ray', 'langgraph'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
