"""Makes the embedded CPU OpenCL usable on processors newer than it.

The PoCL wheel is built on LLVM 14 (2022). On a processor it does not know, LLVM answers "generic" for the processor's
name, which its own clang then refuses (`unknown target CPU 'generic'`, PoCL issue 1049), so that nothing compiles; or,
for AMD's later ones (Zen 4), "znver3", which lacks their AVX-512, so that kernels with wide vectors abort. The name
lies in the device's structure as C text; here it is replaced by one that LLVM 14 knows and whose instruction set this
machine has. Delete this module when a newer PoCL wheel exists.

There was no cleaner way on 2026-11-22: of PoCL's own environment variables none names the processor; 3.0 is the newest
wheel; Debian's PoCL 3.1 is built on LLVM 14 as well; and of Intel's runtime, which a package ships too
(intel-opencl-rt 2026.2, 783 MB installed), the driver's file names a library at a place that does not exist. So it is
here, done only where it is needed and safe, and `TUNESMITH_POCL_PROCESSOR=as-is` switches it off.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

from tunesmith.hw.errors import TunesmithError

SWITCH = "TUNESMITH_POCL_PROCESSOR"
_STRUCTURE_BYTES = 2048
_MISTAKEN = ("generic", "znver3")
"""Names that LLVM 14 gives to processors it does not know."""
# PoCL picks its built-in functions by the instruction sets the machine has, so the processor named must have the widest
# vectors of them: AVX-512 built-ins compiled for a processor without AVX-512 abort in LLVM.
_PROCESSORS = (
    (
        b"skylake-avx512",
        {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "adx", "movbe"},
    ),
    (b"haswell", {"avx2", "fma", "bmi1", "bmi2", "movbe"}),
    (b"nehalem", {"sse4_1", "sse4_2", "popcnt"}),
)


class ProcessorTooOld(TunesmithError):
    """The processor is both unknown to PoCL and without the instruction sets there are names for."""


def name_processor(device: Any) -> bool:
    """Gives a PoCL CPU `device` (pyopencl) a processor name its compiler knows; True where that was needed. Raises
    `ProcessorTooOld`, and `TunesmithError` for a switch that there is not.

    Memory is looked at through /proc/self/mem, where an address that is not mapped is an error and not a crash; the
    name is written only where the allocation that holds the other has room for it.
    """
    match os.environ.get(SWITCH, ""):
        case "as-is":
            return False
        case "":
            pass
        case other:
            raise TunesmithError(f"{SWITCH}={other}: choose as-is, which leaves PoCL as it is, or leave it out.")
    given = device.version.rsplit("-", 1)[-1]
    if "pocl" not in device.platform.version.lower() or given not in _MISTAKEN:
        return False
    name = _processor_name()
    if given != "generic" and name != _PROCESSORS[0][0]:
        # It may be what it is said to be; what it certainly has not is AVX-512.
        return False
    wrong = given.encode() + b"\0"
    replaced = False
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.restype = ctypes.c_size_t
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        structure = os.pread(memory.fileno(), _STRUCTURE_BYTES, device.int_ptr)
        for (address,) in struct.iter_unpack("=Q", structure[: len(structure) // 8 * 8]):
            try:
                text = os.pread(memory.fileno(), len(wrong), address)
            except (OSError, OverflowError):
                continue
            if text == wrong and len(name) < usable(ctypes.c_void_p(address)):
                ctypes.memmove(address, name + b"\0", len(name) + 1)
                replaced = True
    return replaced


def _processor_name() -> bytes:
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    for name, needed in _PROCESSORS:
        if flags >= needed:
            return name
    raise ProcessorTooOld(
        "The embedded OpenCL (PoCL) does not know this processor and cannot compile for it: install "
        "an OpenCL driver for it, or use a machine with a GPU."
    )
