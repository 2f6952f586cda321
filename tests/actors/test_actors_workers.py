"""What worker processes set up for themselves."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from tunesmith.actors.process.workers import keep_memory
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
