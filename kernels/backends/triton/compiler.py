"""Triton's sources to cubins (or AMD's code objects) by Triton's own compiler; needs neither a GPU nor a driver.

Owns the stand-in for a driver that names the device to compile for, the arguments by which Triton specialises a kernel
as a real call would, and the reading of its metadata: of a cubin Triton's cuobjdump tells the resources, of AMD's code
its assembly ("Code Object V4/V5 Metadata" in LLVM's "User Guide for AMDGPU Backend"). The kernel's text runs in this
process, which holds no device.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tunesmith.hw.errors import how_to_install
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import MAX_LOG, CompilerUnavailable
from tunesmith.kernels.backends.nvrtc import NvrtcCompiler, marked
from tunesmith.kernels.build.artifact import Artifact, CompiledCall
from tunesmith.kernels.build.guard import refuse
from tunesmith.kernels.build.machine_code import (
    MarkedArtifact,
    Profile,
    global_variables,
    hot_lines,
    instruction_mix,
    refuse_assembly,
    special_registers,
    unfollowed,
    used_variables,
)
from tunesmith.kernels.build.python_source import FIXED, SPECIALISED
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Rejected, Resources
from tunesmith.kernels.space import MAX_CLUSTER

_FIRST = """import triton
import triton.language as tl


@triton.jit
def first(x, N: tl.constexpr):
    tl.store(x, tl.sum(tl.load(x + tl.arange(0, N)), 0))

TUNESMITH = {"kernel": "first", "values": {"N": 128}, "arguments": {"x": "*fp32"}}
"""
FILE = "kernel.py"
"""The name under which a source is compiled, by which the compiler speaks of its lines."""
MAX_KEPT = 24
"""Compiled kernels, of a megabyte or two each, that a process keeps for their marked twins."""
_THREADS = re.compile(r"\.(?:req|max)ntid\s+(\d+)")
_STATED = re.compile(r"^    (?:- )?(\.\w+):\s+(\d+)$", re.MULTILINE)
"""A number of a kernel's metadata; the metadata of its arguments is indented further."""
BYTES_OF_REGISTER = 4
_VALUES = {"": 2**40 + 17, "16": 2**40 + 16, "1": 1}
"""A whole number of each class, beyond 32 bits; of the others these modulo 2^32."""


def pretend_device(arch: str, warp_size: int = 32) -> None:
    """Stands in for the driver that Triton asks while it compiles for `arch`, "sm_90" or "gfx942"."""
    import triton
    from triton.backends.compiler import GPUTarget

    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    target = GPUTarget("cuda", int(number[1]), 32) if number else GPUTarget("hip", arch, warp_size)
    numbers = dict.fromkeys(("get_current_device", "get_current_stream"), lambda *device: 0)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target, **numbers))


class TritonCompiler:
    """Compiles for the architecture of `limits`, "sm_90" or "gfx942". Raises `CompilerUnavailable`."""

    def __init__(self, limits: DeviceLimits) -> None:
        try:
            import triton

            pretend_device(limits.arch, limits.warp_size or 32)
        except ImportError as error:
            raise CompilerUnavailable(
                f"Triton kernels cannot be compiled here ({error}): {how_to_install('triton')}."
            ) from error
        self.arch, self._limits = limits.arch, limits
        self.version = f"triton {triton.__version__}"
        self._harness: NvrtcCompiler | None = None
        self._kept: dict[str, Any] = {}
        """The latest compiled kernels, by the source's digest: marks are set in the same PTX."""

    def warm_up(self) -> None:
        """The first compilation of a process takes a second longer than others."""
        self._compiled(Specialised("triton", "first", _FIRST))

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        """Machine code with its launch data, or `CompileFailed` with the first error. Sources in CUDA, such as the
        harness's own, go to NVRTC."""
        if source.backend != "triton":
            self._harness = self._harness or NvrtcCompiler(self.arch)
            return self._harness.compile(source)
        made = self._compiled(source)
        if isinstance(made, CompileFailed | Rejected):
            return made
        assembly, metadata = made.asm.get("ptx", ""), made.metadata
        if (refused := refuse_assembly(assembly, metadata.name)) is not None:
            return refused
        call = _call(made, source)
        if call.cluster > MAX_CLUSTER:
            why = f"a cluster of {call.cluster} blocks cannot be launched everywhere: take at most {MAX_CLUSTER}."
            return Rejected("cluster", "num_ctas", why)
        if "cubin" in made.asm:
            code = made.asm["cubin"]
            variables = used_variables(global_variables(code), assembly, source.source) + special_registers(assembly)
            resources = nvidia_resources(code, metadata.name)
            self._kept[source.digest] = made
            while len(self._kept) > MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
        else:
            code, variables = made.asm["hsaco"], ()
            resources = amd_resources(made.asm["amdgcn"])
        # The code's own static memory, on AMD, and Triton's.
        resources = replace(resources, shared=(resources.shared or 0) + metadata.shared)
        name, digest = metadata.name, source.digest
        return Artifact("triton", self.arch, name, code, digest, resources, variables, call, unfollowed(assembly))

    def profile(self, source: Specialised) -> Profile:
        """The PTX instructions of `source`, and the lines most of them come from; empty if it does not compile."""
        made = self._compiled(source)
        if isinstance(made, CompileFailed | Rejected) or "ptx" not in made.asm:
            return Profile()
        return Profile(instruction_mix(made.asm["ptx"]), hot_lines(made.asm["ptx"], FILE))

    def mark(self, source: Specialised) -> MarkedArtifact | CompileFailed | str:
        """From the PTX of `source`."""
        made = self._kept.get(source.digest) or self._compiled(source)
        if isinstance(made, Rejected):
            return made.detail
        if isinstance(made, CompileFailed):
            return made
        if "ptx" not in made.asm:
            return "only NVIDIA's machine code can be marked"
        target = re.search(r"^\.target\s+(\w+)", made.asm["ptx"], re.MULTILINE)
        artifact = Artifact("triton", self.arch, made.metadata.name, b"", source.digest, call=_call(made, source))
        return marked(artifact, made.asm["ptx"], FILE, target[1] if target else self.arch)

    def _compiled(self, source: Specialised) -> Any:
        """Triton's compiled kernel, or why there is none."""
        if (refused := refuse(source)) is not None:
            return refused
        from triton import knobs

        with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder, knobs.cache.scope(), _without_torch():
            # Our own cache keeps the results.
            knobs.cache.dir = os.path.join(folder, "cache")
            path = Path(folder, FILE)
            path.write_text(source.source, encoding="utf-8")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return _warm_up(path, source)
            except Exception as error:  # noqa: BLE001 - the source's own code runs, and compiler passes fail in many ways
                return _failure(error)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Some versions of Triton import PyTorch, which takes seconds, to know its tensors: no source that is compiled here
    is given one."""
    stand_in = ModuleType("torch")
    stand_in.__dict__["Tensor"] = type("Tensor", (), {})
    is_absent = sys.modules.setdefault("torch", stand_in) is stand_in
    try:
        yield
    finally:
        if is_absent:
            del sys.modules["torch"]


def imported(path: Path) -> ModuleType:
    """The module of a source. Triton reads the text of its functions from the file."""
    spec = importlib.util.spec_from_file_location("tunesmith_kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _warm_up(path: Path, source: Specialised) -> Any:
    """The kernel of the file `path`, compiled as a call would compile it."""
    module = imported(path)
    about = getattr(module, SPECIALISED)
    arguments = {name: _argument(text) for name, text in about["arguments"].items()}
    given = {**getattr(module, FIXED, {}), **about["values"], **arguments}
    return getattr(module, source.entry).warmup(grid=(1,), **given)


def _argument(text: str) -> Any:
    """A value of the class `text`, as of `argument_classes`."""
    if text.startswith("*"):
        # Not Triton's own stand-in, which claims to be small.
        return SimpleNamespace(dtype=text[1:], data_ptr=lambda: 0)
    if text == "fp32":
        return 0.5
    if text == "u1":
        return True
    kind, _, value = text.partition("=")
    if value:
        return int(value)
    kind, _, divisor = kind.partition(":")
    number = _VALUES[divisor]
    return number % 2**32 if kind == "i32" else number if kind == "i64" else number + 2**63


def _call(made: Any, source: Specialised) -> CompiledCall:
    """The launch data of the compiled kernel. Triton's own launcher leaves out constants, passes the
    other arguments in the order of the signature, and behind them the addresses of two scratch buffers."""
    about = ast.literal_eval(source.source.rpartition(f"\n{SPECIALISED} = ")[2])
    metadata, signature = made.metadata, made.src.signature
    places = {name: place for place, name in enumerate(about["arguments"])}
    kept = tuple((places[name], kind) for name, kind in signature.items() if kind != "constexpr")
    threads = _THREADS.search(made.asm.get("ptx", ""))
    return CompiledCall(
        arguments=kept,
        threads=int(threads[1]) if threads else metadata.num_warps * metadata.warp_size,
        shared_bytes=metadata.shared,
        cluster=metadata.num_ctas,
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        scratch_bytes=metadata.global_scratch_size,
    )


def _failure(error: Exception) -> CompileFailed:
    """The first line that tells the mistake; Triton's own errors show the source above it."""
    text = str(error).strip() or type(error).__name__
    lines = [line for line in text.splitlines() if line.strip(" ^\t")]
    first = lines[-1] if type(error).__name__ == "CompilationError" else lines[0]
    where = re.match(r"at (\d+):\d+:", lines[0])
    place = f"line {where[1]} of the function: " if where else ""
    return CompileFailed(f"{place}{first.strip()} ({type(error).__name__})"[:500], text[:MAX_LOG])


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
