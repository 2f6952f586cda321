"""What worker processes set up for themselves."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

import pytest

from tunesmith.actors.workers import CompileWorker
from tunesmith.hw.targets import resolve_target

FAULTS = """
import ctypes, resource
from tunesmith.actors.workers import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for size in (1 << 20, 8 << 20)]
    for block, size in zip(blocks, (1 << 20, 8 << 20)):
        ctypes.memset(block, 1, size)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if KEEP:
    assert keep_memory()
use()
print(use())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_compile_worker_meets_its_pages_once() -> None:
    def faults(keep: bool) -> int:
        code = FAULTS.replace("KEEP", str(keep))
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)

    # 9 MiB are 2304 pages of 4 KiB. Larger pages would make the first figure smaller, never the second larger.
    assert faults(keep=True) < 20
    assert faults(keep=False) > 100


def test_a_compiler_has_another_version_where_its_headers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled with other headers is not found in the cache then."""
    pytest.importorskip("cuda.bindings")
    installed = {
        "nvidia-cuda-nvrtc": "13.0",
        "nvidia-cuda-cccl": "13.1",
        "nvidia-cuda-crt": "13.2",
        "nvidia-cuda-cccl-cu12": "12.1",
        "nvidia-cuda-nvcc-cu12": "12.2",
    }

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    # Without the bounds that a compile worker sets for its process.
    for name in ("limit_memory", "keep_memory", "os.nice"):
        monkeypatch.setattr(f"tunesmith.actors.workers.{name}", lambda *_: True)
    monkeypatch.setattr(metadata, "version", version)
    said = CompileWorker(resolve_target("sm_90"), 0).start().version
    assert all(f"{name} {one}" in said for name, one in installed.items()), said
