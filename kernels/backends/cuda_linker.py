"""PTX to a cubin for one architecture, by nvJitLink; needs neither a GPU nor a driver.

Owns assembling PTX that was changed after NVRTC made it. A driver would do it too, but not for PTX that is newer than
itself.
"""

from __future__ import annotations

from typing import Any

from tunesmith.kernels.backends._base import MAX_LOG
from tunesmith.kernels.outcome import CompileFailed

MISSING = "the library nvJitLink is not installed: install it with `pip install 'tunesmith[cuda13]'`"


class LinkerUnavailable(Exception):
    """nvJitLink is not installed; says how to install it."""


def assemble(ptx: str, arch: str, max_registers: int | None = None) -> bytes | CompileFailed:
    """The cubin of `ptx` for `arch`, such as "sm_90". max_registers: see `Specialised`. Raises `LinkerUnavailable`."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError) as error:
        # The latter is what cuda.pathfinder raises when the shared library is not to be found.
        raise LinkerUnavailable(MISSING) from error
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
        log = _log(nvjitlink, handle)
        return CompileFailed(f"nvJitLink: {log.splitlines()[0] if log else error}"[:500], log[:MAX_LOG])
    finally:
        nvjitlink.destroy(handle)


def _log(nvjitlink: Any, handle: int) -> str:
    log = bytearray(nvjitlink.get_error_log_size(handle))
    nvjitlink.get_error_log(handle, log)
    return log.replace(b"\0", b"").decode(errors="replace").strip()
