"""Runs kernels on the CPU: those of OpenCL on its device, those of CUDA as C++ with a shim, the threads of a block as
fibers that meet at barriers.

The shim executes what a kernel says, in one order of many; it says nothing of speed, and of races only what that order
shows.
"""

import atexit
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.launch.contents import draw
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry, Task, Workload, geometry
from tunesmith.kernels.spec.template import Config, Template

SHIM = Path(__file__).with_name("shim")
TENSOR_CORES = (SHIM / "tensor_cores.hpp").read_text(encoding="utf-8")
"""In place of the kit's copies.cuh and fragments.cuh, whose functions are assembly."""
OPTIONS = ("-std=c++17", "-O0", "-w", "-fPIC")
KERNEL_OPTIONS = (*OPTIONS, "-nostdinc++")
"""Without the C++ library, which takes compiler and linker several times as long as a kernel does."""


@functools.cache
def shim(compiler: str) -> tuple[Path, Path]:
    """The shim as a compiled header and a library, made once. The library alone uses that of C++."""
    folder = Path(tempfile.mkdtemp(prefix="tunesmith-shim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header, made = Path(shutil.copy(SHIM / "shim.hpp", folder)), folder / "libshim.so"
    build([compiler, *KERNEL_OPTIONS, "-x", "c++-header", "-o", f"{header}.gch", str(header)])
    # Some distributions' compilers check that jumps stay on one stack.
    build([compiler, *OPTIONS, "-O1", "-U_FORTIFY_SOURCE", "-shared", "-o", str(made), str(SHIM / "shim.cpp")])
    return header, made


def build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[:2000]


@functools.cache
def emulated(source: str, entry: str) -> Any:
    """The function that runs the CUDA kernel `entry` of a source: it takes the extents of grid and block, and what the
    kernel takes."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    header, made = shim(compiler)
    source = re.sub(r"#include <cuda\w+\.h>", "", source)
    shared = r"extern __shared__ ([\w ]+) (\w+)\[\](.*?);"
    source = re.sub(shared, r"static \1 (*\2)\3 = (\1 (*)\3)shim::dynamic;", source)
    declared = re.findall(rf"\b{entry}\(([^()]*)\)\s*\{{", source)[-1]
    names = ", ".join(re.findall(r"\w+(?=\s*(?:,|$))", declared))
    extents = ", ".join(f"unsigned int {which}{axis}" for which in "gb" for axis in "xyz")
    source += f'\nextern "C" void shim_run({extents}, {declared}) '
    source += f"{{ shim::run({{gx, gy, gz}}, {{bx, by, bz}}, [=] {{ {entry}({names}); }}); }}\n"
    file = made.with_name(f"kernel{len(list(made.parent.iterdir()))}.cpp")
    file.write_text(source)
    # What it calls the shim has, or the libraries that the shim is linked with.
    linked = ["-shared", "-nostdlib", "-o", f"{file}.so", str(file), str(made)]
    build([compiler, *KERNEL_OPTIONS, "-include", str(header), *linked])
    return ctypes.CDLL(f"{file}.so").shim_run


@functools.cache
def opencl_queue() -> Any:
    cl = pytest.importorskip("pyopencl")
    return cl.CommandQueue(cl.Context([cl.get_platforms()[0].get_devices()[0]]))


@functools.cache
def built(source: str, entry: str) -> Any:
    """Built without optimisations, which take longer than the launches here."""
    cl = pytest.importorskip("pyopencl")
    return getattr(cl.Program(opencl_queue().context, source).build(["-cl-opt-disable"]), entry)


def run_kernel(
    template: Template,
    config: Config,
    task: Task,
    workload: Workload,
    arrays: Mapping[str, Any],
    stand_ins: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The outputs of `template` at `config`, from copies of `arrays` (by argument). stand_ins: texts of the source, and
    what takes their place."""
    source = specialise(template, config, workload.types).source
    for text, other in (stand_ins or {}).items():
        assert text in source
        source = source.replace(text, other)
    where = geometry(template, config, workload)
    copies = {name: np.array(value, copy=True) for name, value in arrays.items()}
    arguments: list[Any] = []
    for argument in task.arguments:
        if argument.role != "scalar":
            arguments.append(copies[argument.name])
        else:
            value, dtype = task.scalar_of(argument, workload), task.dtype_of(argument, workload)
            arguments.append(np.dtype(dtype).type(value if dtype == "float32" else int(value)))
    if template.backend == "opencl":
        run_on_device(built(source, task.entry), where, arguments)
    else:
        passed = [
            one.ctypes.data_as(ctypes.c_void_p) if one.ndim else np.ctypeslib.as_ctypes_type(one.dtype)(one.item())
            for one in arguments
        ]
        emulated(source, task.entry)(*map(ctypes.c_uint, (*where.grid, *where.block)), *passed)
    return {one.name: copies[one.name] for one in task.outputs}


def run_on_device(kernel: Any, where: Geometry, arguments: list[Any]) -> None:
    """Arrays among the arguments are given back in place."""
    import pyopencl as cl

    queue = opencl_queue()
    held = {at: one for at, one in enumerate(arguments) if one.ndim}
    buffers = {at: cl.Buffer(queue.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=one) for at, one in held.items()}
    threads = tuple(grid * block for grid, block in zip(where.grid, where.block, strict=True))
    kernel(queue, threads, where.block, *(buffers.get(at, one) for at, one in enumerate(arguments)))
    for at, one in held.items():
        cl.enqueue_copy(queue, one, buffers[at])


def contents(task: Task, workload: Workload, seed: int) -> dict[str, Any]:
    """Random arrays for every argument, which keep to their fill where it has ends; outputs hold NaN, or -1 where they
    are whole numbers."""
    rng, found = np.random.default_rng(seed), {}
    for argument in task.arguments:
        if argument.role != "scalar":
            shape, dtype = task.shape_of(argument, workload), task.dtype_of(argument, workload)
            floats, storage = DTYPES[dtype].is_float, DTYPES[dtype].storage
            if argument.role == "out":
                found[argument.name] = np.full(shape, np.nan if floats else -1).astype(storage)
            elif argument.fill.high is not None:
                found[argument.name] = draw("task", argument.fill.at(workload), shape, dtype, rng).reshape(shape)
            elif floats:
                found[argument.name] = rng.standard_normal(shape).astype(storage)
            else:
                found[argument.name] = rng.integers(-100 if dtype == "int8" else 0, 100, shape).astype(storage)
    return found
