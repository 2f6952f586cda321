"""Memory that ends where an array does: what reaches beyond it faults, and nothing else is different."""

from __future__ import annotations

import json
import mmap
import signal
import subprocess
import sys

import numpy as np
import pytest

from tunesmith.kernels.backends import Side
from tunesmith.kernels.backends.opencl import pages_of

TOUCHED = [  # side, writable, offset, whether it is written, whether it faults
    ("end", True, 256, False, True),
    # As whole rows and tiles are missed by.
    ("end", True, 1 << 20, False, True),
    ("start", True, -1, False, True),
    ("end", False, 0, True, True),
    ("end", False, 255, False, False),
    ("end", True, 255, True, False),
]
SCRIPT = """
import ctypes, json, os, sys
import numpy as np
from tunesmith.kernels.backends.opencl import pages_of
ends = []
for side, writable, offset, written, _ in json.loads(sys.argv[1]):
    inside = pages_of(np.arange(256, dtype=np.uint8), side, 128, writable=writable)
    child = os.fork()
    if child == 0:
        place = inside.ctypes.data + offset
        ctypes.memset(place, 1, 1) if written else ctypes.string_at(place, 1)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""
"""Each place is touched by a child of one process, which took its time to import."""


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("size", [1, 128, 200, 4096, 5000])
def test_a_copy_lies_at_the_edge_of_its_pages(side: Side, size: int) -> None:
    data = np.random.default_rng(size).integers(256, size=size, dtype=np.uint8)
    inside = pages_of(data, side, 128, writable=True)
    assert np.array_equal(inside, data)
    assert inside.ctypes.data % 128 == 0
    if side == "start":
        assert inside.ctypes.data % mmap.PAGESIZE == 0
    else:
        assert -(inside.ctypes.data + size) % mmap.PAGESIZE < 128
    inside[:] = 7


def test_what_lies_beyond_cannot_be_touched() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(TOUCHED)], check=True, capture_output=True)
    for touched, ended in zip(TOUCHED, json.loads(told.stdout), strict=True):
        assert ended == (-signal.SIGSEGV if touched[-1] else 0), touched
