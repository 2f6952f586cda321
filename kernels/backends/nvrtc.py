"""CUDA C++ to a cubin by NVRTC, and PTX to a cubin by nvJitLink; both need neither a GPU nor a driver.

Owns the options, the headers and the reading of the compiler's log. nvJitLink assembles PTX that was changed after
NVRTC made it: a driver would do it too, but not for PTX that is newer than itself.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunesmith.hw.errors import how_to_install
from tunesmith.kernels.backends import MAX_LOG, CompilerUnavailable
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse, without_comments
from tunesmith.kernels.build.machine_code import (
    MarkedArtifact,
    Profile,
    global_variables,
    hot_lines,
    instruction_mix,
    mark_blocks,
    refuse_assembly,
    special_registers,
    unfollowed,
    used_variables,
)
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Rejected, Resources


def assemble(ptx: str, arch: str, max_registers: int | None = None) -> bytes | CompileFailed | str:
    """The cubin of `ptx` for `arch`, such as "sm_90", or why nothing can be assembled. max_registers: see
    `Specialised`."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError):
        # cuda.pathfinder raises the latter when the shared library is not found.
        return f"the library nvJitLink is not installed: {how_to_install('cuda13')}"
    options = [f"-arch={arch}", *([f"-maxrregcount={max_registers}"] if max_registers else [])]
    handle = nvjitlink.create(len(options), options)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "marked.ptx")
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        return bytes(code)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        text = log.replace(b"\0", b"").decode(errors="replace").strip()
        return CompileFailed(f"nvJitLink: {text.splitlines()[0] if text else error}"[:500], text[:MAX_LOG])
    finally:
        nvjitlink.destroy(handle)


def marked(
    artifact: Artifact, ptx: str, file: str, target: str, max_registers: int | None = None
) -> MarkedArtifact | CompileFailed | str:
    """`artifact` with the machine code of `ptx` with marks. file: the name by which the PTX speaks of the source."""
    try:
        text, blocks = mark_blocks(ptx, file, artifact.entry)
    except ValueError as error:
        return str(error)
    code = assemble(text, target, max_registers)
    return MarkedArtifact(replace(artifact, code=code), blocks) if isinstance(code, bytes) else code


HEADER_FOLDERS = (".", "cccl", "crt", "cooperative_groups", "cooperative_groups/details")
"""Below the folders of CUDA's headers, which until CUDA 12 are one for each package: the C++ standard library, where it
is installed, lies in one of its own, and the headers of the last three include each other by their bare names, which
`--no-source-include` ends."""
HEADER_PACKAGES = {"cudart": ".", "cccl": "cccl", "nvcc": "crt"}
"""The packages that have them, and the folder by which one knows that another has brought its headers along."""
INSTALL = f"CUDA C++ cannot be compiled here: {{what}}; {how_to_install('cuda13')}."
_OWN_INSTRUCTIONS = re.compile(r"\b(?:wgmma\.|setmaxnreg\.|tcgen05\.)")
FIRST_WITH_OWN = 90
"""The first architecture that has such instructions, and whose number may have an "a" behind it."""
LINES = "--generate-line-info"
_LINE_NAME = re.compile(r'^#line 1 "(?P<name>[^"\n]*)"$', re.MULTILINE)
"""As `specialise` writes it."""
_ERROR_LINE = re.compile(r"^.*\(\d+\): (?:catastrophic )?error.*$|^.*error\s*: .*$", re.MULTILINE)
_OF_CCCL = re.compile(r'open source file "(?:cub|cuda|nv)/')
_INCLUDES = re.compile(r"(?://[^\n]*\n)*(?P<includes>(?:#include <[^>\n]+>\n)+)")
_HEADERS_END = "#pragma nv_hdrstop\n"
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class NvrtcCompiler:
    """Compiles for `arch`, such as "sm_90". Raises `CompilerUnavailable` where NVRTC or CUDA's headers are missing."""

    def __init__(self, arch: str) -> None:
        try:
            from cuda.bindings import nvrtc

            status, major, minor = nvrtc.nvrtcVersion()
        except ImportError as error:
            raise CompilerUnavailable(INSTALL.format(what="the package cuda-bindings is missing")) from error
        except RuntimeError as error:
            # cuda.pathfinder raises it when the shared library is not found.
            raise CompilerUnavailable(INSTALL.format(what="the NVRTC library is missing")) from error
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerUnavailable(INSTALL.format(what=f"NVRTC answers with {status.name}"))
        roots = _header_roots()
        supported = _checked(nvrtc.nvrtcGetSupportedArchs())
        if int(re.sub(r"\D", "", arch)) not in supported:
            raise CompilerUnavailable(
                f"NVRTC {major}.{minor} does not compile for {arch}, only for "
                f"{', '.join(f'sm_{number}' for number in supported)}: choose another target, or, for another "
                f"CUDA's, {how_to_install('cuda12')}."
            )
        self.arch = arch
        folders = dict.fromkeys(Path(root, name) for root in roots for name in HEADER_FOLDERS)
        header_folders = [folder for folder in folders if folder.is_dir()]
        self.version = f"nvrtc {major}.{minor}"
        self._options = [
            *(f"--include-path={folder}" for folder in header_folders),
            "--std=c++17",
            # NVRTC 13.0 takes a generic lambda in a kernel for a function of the host.
            "--device-as-default-execution-space",
            # Without it NVRTC adds the working directory, and a source could include the user's files.
            "--no-source-include",
            "--ptxas-options=-v",
        ]
        # Newer NVRTCs remember results on disk, and then say nothing of registers, as ptxas does not run.
        if _accepts(arch, "--no-cache"):
            self._options.append("--no-cache")
        # Parses no textures, surfaces and complex numbers before each source: 2 to 5 ms less.
        self._shorter = ["--minimal"] if _accepts(arch, "--minimal") else []
        self._precompiled: dict[tuple[str, bool, str], int | None] = {}

    def compile(self, source: Specialised) -> Artifact | CompileFailed | Rejected:
        """A cubin with the resources ptxas reports, or `CompileFailed` with the first error."""
        from cuda.bindings import nvrtc

        if (refused := refuse(source)) is not None:
            return refused
        with self._compiled(source) as (program, failure, text):
            if failure == "NVRTC_ERROR_COMPILATION":
                return CompileFailed(first_error(text or failure), text[:MAX_LOG])
            if failure:
                # Not the source's: NVRTC ran out of memory, or failed by itself.
                return CompileFailed(f"{failure}: {first_error(text)}" if text else failure, text[:MAX_LOG])
            code = _output(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
            assembly = _assembly(program)
            if (refused := refuse_assembly(assembly, source.entry)) is not None:
                return refused
            variables = used_variables(global_variables(code), assembly, source.source) + special_registers(assembly)
        resources = parse_resources(text, source.entry)
        if resources.registers is None:
            missing = f'the source defines no kernel `extern "C" __global__ void {source.entry}(...)`'
            return CompileFailed(missing, text[:MAX_LOG])
        followed = unfollowed(assembly)
        return Artifact("cuda", self.arch, source.entry, code, source.digest, resources, variables, unfollowed=followed)

    def profile(self, source: Specialised) -> Profile:
        """The PTX instructions of `source`, and the lines most of them come from; empty if it does not compile."""
        assembly = self._assembly_with_lines(source)
        if not isinstance(assembly, str):
            return Profile()
        return Profile(instruction_mix(assembly), hot_lines(assembly, _file_of(source)))

    def mark(self, source: Specialised) -> MarkedArtifact | CompileFailed | str:
        """From the PTX of `source`, which is the same but for the lines it tells."""
        assembly = self._assembly_with_lines(source)
        if not isinstance(assembly, str):
            return assembly.detail if isinstance(assembly, Rejected) else assembly
        artifact = Artifact("cuda", self.arch, source.entry, b"", source.digest)
        target = _target(self.arch, source.source)
        return marked(artifact, assembly, _file_of(source), target, source.max_registers)

    def _assembly_with_lines(self, source: Specialised) -> str | CompileFailed | Rejected:
        if (refused := refuse(source)) is not None:
            return refused
        with _program(source.source, source.entry, [*self._options_of(source), LINES]) as (program, failure, log):
            return CompileFailed(first_error(log or failure), log[:MAX_LOG]) if failure else _assembly(program)

    def _options_of(self, source: Specialised) -> list[str]:
        architecture = f"--gpu-architecture={_target(self.arch, source.source)}"
        cap = [f"--maxrregcount={source.max_registers}"] if source.max_registers else []
        return [architecture, *self._options, *cap, *(["--use_fast_math"] if source.fast_math else [])]

    @contextmanager
    def _compiled(self, source: Specialised) -> Iterator[tuple[Any, str, str]]:
        """As `_program`, with precompiled headers and a shorter prelude where they do."""
        options = self._options_of(source)
        text, headers = self._with_headers(source)
        with _program(text, source.entry, [*options, *self._shorter, *headers]) as made:
            if not made[1] or not self._shorter:
                yield made
                return
        # Few sources need the parts left out; a source that is wrong in any case gets the full language's error.
        with _program(source.source, source.entry, options) as made:
            yield made

    def _with_headers(self, source: Specialised) -> tuple[str, list[str]]:
        """The text of `source` and the options with which the headers it begins with are read precompiled.

        Parsing cuda_fp16.h takes as long as compiling a small kernel. NVRTC keeps the result in a file; here that
        is memory of this process, so that nothing is left behind by a process that is killed.
        """
        head = _INCLUDES.match(source.source)
        if head is None:
            return source.source, []
        key = (head["includes"], source.fast_math, _target(self.arch, source.source))
        if key not in self._precompiled:
            self._precompiled[key] = self._precompile(*key)
        file = self._precompiled[key]
        if file is None:
            return source.source, []
        text = f"{head.group()}{_HEADERS_END}{source.source[head.end() :]}"
        return text, [f"--use-pch=/proc/self/fd/{file}", "--pch-messages=false"]

    def _precompile(self, includes: str, fast_math: bool, architecture: str) -> int | None:
        """An open file in memory with these headers as NVRTC keeps them; None where it cannot (before CUDA 12.8)."""
        fast = ["--use_fast_math"] if fast_math else []
        options = [f"--gpu-architecture={architecture}", *self._options, *fast, *self._shorter]
        with tempfile.TemporaryDirectory(prefix="tunesmith-headers-") as folder:
            made = Path(folder, "headers.pch")
            options.append(f"--create-pch={made}")
            with _program(includes + _HEADERS_END, "headers", options) as (_, failure, _):
                if failure or not made.is_file():
                    return None
            file = os.memfd_create("tunesmith-headers")
            Path(f"/proc/self/fd/{file}").write_bytes(made.read_bytes())
        return file


@contextmanager
def _program(text: str, name: str, options: list[str]) -> Iterator[tuple[Any, str, str]]:
    """A program after compiling, NVRTC's answer (empty when all is well), and its log."""
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _output(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        # ptxas puts a NUL in front of some of its errors.
        text = log.replace(b"\0", b"").strip().decode(errors="replace")
        yield program, "" if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else status.name, text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _file_of(source: Specialised) -> str:
    """The name by which the compiler speaks of the template's own text."""
    named = _LINE_NAME.search(source.source)
    return named["name"] if named else f"{source.entry}.cu"


def _target(arch: str, source: str) -> str:
    """The architecture to compile `source` for. Instructions that only one architecture has need an "a" behind its
    number (PTX ISA, "Target architectures"); other sources do without, as ptxas checks other limits there. An `arch`
    that has a letter is the user's own."""
    number = arch.removeprefix("sm_")
    if not number.isdigit() or int(number) < FIRST_WITH_OWN or not _OWN_INSTRUCTIONS.search(source):
        return arch
    return f"{arch}a" if _OWN_INSTRUCTIONS.search(without_comments(source)) else arch


def _header_roots() -> list[Path]:
    """The folders of CUDA's headers, the runtime's first. Raises `CompilerUnavailable`.

    Headers that other packages have brought along are not looked for: outside Python's packages cuda.pathfinder seeks
    by means of another interpreter, in each process that compiles, and it gives up where that takes ten seconds.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    roots: list[Path] = []
    for package, folder in HEADER_PACKAGES.items():
        if any((root / folder).is_dir() for root in roots):
            continue
        try:
            found = find_nvidia_header_directory(package)
        except ChildProcessError as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise CompilerUnavailable(
                f"CUDA's headers of {package} could not be looked for outside Python's packages ({reason}): try again "
                f"when the machine is less busy, or {how_to_install('cuda13')}."
            ) from error
        if found is not None:
            roots.append(Path(found))
        elif not roots:
            raise CompilerUnavailable(INSTALL.format(what="the CUDA runtime headers are missing"))
    return roots


@functools.cache
def _accepts(arch: str, option: str) -> bool:
    """Whether this NVRTC knows an option, which takes it 40 ms to say."""
    with _program("", "empty", [f"--gpu-architecture={arch}", option]) as (_, failure, _):
        return not failure


def _checked(answer: tuple[Any, ...]) -> Any:
    from cuda.bindings import nvrtc

    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC answers with {answer[0].name} outside of compilation")
    return answer[1] if len(answer) > 1 else None


def _output(size: Callable[[Any], Any], read: Callable[[Any, bytearray], Any], program: Any) -> bytes:
    """An output of NVRTC, written into a buffer; not into `bytes`: Python shares `bytes` objects of length 1, such as
    an empty log."""
    buffer = bytearray(_checked(size(program)))
    _checked(read(program, buffer))
    return bytes(buffer)


def _assembly(program: Any) -> str:
    """The PTX of a program that was compiled."""
    from cuda.bindings import nvrtc

    return _output(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).replace(b"\0", b"").decode(errors="replace")


def first_error(log: str) -> str:
    """The first error line of NVRTC's log, which carries file and line."""
    match = _ERROR_LINE.search(log)
    lines = log.strip().splitlines()
    found = (match.group(0).strip() if match else lines[0] if lines else "the compiler gave no message")[:500]
    remedy = f"; CCCL's headers come with the package nvidia-cuda-cccl: {how_to_install('cuda13')}"
    return found + remedy if _OF_CCCL.search(found) else found


def parse_resources(log: str, entry: str) -> Resources:
    """The resources of `entry` by `ptxas -v`: registers per thread, static shared memory per block, stack and spilled
    bytes per thread. A field is None when the log does not tell."""
    start = log.find(f"Compiling entry function '{entry}'")
    if start < 0:
        return Resources()
    # Until the next kernel; properties of functions that were not inlined come before the kernel's own.
    section = log[start:].split("Compiling entry function")[1]
    used, shared = _USED.search(section), _SHARED.search(section)
    stack = _STACK.search(section, max(0, section.find(f"Function properties for {entry}\n")))
    return Resources(
        registers=int(used.group(1)) if used else None,
        shared=int(shared.group(1)) if shared else 0,
        local=int(stack.group(1)) if stack else None,
        spills=int(stack.group(2)) + int(stack.group(3)) if stack else None,
    )
