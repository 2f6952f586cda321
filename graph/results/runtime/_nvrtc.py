"""Compiles CUDA sources with NVRTC, through ctypes alone: for GPUs that the machine code here is not for.

NVRTC comes with PyTorch, with CuPy's wheels (nvidia-cuda-nvrtc) or with a CUDA toolkit. What was compiled is kept in
~/.cache (XDG_CACHE_HOME), by the content of source and options.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import hashlib
import os
import sys
import tempfile
from typing import Any


class CompilationError(RuntimeError):
    """A source does not compile, or there is no NVRTC; the message says which."""


def compile_source(source: str, arch: str, fast_math: bool, max_registers: int, package: str) -> bytes:
    """The machine code (bytes) of `source` for `arch`, such as "sm_90", with the options it was measured with.

    fast_math: relaxed arithmetic; max_registers: cap per thread, 0 for none; package: names the folder of the cache.
    """
    # From 9.0 on an "a" allows the instructions that only this architecture has.
    target = f"{arch}a" if int("".join(filter(str.isdigit, arch))) >= 90 else arch
    options = [f"--gpu-architecture={target}", "--std=c++17", "--no-source-include"]
    if fast_math:
        options.append("--use_fast_math")
    if max_registers:
        options.append(f"--maxrregcount={max_registers}")
    library, folder = _library()
    key = hashlib.sha256("\0".join([source, *options, folder]).encode()).hexdigest()
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), package)
    path = os.path.join(cache, f"{key}.cubin")
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return file.read()
    headers = [f"--include-path={folder}" for folder in _headers()]
    code = _compile(library, source, [*options, *headers])
    try:
        os.makedirs(cache, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as made:
            made.write(code)
        os.replace(made.name, path)
    except OSError as error:
        print(f"{package}: what was compiled is not kept in {cache}: {error.strerror}.", file=sys.stderr)
    return code


def _library() -> tuple[Any, str]:
    """NVRTC, and where it was found."""
    found = [path for folder in _nvidia("lib") for path in glob.glob(os.path.join(folder, "libnvrtc.so.1?"))]
    found += [f"libnvrtc.so.{major}" for major in (13, 12)]
    if general := ctypes.util.find_library("nvrtc"):
        found.append(general)
    for name in found:
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    raise CompilationError(
        "NVRTC is not installed, and the machine code here is for another GPU: install nvidia-cuda-nvrtc."
    )


def _headers() -> list[str]:
    roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)] + ["/usr/local/cuda"]
    found = [*_nvidia("include"), *(os.path.join(root, "include") for root in roots)]
    kept = [folder for folder in found if os.path.isfile(os.path.join(folder, "cuda_fp16.h"))]
    return [path for folder in kept for path in (folder, os.path.join(folder, "cccl"))]


def _nvidia(kind: str) -> list[str]:
    """Folders of NVIDIA's wheels, which are laid out by component before CUDA 13 and together from then on."""
    return [path for root in sys.path for path in sorted(glob.glob(os.path.join(root, "nvidia", "*", kind)))]


def _compile(library: Any, source: str, options: list[str]) -> bytes:
    def call(name: str, *arguments: Any) -> int:
        status: int = getattr(library, name)(*arguments)
        if status != 0 and name != "nvrtcCompileProgram":
            raise CompilationError(f"{name} fails with status {status}.")
        return status

    program = ctypes.c_void_p()
    call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        size = ctypes.c_size_t()
        if call("nvrtcCompileProgram", program, len(options), texts) != 0:
            call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            call("nvrtcGetProgramLog", program, log)
            raise CompilationError(f"The source does not compile ({options[0]}):\n{log.value.decode(errors='replace')}")
        call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        call("nvrtcGetCUBIN", program, code)
        return code.raw
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))
