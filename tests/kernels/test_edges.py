"""Memory that ends where an array does: what reaches beyond it faults, and nothing else is different."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tunesmith.kernels.backends import Side, open_device
from tunesmith.kernels.backends.opencl import pages_of

SCRIPT = """
import numpy as np
from tunesmith.kernels.backends.opencl import pages_of
inside = pages_of(np.arange({size}, dtype=np.uint8), {side!r}, 128, writable={writable})
import ctypes
place = (ctypes.c_uint8 * 1).from_address(inside.ctypes.data + {offset})
{statement}
"""


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


@pytest.mark.parametrize(
    ("side", "writable", "offset", "statement", "faults"),
    [
        ("end", True, 256, "place[0]", True),
        # As whole rows and tiles are missed by.
        ("end", True, 1 << 20, "place[0]", True),
        ("start", True, -1, "place[0]", True),
        ("end", False, 0, "place[0] = 1", True),
        ("end", False, 255, "place[0]", False),
        ("end", True, 255, "place[0] = 1", False),
    ],
)
def test_what_lies_beyond_cannot_be_touched(
    side: Side, writable: bool, offset: int, statement: str, faults: bool
) -> None:
    script = SCRIPT.format(size=256, side=side, writable=writable, offset=offset, statement=statement)
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert ended.returncode == (-signal.SIGSEGV if faults else 0), ended.stderr.decode()


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_device_reads_such_a_copy_as_any_other(side: Side, writable: bool, device: Any) -> None:
    opened = open_device(device.limits, device.index)
    data = np.arange(5000, dtype=np.uint8)
    buffer = opened.allocate(data.nbytes)
    opened.write(buffer, data)
    copied = opened.copy_at_edge(buffer, side, writable=writable)
    if copied is None:
        pytest.skip("this device has no pages that can be protected")
    assert np.array_equal(opened.read(copied), data)
