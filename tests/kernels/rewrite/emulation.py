"""Runs kernels on the CPU: those of OpenCL on its device, those of CUDA as C++ with a shim, the threads of a block as
fibers that meet at barriers.

The shim executes what a kernel says, in one order of many; it says nothing of speed, and of races only what that order
shows.
"""

import atexit
import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
def emulated(sources: tuple[str, ...], entry: str) -> list[Any]:
    """For each CUDA source the function that runs its kernel `entry`: it takes the extents of grid and block, and what
    the kernel takes. They are compiled in one go, as the compiler takes longer to start than for a kernel."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    header, made = shim(compiler)
    file = made.with_name(f"kernels{len(os.listdir(made.parent))}.cpp")
    file.write_text("".join(as_cpp(one, entry, number) for number, one in enumerate(sources)))
    # What they call the shim has, or the libraries that the shim is linked with.
    linked = ["-shared", "-nostdlib", "-o", f"{file}.so", str(file), str(made)]
    build([compiler, *KERNEL_OPTIONS, "-include", str(header), *linked])
    library = ctypes.CDLL(f"{file}.so")
    return [library[f"run_{number}"] for number in range(len(sources))]


def as_cpp(source: str, entry: str, number: int) -> str:
    """A CUDA source in a namespace of its own, with the function `run_NUMBER`; behind it none of its macros is left."""
    source = re.sub(r"#include <cuda\w+\.h>", "", source).replace('extern "C" ', "")
    shared = r"extern __shared__ ([\w ]+) (\w+)\[\](.*?);"
    source = re.sub(shared, r"static \1 (*\2)\3 = (\1 (*)\3)shim::dynamic;", source)
    declared = re.findall(rf"\b{entry}\(([^()]*)\)\s*\{{", source)[-1]
    names = ", ".join(re.findall(r"\w+(?=\s*(?:,|$))", declared))
    extents = ", ".join(f"unsigned int {which}{axis}" for which in "gb" for axis in "xyz")
    run = f"shim::run({{gx, gy, gz}}, {{bx, by, bz}}, [=] {{ {entry}({names}); }});"
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", source, re.MULTILINE)
    text = f'namespace of_{number} {{\n{source}\nextern "C" void run_{number}({extents}, {declared}) {{ {run} }}\n}}\n'
    return text + "".join(f"#undef {one}\n" for one in macros)


@functools.cache
def opencl_queue() -> Any:
    cl = pytest.importorskip("pyopencl")
    return cl.CommandQueue(cl.Context([cl.get_platforms()[0].get_devices()[0]]))


@functools.cache
def built(source: str, entry: str) -> Any:
    """Built without optimisations, which take longer than the launches here."""
    cl = pytest.importorskip("pyopencl")
    return getattr(cl.Program(opencl_queue().context, source).build(["-cl-opt-disable"]), entry)


def run_kernels(
    pairs: Sequence[tuple[Template, Config]],
    task: Task,
    workload: Workload,
    arrays: Mapping[str, Any],
    stand_ins: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The outputs of each template at its configuration, from copies of `arrays` (by argument). stand_ins: texts of the
    sources, and what takes their place."""
    sources = [specialise(template, config, workload.types).source for template, config in pairs]
    for text, other in (stand_ins or {}).items():
        assert any(text in one for one in sources)
        sources = [one.replace(text, other) for one in sources]
    on_device = pairs[0][0].backend == "opencl"
    kernels = [built(one, task.entry) for one in sources] if on_device else emulated(tuple(sources), task.entry)
    shapes = [geometry(template, config, workload) for template, config in pairs]
    run = run_on_device if on_device else run_on_host
    return [outputs(partial(run, *both), task, workload, arrays) for both in zip(kernels, shapes, strict=True)]


def outputs(
    run: Callable[[list[Any]], None], task: Task, workload: Workload, arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """What `run` leaves in copies of the arrays; it takes a kernel's arguments."""
    copies = {name: np.array(value, copy=True) for name, value in arrays.items()}
    scalars = [one for one in task.arguments if one.role == "scalar"]
    types = {one.name: np.dtype(task.dtype_of(one, workload)).type for one in scalars}
    given = copies | {one.name: types[one.name](task.scalar_of(one, workload)) for one in scalars}
    run([given[one.name] for one in task.arguments])
    return {one.name: copies[one.name] for one in task.outputs}


def run_on_host(kernel: Any, where: Geometry, arguments: list[Any]) -> None:
    passed = [
        one.ctypes.data_as(ctypes.c_void_p) if one.ndim else np.ctypeslib.as_ctypes_type(one.dtype)(one.item())
        for one in arguments
    ]
    kernel(*map(ctypes.c_uint, (*where.grid, *where.block)), *passed)


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
