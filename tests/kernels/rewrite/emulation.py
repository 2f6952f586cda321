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

DECLARED = r"""
#include <math.h>
#include <string.h>
struct Extent { unsigned int x, y, z; };
struct uint2 { unsigned int x, y; };
struct uint4 { unsigned int x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct __half { unsigned short bits; __half() = default; __half(float x); operator float() const; };
inline float __half2float(__half x) { _Float16 y; memcpy(&y, &x, 2); return y; }
inline __half __float2half_rn(float x) { const _Float16 y = x; __half to; memcpy(&to, &y, 2); return to; }
inline __half::__half(float x) { *this = __float2half_rn(x); }
inline __half::operator float() const { return __half2float(*this); }
struct __nv_bfloat16 {
    unsigned short bits;
    operator float() const { const unsigned int y = bits << 16; float x; memcpy(&x, &y, 4); return x; }
};
template <class Piece, class V> V products(V a, V b, V c) {
    for (int i = 0; i < 32; i += 8) c += (Piece)(a >> i) * (Piece)(b >> i);
    return c;
}
inline int __dp4a(int a, int b, int c) { return products<signed char>(a, b, c); }
inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) { return products<unsigned char>(a, b, c); }
template <class V> V __ldg(const V* from) { return *from; }
template <class V> V __ldcs(const V* from) { return *from; }
template <class V> void __stcs(V* to, V value) { *to = value; }
extern Extent threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
namespace shim {
void run(Extent grid, Extent dims, void (*kernel)(void*), void* given);
double exchanged(double value, unsigned int mask, unsigned int lanes);
double shifted(double value, int by, unsigned int lanes);
double of_lane(double value, int lane, unsigned int lanes);
extern char dynamic[1 << 18];
template <class Kernel> void run(Extent grid, Extent dims, Kernel kernel) {
    run(grid, dims, [](void* given) { (*static_cast<Kernel*>(given))(); }, &kernel);
}
}
void __syncthreads();
template <class V> V __shfl_xor_sync(unsigned int lanes, V value, int mask) {
    return (V)shim::exchanged((double)value, (unsigned int)mask, lanes);
}
template <class V> V __shfl_down_sync(unsigned int lanes, V value, unsigned int by) {
    return (V)shim::shifted((double)value, (int)by, lanes);
}
template <class V> V __shfl_up_sync(unsigned int lanes, V value, unsigned int by) {
    return (V)shim::shifted((double)value, -(int)by, lanes);
}
template <class V> V __shfl_sync(unsigned int lanes, V value, int lane) {
    return (V)shim::of_lane((double)value, lane, lanes);
}
inline bool __any_sync(unsigned int lanes, bool value) {
    bool any = value;
    for (int lane = 0; lane < 32; ++lane) any |= __shfl_sync(lanes, value, lane);
    return any;
}
inline bool __all_sync(unsigned int lanes, bool value) { return !__any_sync(lanes, !value); }
inline void __syncwarp(unsigned int lanes = 0xffffffffu) { __shfl_xor_sync(lanes, 0, 0); }
inline unsigned long long __cvta_generic_to_shared(const void* at) { return (const char*)at - shim::dynamic; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned int x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned int __float_as_uint(float x) { unsigned int y; memcpy(&y, &x, 4); return y; }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int which) {
    const unsigned long long both = a | (unsigned long long)b << 32;
    unsigned int found = 0;
    for (int i = 0; i < 4; ++i) found |= (unsigned int)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return found;
}
inline unsigned int max(unsigned int a, unsigned int b) { return a > b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
template <class V> V atomicAdd(V* at, V value) { V old = *at; *at += value; return old; }
"""
"""What a kernel sees."""
TENSOR_CORES = r"""
#define __CUDA_ARCH__ 800
namespace kit {
inline unsigned shared_address(const void* at) { return __cvta_generic_to_shared(at); }
template <int BYTES> void copy_later(unsigned to, const void* from, bool valid) {
    if (valid) memcpy(shim::dynamic + to, from, BYTES); else memset(shim::dynamic + to, 0, BYTES);
}
inline void close_group() {}
template <int LEFT> void wait_groups() {}
template <int N> void read_own(unsigned (&to)[N], unsigned from) { memcpy(to, shim::dynamic + from, sizeof(to)); }
inline void write_own(unsigned to, unsigned short value) { memcpy(shim::dynamic + to, &value, 2); }
template <class T> float half_of(unsigned both, int which) {
    both >>= 16 * which;
    T x;
    memcpy(&x, &both, 2);
    return (float)x;
}
// As PTX describes the fragments of m16n8k16: what each lane has of both factors, exchanged.
template <class T> void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1}, me = threadIdx.x % 32;
    unsigned all[32][6];
    for (unsigned mask = 0; mask < 32; ++mask)
        for (int i = 0; i < 6; ++i) all[me ^ mask][i] = (unsigned)__shfl_xor_sync(~0u, (double)mine[i], mask);
    for (int e = 0; e < 4; ++e)
        for (unsigned depth = 0; depth < 16; ++depth) {
            const unsigned left = me / 4 * 4 + depth % 8 / 2, right = (me % 4 * 2 + e % 2) * 4 + depth % 8 / 2;
            const int half = depth / 8, which = depth % 2;
            c[e] += half_of<T>(all[left][e / 2 + half * 2], which) * half_of<T>(all[right][4 + half], which);
        }
}
}
"""
"""In place of the kit's copies.cuh and fragments.cuh, whose functions are assembly."""
DEFINED = r"""
#include <setjmp.h>
#include <ucontext.h>
#include <vector>
Extent threadIdx, blockIdx, blockDim, gridDim;
namespace shim {
struct Barrier { unsigned int arrived = 0, turn = 0; };
struct Fiber {
    std::vector<char> stack = std::vector<char>(1 << 16);
    ucontext_t start;
    jmp_buf at;
    bool started = false, done = false;
};
static ucontext_t unused;
static jmp_buf scheduler;
static std::vector<Fiber> fibers;
static std::vector<Barrier> groups;
alignas(16) char dynamic[1 << 18];
static Barrier block;
static std::vector<double> slots;
static unsigned int current, threads;
static void (*kernel)(void*);
static void* given;
static void place(unsigned int id) {
    current = id;
    threadIdx = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
}
// Unlike swapcontext, these jumps ask the kernel for nothing, which is most of the time of a small launch.
static void yield() { if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1); }
static void resume(unsigned int id) {
    place(id);
    if (_setjmp(scheduler)) return;
    if (fibers[id].started) _longjmp(fibers[id].at, 1);
    fibers[id].started = true;
    swapcontext(&unused, &fibers[id].start);
}
static void meet(Barrier& barrier, unsigned int count) {
    const unsigned int turn = barrier.turn;
    if (++barrier.arrived == count) { barrier.arrived = 0; ++barrier.turn; } else while (barrier.turn == turn) yield();
}
static void meet_lanes(unsigned int lanes) {
    const unsigned int warp = current / 32, rest = threads - warp * 32;
    const unsigned int there = rest < 32 ? lanes & ((1u << rest) - 1) : lanes;
    meet(groups[warp * 32 + __builtin_ctz(lanes)], __builtin_popcount(there));
}
double exchanged(double value, unsigned int mask, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = slots[me ^ mask]; meet_lanes(lanes);
    return other;
}
double shifted(double value, int by, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = me % 32 + by < 32u ? slots[me + by] : value; meet_lanes(lanes);
    return other;
}
double of_lane(double value, int lane, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = slots[me / 32 * 32 + lane]; meet_lanes(lanes);
    return other;
}
// A thread of each block in turn.
static void body() { for (;;) { kernel(given); fibers[current].done = true; yield(); } }
void run(Extent grid, Extent dims, void (*what)(void*), void* with) {
    gridDim = grid; blockDim = dims; kernel = what; given = with; threads = dims.x * dims.y * dims.z;
    fibers = std::vector<Fiber>(threads);
    for (Fiber& one : fibers) {
        getcontext(&one.start);
        one.start.uc_stack.ss_sp = one.stack.data(); one.start.uc_stack.ss_size = one.stack.size();
        makecontext(&one.start, body, 0);
    }
    for (unsigned int number = 0; number < grid.x * grid.y * grid.z; ++number) {
        blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
        slots.assign(threads, 0); groups.assign(threads + 32, Barrier()); block = Barrier();
        for (Fiber& one : fibers) one.done = false;
        for (unsigned int left = threads; left;) {
            left = 0;
            for (unsigned int id = 0; id < threads; ++id)
                if (!fibers[id].done) { resume(id); left += !fibers[id].done; }
        }
    }
}
}
void __syncthreads() { shim::meet(shim::block, shim::threads); }
"""
OPTIONS = ("-std=c++17", "-O0", "-w", "-fPIC")
KERNEL_OPTIONS = (*OPTIONS, "-nostdinc++")
"""Without the C++ library, which takes compiler and linker several times as long as a kernel does."""


@functools.cache
def shim(compiler: str) -> tuple[Path, Path]:
    """The shim as a compiled header and a library, made once. The library alone uses that of C++."""
    folder = Path(tempfile.mkdtemp(prefix="tunesmith-shim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header, code, made = folder / "shim.hpp", folder / "shim.cpp", folder / "libshim.so"
    header.write_text("#pragma once\n" + DECLARED)
    code.write_text(DECLARED + DEFINED)
    build([compiler, *KERNEL_OPTIONS, "-x", "c++-header", "-o", f"{header}.gch", str(header)])
    # Some distributions' compilers check that jumps stay on one stack.
    build([compiler, *OPTIONS, "-O1", "-U_FORTIFY_SOURCE", "-shared", "-o", str(made), str(code)])
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
