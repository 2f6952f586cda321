"""What of a file for nvcc remains when it is drafted: the device's part, which NVRTC compiles."""

from __future__ import annotations

import pytest

from tunesmith.kernels.backends.base import Compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.rewrite.device_code import device_code
from tunesmith.kernels.rewrite.draft import draft
from tunesmith.kernels.rewrite.source import Source

KERNEL = """__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = BODY;
}
"""
PLAIN = KERNEL.replace("BODY", "x[i]")


def compiles(compiler: Compiler, code: str) -> bool:
    """Whether the draft of a task for the kernel k of `code` has a baseline that compiles."""
    made = compiler.compile(Specialised("cuda", "k", draft(code, None, "my.cu").files["baseline.cu"]))
    assert isinstance(made, Artifact), made
    return True


@pytest.mark.parametrize(
    "host",
    [
        "int main() { return 0; }",
        "void launch(const float* x, float* y, int n) { k<<<n, 256>>>(x, y, n); }",
        'extern "C" void launch(const float* x, float* y, int n) { k<<<n, 256>>>(x, y, n); }',
        'extern "C" {\nvoid launch();\n}',
        "static inline int blocks(int n) { return (n + 255) / 256; }",
        "__host__ int blocks(int n) { return (n + 255) / 256; }",
        "template <typename T> T blocks(T n) { return (n + 255) / 256; }",
        "void launch(float* x) { each(x, [=] __device__(int i) { return x[i]; }); }",
        "namespace own { void launch(cudaStream_t stream); }",
        "#ifdef OWN\nvoid one();\n#else\nvoid other();\n#endif",
        "#define CHECK(x) check(x)\nvoid check(int x) { }\nvoid launch() { CHECK(1); }",
        # It has the name of a function of the device.
        "__device__ float half_of(float v) { return v / 2; }\nint half_of(int v) { return v / 2; }",
    ],
)
def test_functions_of_the_host_are_left_out(host: str, compiler: Compiler) -> None:
    made = device_code(f"{PLAIN}{host}\n")
    assert made.notes[0].startswith("Left out, as it runs on the host: ")
    assert compiles(compiler, f"{PLAIN}{host}\n")


@pytest.mark.parametrize(
    "mark",
    ["__device__", "__host__ __device__ inline", "DEVICE", "#ifdef X\n#define ALL __device__\n#endif\nALL"]
    + ["#ifdef A\n#define HD __host__ __device__\n#else\n#define HD\n#endif\nHD"],
)
def test_functions_of_the_device_stay(mark: str) -> None:
    code = f"#define DEVICE __device__ __forceinline__\n{mark} float twice(float v) {{ return v + v; }}\n{PLAIN}"
    assert device_code(code) == device_code(device_code(code).text)
    assert device_code(code).text == code and device_code(code).notes == ()


def test_what_the_kernel_calls_becomes_a_function_of_the_device(compiler: Compiler) -> None:
    code = "constexpr int half_of(int v) { return v / 2; }\nconstexpr int f(int v) { return half_of(v); }\n"
    code += KERNEL.replace("BODY", "x[f(i)]")
    assert device_code(code).notes == ("Marked __device__, as code of the device calls it: half_of, f.",)
    assert compiles(compiler, code)


@pytest.mark.parametrize("ahead", ["", "__global__ void k(const float* x, float* y, int n);\n"])
def test_a_kernel_that_is_static_or_declared_before_becomes_external(ahead: str, compiler: Compiler) -> None:
    assert compiles(compiler, f"{ahead}static {PLAIN}")


def test_explicit_instantiations_are_left_out() -> None:
    code = "template <typename T> " + PLAIN.replace("float", "T")
    instance = "template __global__ void k<float>(const float*, float*, int);\n"
    assert device_code(code + instance).text == code
    assert device_code(code + instance).notes == ("Explicit instantiations left out: k<float>.",)
    assert "template" not in draft(code + instance, None, "my.cu").files["baseline.cu"]


def test_a_host_that_launches_kernels_is_not_the_kernels_doing() -> None:
    launch = "void launch(float* x) { k<<<1, 2>>>(x, x, 1); }"
    assert Source(PLAIN + launch).kernel("k", "here").oddities == ()
    launching = KERNEL.replace("y[i] = BODY", "k<<<1, 1>>>(x, y, n)")
    assert [one.kind for one in Source(launching).kernel("k", "here").oddities] == ["dynamic parallelism"]


HEADERS = (
    *("cstdint", "stdint.h", "float.h", "cfloat", "climits", "limits.h", "math.h", "cmath", "stddef.h", "cstddef"),
    *("assert.h", "cassert", "stdio.h", "cstdio", "cuda_runtime_api.h", "cuda.h", "string", "stdlib.h", "vector"),
)


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_the_host_are_no_hindrance(header: str, compiler: Compiler) -> None:
    code = f"#include <{header}>\n{PLAIN}"
    assert device_code(code).notes == (f"Headers left out, or replaced by CUDA's own: {header}.",)
    assert compiles(compiler, code)


@pytest.mark.parametrize(
    "body",
    [
        "(float)(int64_t)x[i] + (uint8_t)n + INT32_MAX",
        "FLT_MAX + (float)DBL_EPSILON",
        "INT_MAX + UINT_MAX + CHAR_BIT",
        "n > 3 ? INFINITY : NAN + (float)M_PI",
        "(float)(uint)n + (ushort)n",
        "(float)offsetof(float4, y)",
        pytest.param("(float)std::numeric_limits<int>::max() + (float)(std::size_t)n", marks=pytest.mark.slow),
        pytest.param("std::max(x[i], 0.0f) + std::sqrt(x[i])", marks=pytest.mark.slow),
        "assert(n), x[i]",
    ],
)
def test_names_that_nvcc_knows_without_a_header_are_known(body: str, compiler: Compiler) -> None:
    assert compiles(compiler, KERNEL.replace("y[i] = BODY", f"y[i] = ({body})"))


def test_names_of_the_source_are_its_own(compiler: Compiler) -> None:
    own = "typedef unsigned int uint32_t;\n#define INFINITY 1e30f\nusing uint = uint32_t;\n"
    code = own + KERNEL.replace("BODY", "INFINITY + (uint32_t)n + (uint)n")
    assert device_code(code).text == code and compiles(compiler, code)


def test_a_name_of_the_driver_keeps_its_header() -> None:
    assert "#include <cuda.h>" in device_code(f"#include <cuda.h>\n#if CUDA_VERSION > 12000\n#endif\n{PLAIN}").text
