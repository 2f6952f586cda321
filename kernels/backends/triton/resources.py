"""The resources that a compiled kernel takes of a device, without a GPU.

Of a cubin Triton's cuobjdump tells them, of AMD's code the metadata of its assembly ("Code Object V4/V5 Metadata" in
LLVM's "User Guide for AMDGPU Backend").
"""

from __future__ import annotations

import re
import subprocess
import tempfile

from tunesmith.kernels.outcome import Resources

_STATED = re.compile(r"^    (?:- )?(\.\w+):\s+(\d+)$", re.MULTILINE)
"""A number of a kernel's metadata; the metadata of its arguments is indented further."""
BYTES_OF_REGISTER = 4


def nvidia_resources(cubin: bytes, entry: str) -> Resources:
    """Of the kernel `entry`: registers of a thread, and its stack, which counts as spilled, as Triton counts it: its
    kernels declare no arrays (a sine of a large number has one of 28 bytes). Their shared memory is all dynamic. Raises
    `ValueError`, also for another's name."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(rf"Function {re.escape(entry)}:\s+REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise ValueError(f"the cubin says nothing of a kernel {entry}")
    return Resources(registers=int(found[1]), shared=0, local=int(found[2]), spills=int(found[2]))


def amd_resources(assembly: str) -> Resources:
    """Of the kernel of an assembly text: vector registers of a lane, with the accumulation registers that share their
    file, LDS of a work-group that its code declares, and scratch memory of a lane; each store of a spilled register
    counts 4 bytes. Raises `ValueError` for a text without metadata of a kernel."""
    stated = dict(_STATED.findall(assembly.partition("amdhsa.kernels:")[2]))
    if ".vgpr_count" not in stated:
        raise ValueError("the assembly says nothing of a kernel")
    return Resources(
        registers=int(stated[".vgpr_count"]),
        shared=int(stated[".group_segment_fixed_size"]),
        local=int(stated[".private_segment_fixed_size"]),
        spills=int(stated[".vgpr_spill_count"]) * BYTES_OF_REGISTER,
    )
