"""What is drafted from files as people keep them: the kernel's part of the source, its launch, roles and shapes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from rewrite_cases import LIBRARY_NAMES, OWN, RAW_NAMES, plain_task

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.reader.draft import draft, read_kernel
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Syntax
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import read_task

SOURCES = Path(__file__).with_name("sources")
KERNEL = """__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = BODY;
}
"""
PLAIN = KERNEL.replace("BODY", "x[i]")
GENERIC = "template <class D> void f(D d) { dim3 g, b; known(g, b, d.n); k<<<g, b>>>(d.x, d.x, d.n); }"
SAXPY = """
__global__ void saxpy(float a, const float* in, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * in[i] + y[i];
}
"""
INSTANCES = """template <class T, int B> void f(T* x, int n) { k<B, T><<<n / B, B>>>(x.data(), x, n); }
void g(Tensor x) { if (x.wide()) f<at::Half, 64>(x, 8); f<float, 32>(x, 8); }"""
LAMBDA = """void f(at::Tensor x, int m) { const int T = 32; AT_DISPATCH(x.type(), [&] {
k<<<up(m, T), T, 0, at::stream()>>>(x.data<float>(), x.data<float>(), m); }); }
"""
SPREAD = "void spread(int& block) { block = 256; }\n"
TWO = "struct Two { int p; float q; };"
UP = "int up(int a, int b) { return (a + b - 1) / b; }"
HOSTS = {"N ": "void f(float* x, int n) { ", "A ": "void f(float* x, int a, int b) { "}
PLANE = """__global__ void k(const float* x, float* y, int w, int h) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (GUARD) y[j * w + i] = x[j * w + i];
}
"""


@functools.cache
def files(code: str, entry: str | None) -> dict[str, str]:
    return draft(code, entry, "my.cu")[1]


def baseline(code: str, entry: str = "k") -> str:
    return files(code, entry)["baseline.cu"]


def line(code: str, name: str, entry: str | None = None) -> str:
    """The line of a draft that says what `name` is."""
    task = files(code, entry)["task.toml"]
    return next(line for line in task.splitlines() if f'name = "{name}"' in line or line.startswith(f"{name} = "))


def compiles(nvrtc: Any, code: str) -> bool:
    # Behind a line of its own a header is not precompiled, which for one use takes longer than it saves.
    made = nvrtc.compile(Specialised("cuda", "k", f"#define DRAFTED\n{baseline(code)}"))
    assert isinstance(made, Artifact), made
    return True


def of_host(code: str) -> str:
    return re.sub("^[NA] ", lambda one: HOSTS[one[0]], code, flags=re.MULTILINE)


class TestRolesAndShapes:
    @pytest.mark.parametrize("name", [one for one in [*OWN, *RAW_NAMES, *LIBRARY_NAMES] if one != "early"])
    def test_roles_are_those_that_a_person_gave(self, name: str) -> None:
        task = plain_task(name)
        types = {one: "float" for one in task.types} | {f"{one}_IS_FLOAT32": "1" for one in task.types}
        read = read_kernel(task.sources("cuda").baseline.template.source, name, "my.cu", (), types)
        arrays = {one.name: one for one in task.arguments if one.role != "scalar"}
        assert read.facts.roles == {one: argument.role for one, argument in arrays.items()}
        if name in ("int8_quant", "layernorm", "silu_and_mul", "softmax", "gemm", "stencil3x3", "transpose"):
            assert read.facts.shapes == {one: argument.shape for one, argument in arrays.items()}

    @pytest.mark.parametrize(
        ("body", "role"),
        [
            ("p[threadIdx.x] = 1;", "out"),
            ("int k = 8; if (k) *p = 1;", "out"),
            ("p[(int)q[0]] = 1;", "inout"),
            ("if (threadIdx.x > 0) p[threadIdx.x] = 1;", "inout"),
            ("if (q[0] > 0) p[threadIdx.x] = 1; else p[threadIdx.x] = 2;", "out"),
            ("int i = threadIdx.x; if (q[0] > 0) p[i] = 1; else { if (q[1] > 0) p[i] = 2; else p[i] = 3; }", "out"),
            ("int i = threadIdx.x; if (q[0] > 0) p[i] = 1; else if (q[1] > 0) p[i] = 2;", "inout"),
            ("int i = threadIdx.x; if (q[0] > 0) p[i] = 1; else { if (q[1] > 0) return; p[i] = 2; }", "inout"),
            ("int i = threadIdx.x; if (q[0] > 0) p[i] = 1; else p[255 - i] = 2;", "inout"),
            ("int i = threadIdx.x; if (q[0] > 0) { p[i] = 1; return; } p[i] = 2;", "out"),
            ("int i = threadIdx.x; if (q[0] > 0) { p[i] = 1; return; } if (q[1] > 0) return; p[i] = 2;", "inout"),
            ("int i = threadIdx.x; if (q[0] > 0) return; p[i] = 2; return;", "inout"),
            ("p[threadIdx.x] = 1; p[threadIdx.x] += q[0];", "out"),
            ("\n#pragma unroll\nfor (int i = 0; i < 4; ++i) p[4 * threadIdx.x + i] = 1;", "out"),
            ("atomicAdd(p + 1, 1.0f);", "inout"),
            ("float* r = p + 4; r[(int)threadIdx.x - 4] = 2;", "out"),
            ("float* r = &p[4]; float x = r[1];", "in"),
            ("float4* r = (float4*)p; r[threadIdx.x] = make_float4(1, 2, 3, 4);", "out"),
            ("set(p[threadIdx.x], 2);", "out"),
            ("float* r = q[0] > 0 ? p : other; r[threadIdx.x] = 2;", "inout"),
            ("for (int i = 0; i < n; ++i) { if (q[i] > 0) break; p[i] = 1; }", "inout"),
            ("auto f = [&](int i) { p[i] = 1; }; f(threadIdx.x);", "out"),
            ("p[threadIdx.x] = p[threadIdx.x - 2000];", "inout"),
        ],
    )
    def test_out_only_where_every_element_is_written_for_certain(self, body: str, role: str) -> None:
        code = "__device__ void set(float& at, int v) { at = v; } __device__ void put(float to[1]) { to[0] = 1; }\n"
        code += f"__global__ void k(float* p, const float* q, float* other, int n) {{ {body} other[0] += 1; }}"
        assert read_kernel(code, None, "my.cu").facts.roles["p"] == role

    def test_what_inline_assembly_may_do_is_asked(self) -> None:
        assert "FILL: the role of p" in line('__global__ void k(float* p) { asm("x" :: "l"(p)); }', "p")

    @pytest.mark.parametrize(
        ("guard", "shape"),
        [("i < w && j < h", '["h", "w"]'), ("i > 0 && i < w - 1 && j > 0 && j < h - 1", '["h", "w"]')],
    )
    def test_a_stencil_has_the_shape_of_its_image(self, guard: str, shape: str) -> None:
        made = line(PLANE.replace("GUARD", guard), "y")
        assert f"shape = {shape}" in made and ("inout" in made) is ("w - 1" in guard)

    @pytest.mark.parametrize(
        ("index", "shape"),
        [("i / 64", "ceil_div(n, 64)"), ("2 * i + 1", "2 * n"), ("i+m-1", "m + n - 1"), ("i % 32", ""), ("i / m", "")],
    )
    def test_a_shape_is_that_of_the_largest_index(self, index: str, shape: str) -> None:
        code = PLAIN.replace("x[i]", f"x[{index}]").replace("int n", "int n, int m")
        found = read_kernel(code, None, "my.cu").facts
        if not shape:
            # No product of sizes: something is asked, or the shape is large enough.
            assert "x" in found.questions or found.shapes["x"] == ("32",) or "ceil_div" in found.shapes["x"][0]
        else:
            assert found.shapes["x"] == (shape,)

    @pytest.mark.parametrize(("index", "shape"), [("i", "a * b"), ("i % a", "b, a"), ("i / b", "a, b")])
    def test_rows_are_what_indices_are_divided_by_and_without_any_a_shape_is_flat(self, index: str, shape: str) -> None:
        head = "__global__ void k(float* y, const float* x, int a, int b) { int i = blockIdx.x * 64 + threadIdx.x;"
        text = line(f"{head} if (i < a * b) y[i] = x[{index}]; }}", "y")
        assert 'role = "out"' in text and f'shape = ["{shape}"]' in text.replace('", "', ", ")

    def test_what_counts_up_to_an_index_is_ahead_of_a_row(self) -> None:
        head = "__global__ void k(float* y, const float* x, int n, int at) { int i = blockIdx.x * 64 + threadIdx.x;"
        text = line(f"{head} if (i < n) y[i] = x[at * n + i]; }}", "x")
        assert 'shape = ["at + 1", "n"]' in text

    @pytest.mark.parametrize("share", ["m / 4096", "m >> 12"])
    def test_what_a_large_constant_divides_is_run_beyond_it(self, share: str) -> None:
        head = "__global__ void k(float* y, const float* x, int m, int n) { int i = blockIdx.x * 64 + threadIdx.x;"
        text = line(f"{head} if (i < n) for (int j = 0; j < max({share}, 1); ++j) y[i] = x[j * n + i]; }}", "x")
        assert "FILL: the shape of x, an expression" in text

    def test_a_grid_over_a_product_of_many_sizes_is_run_on_smaller_ones(self) -> None:
        index = "((blockIdx.z * c + blockIdx.y) * m + i / n) * n + i % n"
        code = PLAIN.replace("x[i]", f"x[{index}]").replace("int n", "int b, int c, int e, int m, int n")
        code = code.replace("i < n", "i / n < m")
        code += "void f(float* x, int b, int c, int e, int m, int n) { dim3 g((m * n + 255) / 256, c, b); "
        task = draft(code + "k<<<g, 256>>>(x, x, b, c, e, m, n); }", None, "my.cu")[1]["task.toml"]
        assert 'name = "x", role = "in", dtype = "float32", shape = ["b", "c", "m", "n"]' in task

    def test_an_array_that_the_kernel_does_not_name_is_read_without_a_question(self) -> None:
        spare = line(PLAIN.replace("float* y", "float* y, float* spare"), "spare")
        assert spare.endswith('role = "in", dtype = "float32", shape = ["1"] },')

    def test_sizes_that_a_kernel_needs_multiples_of_are_required(self) -> None:
        code = PLAIN.replace("if (i < n) ", "") + "void f(float* x, int n) { k<<<n / 128, 128>>>(x, x, n); }"
        task = draft(code, None, "my.cu")[1]["task.toml"]
        assert 'requires = ["n % 128 == 0"]' in task and 'role = "out", dtype = "float32", shape = ["n"]' in task

    def test_scalars_that_are_no_sizes_stay_scalars(self) -> None:
        code = KERNEL.replace("BODY", "x[i] - zero").replace("int n", "int n, int zero = -3")
        assert 'value = "-3" },  # FILL: the value of zero' in line(code, "zero")


class TestLaunch:
    @pytest.mark.parametrize(
        ("host", "grid", "block"),
        [
            ("#define T 96\nN k<<<(n + T - 1) / T, T>>>(x, x, n); }", "ceil_div(n, 96)", "96"),
            ("N dim3 block(32, 8), grid(n / 32); k<<<grid, block>>>(x, x, n); }", "n // 32", "32, 8"),
            ("N int t = 64; k<<<n / t + (n % t > 0), t>>>(x, x, n); }", "ceil_div(n, 64)", "64"),
            ("A int n = a * b; k<<<(n % 8 != 0) ? (n / 8 + 1) : (n / 8), 8>>>(x, x, n); }", "ceil_div(n, 8)", "8"),
            ("#define RUN(m) k<<<m, 8>>>(x, x, m)\nN if (n) RUN(n); else RUN(n); }", "n", "8"),
            ("A int t = 8 * 32; int n = a * b; k<<<(n - 1) / t + 1, t>>>(x, x, n); }", "ceil_div(n, 256)", "256"),
            (f"{UP}\nN k<<<up(n, 8), 8>>>(x, x, n); }}", "ceil_div(n, 8)", "8"),
            ("N void* a[] = {&x, &x, &n}; cudaLaunchKernel(k, dim3(n), 64, a, 0, 0); }", "n", "64"),
            ("N thrust::v<int> v; cudaMalloc(&x, n); k<<<ceil(n / 64.0), 64>>>(x, x, n); }", "ceil_div(n, 64)", "64"),
            (LAMBDA + UP, "ceil_div(n, 32)", "32"),
            (
                "void f(at::Tensor x, int n) { auto y = p<float*>(x()); dim3 g(n / 32), b(32); k<<<g, b>>>(y, y, n); }",
                "n // 32",
                "32",
            ),
            ("void f(float* x, const dim3& d) { k<<<d.y / 32, 32>>>(x, x, d.x); }", "d_y // 32", "32"),
            ("A int m = a; k<<<max(m / 64, 1), min(m, 64)>>>(x, x, 8); }", "max(a // 64, 1)", '"min(a, 64)"'),
        ],
    )
    def test_that_of_the_host(self, host: str, grid: str, block: str) -> None:
        assert f'launch = {{ grid = ["{grid}"], block = [{block}] }}' in line(PLAIN + of_host(host), "launch")

    @pytest.mark.parametrize(
        ("host", "question"),
        [
            ("", "the launch, as the source has none"),
            ("void f(float* x, int n, dim3 g) { k<<<g, g>>>(x, x, n); }", "the launch, as the source has <<<g, g>>>"),
            ("void f(float* x, int n, int t) { k<<<n, t>>>(x, x, n); }", "the block, which the source launches with t"),
            ("N k<<<n, 64>>>(x, x, n); k<<<n, 32>>>(x, x, n); }", "which launch you mean"),
            ("#define RUN(m, l) m l(0);\nN RUN(k, <<<n, 64>>>) }", "the launch, as the source has <<<n, 64>>>"),
            ("N k<<<64, 64>>>(x, x, n); }", "the grid, which the source launches as 64"),
            ("N dim3 g = up(n); OK((k<<<g, 8>>>(x, x, n))); }", "the launch, as the source has <<<g, 8>>>"),
            ("N int g = up(n) / 2; k<<<g, 64>>>(x, x, n); }", "whether g is a size of its own, which the source"),
            ("N int g = min(a_few, n); k<<<g, 64>>>(x, x, n); }", "whether g is a size of its own, which the source"),
            ("N dim3 g, b; spread(n, &g, &b); k<<<g, b>>>(x, x, n); }", "the launch, as the source has <<<g, b>>>"),
            (SPREAD + "N int b = 1; spread(b); k<<<n, b>>>(x, x, n); }", "the block, which the source launches with b"),
            ("N dim3 g, b; known(g, b, n); k<<<g, b>>>(x, x, n); }", "the launch, as the source has <<<g, b>>>"),
            (f"void known(dim3& a, dim3& b, int n);\n{GENERIC}", "the launch, as the source has <<<g, b>>>"),
            ("N dim3 b(8, 1); dim3 g = up(n); k<<<g, b>>>(x, x, n); }", "the launch, as the source has <<<g, b>>>"),
            (
                "N hipLaunchKernelGGL((k), dim3(n), dim3(8), 0, 0, x, x, n); }",
                "the launch, as the source has <<<dim3(n), ",
            ),
        ],
    )
    def test_what_is_not_said_is_asked(self, host: str, question: str) -> None:
        assert f"# FILL: {question}" in line("#define OK(a) a\n" + PLAIN + of_host(host), "launch")

    @pytest.mark.parametrize(
        ("stride", "head", "tail", "launched"),
        [
            ("128", "", "", "[128]"),
            ("B", "#define B (96)\n#define RUN(m, l) m l(0);\n", "N RUN(k, <<<n, B>>>) }", "[96]"),
            ("128", "constexpr int B = 2 * 64;\n", "N dim3 b(B), g = up(n); k<<<g, b>>>(x, x, n, n); }", "[128]"),
            ("128", "#define B 4096\n", "N dim3 b(B), g = up(n); k<<<g, b>>>(x, x, n, n); }", "[128]"),
            ("128", "#define B 0\n", "N dim3 b(B), g = up(n); k<<<g, b>>>(x, x, n, n); }", "[128]"),
            ("blockDim.x", "constexpr int B = 32;\n", "N dim3 b(B, 1), g = up(n); k<<<g, b>>>(x, x, n, n); }", "[32]"),
            (
                "blockDim.x",
                "",
                "N dim3 b(512); hipLaunchKernelGGL((k), dim3(up(n)), dim3(b), 0, 0, x, x, n, 1); }",
                "[512]",
            ),
            ("t", "", "", "[256]"),
        ],
    )
    def test_blocks_write_nothing_twice(self, stride: str, head: str, tail: str, launched: str) -> None:
        code = PLAIN.replace("blockDim.x", stride).replace("int n", "int n, int t") + of_host(tail)
        grid = f'["ceil_div(n, {launched[1:-1]})"]'
        assert f"grid = {grid}, block = {launched} }}  # FILL: the launch" in line(head + code, "launch")
        if stride == "t":
            assert 'value = "256" },  # FILL: whether t is the number of threads of a block' in line(code, "t")

    @pytest.mark.parametrize(
        ("before", "required"), [("i ? i - 1 : i + 1", ['requires = ["n >= 2"]']), ("i ? i - 1 : i", []), ("i", [])]
    )
    def test_a_size_of_one_has_no_neighbours(self, before: str, required: list[str]) -> None:
        task = files(KERNEL.replace("BODY", f"x[i] + x[{before}]"), None)["task.toml"]
        assert [line for line in task.splitlines() if line.startswith("requires")] == required

    def test_what_a_kernel_never_reads_is_not_asked_and_where_it_begins_is_no_size(self) -> None:
        code = PLAIN.replace("int n", "int n, float spare = 0.5f, int more = 3")
        assert line(code, "spare").endswith('value = "0.5" },') and line(code, "more").endswith('value = "3" },')
        code = PLAIN.replace("int n", "int n, int rowStart").replace("(i", "(i >= rowStart && i")
        assert "FILL: the value of rowStart" in line(code, "rowStart") and "rowStart" not in line(code, "sizes")

    def test_a_block_of_the_source_holds_where_no_run_uses_its_threads(self) -> None:
        code = "__global__ void k(float* y, int n) { for (int i = 0; i < n / 999; i++) y[32 * i + threadIdx.x] = 1; }\n"
        assert "block = [32] }  # FILL" in line(
            code + of_host("N dim3 b(32), g = up(n); k<<<g, b>>>(x, n); }"), "launch"
        )

    def test_a_grid_of_a_million_threads_is_run(self) -> None:
        code = PLAIN.replace("i < n", "i < 1024 * 1024") + of_host("N k<<<1024, 1024>>>(x, x, n); }")
        assert line(code, "y").endswith('role = "out", dtype = "float32", shape = ["1048576"] },')

    def test_a_number_that_is_looked_for_is_no_size(self) -> None:
        code = PLAIN.replace("int n", "int n, int of").replace("float* x", "float* x, const int* kinds")
        code = code.replace("i < n", "i < n && kinds[i] == of")
        assert 'value = "1" },  # FILL: the value of of' in line(code, "of")

    def test_a_block_that_shared_memory_has_room_for(self) -> None:
        code = PLAIN.replace("    if", "    __shared__ float all[128];\n    all[threadIdx.x] = 1;\n    if")
        assert "block = [128]" in line(code, "launch")

    def test_dynamic_shared_memory_is_counted(self) -> None:
        code = PLAIN.replace("    if", "    extern __shared__ float s[];\n    s[threadIdx.x] = 1;\n    if")
        host = "void f(float* x, int n) { k<<<n, 64, 64 * sizeof(float)>>>(x, x, n); }"
        given, guessed = line(code + host, "launch"), line(code, "launch")
        assert 'shared_bytes = "256" }' in given and "FILL" not in given
        assert 'shared_bytes = "1024"' in guessed and "FILL: the launch" in guessed

    def test_what_the_host_computes_of_a_size_is_no_size(self) -> None:
        code = KERNEL.replace("BODY", "turns").replace("int n", "int n, int turns")
        code += "void f(float* x, int n) { int t = n / 8; k<<<t, 8>>>(x, x, n, t); }"
        assert 'value = "n // 8" },' in line(code, "turns")
        assert 'grid = ["n // 8"], block = [8] }' in line(code, "launch")

    def test_a_grid_of_one_block_on_small_sizes_is_run_with_more(self) -> None:
        code = PLAIN.replace("int i = blockIdx.x * blockDim.x", "int i = blockIdx.x * 1000")
        code += "void f(float* x, int n) { k<<<(n + 1999) / 2000, 512>>>(x, x, n); }"
        assert 'shape = ["512"]' not in line(code.replace("if (i < n) ", ""), "y")


class TestSlice:
    @pytest.mark.parametrize(
        "host",
        [
            '#include <cublas_v2.h>\n#include <sys/time.h>\n#include "helper_cuda.h"\ncublasHandle_t handle;',
            "int rows, cols;\nextern cudaDeviceProp props;\nstatic unsigned *d;",
            "void k(float* x) { k<<<1, 2>>>(x, x, 1); }",
            "template <typename T> T blocks(T n) { return (n + 255) / 256; }",
            '__global__ void other(thing_t* x) { tex2D(x, 1, 2); asm(""); }',
            "__device__ float half_of(float v) { return v / 2; }\nint half_of(int v) { return v / 2; }",
        ],
    )
    def test_what_the_kernel_does_not_use_is_gone(self, host: str, nvrtc: Any) -> None:
        assert baseline(f"{host}\n{PLAIN}").strip() == 'extern "C" ' + PLAIN.strip()
        assert compiles(nvrtc, f"{host}\n{PLAIN}")

    def test_words_of_other_languages_are_left_out(self, nvrtc: Any) -> None:
        words = "#pragma acc loop seq\nregister int i"
        code = f"extern int n;\nnamespace own {{\n{PLAIN.replace('int i', words)}}}"
        assert compiles(nvrtc, code) and "extern int" not in baseline(code) and "FILL" not in line(code, "y")

    def test_numbers_of_pytorch_are_those_of_cuda(self, nvrtc: Any) -> None:
        code = PLAIN.replace("const float", "const c10::Half").replace("float* y", "at::BFloat16* y")
        assert 'dtype = "float16"' in line(code, "x") and 'dtype = "bfloat16"' in line(code, "y")
        assert compiles(nvrtc, code.replace("x[i]", "float(x[i])"))

    def test_rows_of_a_fixed_length_are_the_last_dimensions(self, nvrtc: Any) -> None:
        code = KERNEL.replace("BODY", "x[i][0][1]").replace("* y", " (*y)[3]").replace("* x", " (*x)[2][4]")
        assert compiles(nvrtc, code := code.replace("y[i]", "y[i][2]"))
        assert 'role = "in", dtype = "float32", shape = ["n", "8"] },' in line(code, "x")
        assert 'role = "inout", dtype = "float32", shape = ["n", "3"] },' in line(code, "y")

    def test_a_kernel_that_prints_is_to_be_changed(self) -> None:
        prints = PLAIN.replace("if (i < n)", 'if (i > n) printf("%d", i);\n    if (i < n)')
        said = "FILL: the printf in it: take it out"
        assert said in files(prints, None)["task.toml"] and said not in files(PLAIN + "// printf()", None)["task.toml"]

    def test_a_structure_of_a_type_has_the_type_of_the_first_launch(self) -> None:
        code = "template <class T> struct Pair { T x, y; };\n"
        code += "template <class T> __global__ void k(const Pair<T>* x, T* y) { y[threadIdx.x] = x[threadIdx.x].y; }\n"
        code += "void f(Pair<double>* x, double* y) { k<double><<<1, 8>>>(x, y); }\n"
        code += "void f(Pair<float>* x, float* y) { k<float><<<1, 8>>>(x, y); }"
        assert 'T_ = ["float64"]' in files(code, None)["task.toml"] and 'dtype = "float64"' in line(code, "x")

    def test_a_kernel_may_begin_with_a_condition_of_the_preprocessor(self, nvrtc: Any) -> None:
        bounds = "#if __CUDA_ARCH__ >= 800\n__launch_bounds__(64, 2)\n#else\n__launch_bounds__(64)\n#endif\n"
        made = nvrtc.compile(Specialised("cuda", "k", baseline(f"template <int N>\n{bounds}{PLAIN}", "k<2>")))
        assert isinstance(made, Artifact), made

    def test_a_kernel_that_is_not_followed_in_time_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tunesmith.kernels.reader.slice.MAX_SECONDS", 0.0)
        with pytest.raises(SourceError, match="to follow: move the kernel"):
            read_kernel(PLAIN, None, "my.cu")

    def test_what_it_uses_stays_in_order(self, nvrtc: Any) -> None:
        code = """#include <cooperative_groups.h>
        #include <cstdint>
        #include <vector>
        namespace cg = cooperative_groups;
        #define DEVICE __device__ __forceinline__
        #define TWICE(v) ((v) * FACTOR)
        #define FACTOR 2
        typedef float real;
        const float SCALE = 1.5f;
        enum { LEFT = 3 };
        struct Pair { real a, b; __device__ real sum() const { return a + b; } };
        __constant__ float table[2] = {1, 2}, more[2] = {3, 4};
        namespace own { template <class T> DEVICE T same(T v) { return v; } }
        using namespace own;
        constexpr int half_of(int v) { return v / 2; }
        """
        body = "same(TWICE(x[i]) * SCALE + Pair{1, 2}.sum() + table[half_of(LEFT)]); cg::sync(cg::this_thread_block())"
        code += KERNEL.replace("BODY", body).replace("int n", "int64_t n")
        assert compiles(nvrtc, code)
        assert "#include <cuda/std/cstdint>" in baseline(code) and "<vector>" not in baseline(code)

    @pytest.mark.parametrize(
        "code",
        [
            "using namespace at;\nnamespace own { namespace in { using namespace out; } }\nnamespace out { KERNEL }",
            "namespace own { __global__ void k(const float*, float*, int); }\n" + PLAIN.replace(" k(", " own::k("),
            "static int B = 96;\ntemplate <int B> " + PLAIN.replace("if (", "if (i < B && "),
            "namespace out { struct Two { int n; }; }\nnamespace own { using out::Two; KERNEL }",
            "namespace out { inline __device__ int up(int v) { return v; } }\nusing out::up;\n"
            + KERNEL.replace("BODY", "x[up(i)]"),
            "#include <cuda/std/cstdint>\nnamespace own { namespace cuda { using index = int; }\n"
            + KERNEL.replace("BODY", "x[i] + int32_t(1)").replace("int i", "cuda::index i")
            + "}",
        ],
    )
    def test_namespaces_and_names_in_two_roles_compile(self, code: str, nvrtc: Any) -> None:
        code = code.replace("KERNEL", PLAIN.replace("int n", "Two t").replace("n)", "t.n)") if "Two" in code else PLAIN)
        assert compiles(nvrtc, code)

    def test_what_nvcc_alone_sees_is_seen(self) -> None:
        code = "#if defined(__CUDACC__) && defined(USE_CUDA)\n#define LESS(a, b) ((a) < (b))\n#endif\n"
        code += PLAIN.replace("if (i < n)", '\n#if DEBUG\nprintf("%d;", (n));\n#endif\nif (LESS(i, n))')
        assert 'shape = ["n"]' in line(code, "y")

    def test_complex_numbers_are_two_numbers(self, nvrtc: Any) -> None:
        code = "#include <cufft.h>\n" + KERNEL.replace("BODY", "cuCmul(y[i], make_cuDoubleComplex(cuCabsf(x[i]), 1))")
        code = code.replace("const float*", "const cuComplex*").replace("float* y", "cufftDoubleComplex* y")
        assert 'dtype = "float64", shape = ["n", "2"]' in line(code, "y") and compiles(nvrtc, code)

    def test_what_a_host_makes_of_a_template_of_a_lost_type_says_nothing(self) -> None:
        code = "template <class S> " + KERNEL.replace("float*", "S*").replace("BODY", "x[i] * x[i]; y[i] = y[i] + x[i]")
        code += "void f(at::Tensor x, int n) { DISPATCH(x, [&] { k<<<n, 64>>>(x.data<S>(), (S*)x.data<S>(), n); }); }"
        assert "FILL" not in line(code, "x") and 'S = ["float32"]' in files(code, None)["task.toml"]

    @pytest.mark.parametrize(
        "body",
        [
            "(float)(int64_t)x[i] + (uint8_t)n + INT32_MAX",
            "FLT_MAX + (float)DBL_EPSILON + INT_MAX + CHAR_BIT",
            "n > 3 ? INFINITY : NAN + (float)M_PI + (uint)n",
            "(assert(n), x[i]) + (float)offsetof(float4, y)",
            "__half2float(__float2half(x[i])) + __half2ull_rz(__ll2half_ru(n)) + __hgt2_mask(h2tanh({}), {})",
            "(float)__hmax_nan(__uint2bfloat16_rd(n), __low2bfloat16(h2floor(__nv_bfloat162())))",
            "n + (CUDA_VERSION > 9000)",
            "CUDART_PI_F * umin(x[i], 7u)",
            "__shfl_down(x[i], 1) + __any(n) + __ballot(n)",
            'x[i]; __asm__ __volatile__("membar.gl;")',
            # The header of the former takes two seconds to compile.
            pytest.param("std::sqrt(x[i])", marks=pytest.mark.slow),
            pytest.param("std::max(x[i], 0.0f) + std::sqrt(x[i])", marks=pytest.mark.slow),
        ],
    )
    def test_names_that_nvcc_knows_without_a_header_are_known(self, body: str, nvrtc: Any) -> None:
        assert "#include <cuda/std/cmath>" in baseline(KERNEL.replace("BODY", "std::sqrt(x[i])"))
        assert compiles(nvrtc, KERNEL.replace("BODY", body))

    def test_headers_of_the_author_are_taken_where_they_are_used(self, tmp_path: Path) -> None:
        (tmp_path / "a.h").write_text("#pragma once\n#include <missing.h>\n#define TWO 2\ninline int unused();\n")
        code = '#include "a.h"\n' + KERNEL.replace("BODY", "x[i] * TWO * N")
        made = draft(code, None, str(tmp_path / "my.cu"), (), {"N": "3", "M": "4"})[1]["baseline.cu"]
        assert "#define TWO 2" in made and "#define N 3" in made and "unused" not in made and "M 4" not in made

    def test_all_that_is_missing_is_said_at_once(self) -> None:
        code = '#include "nowhere.h"\n' + KERNEL.replace("BODY", "one(x[i]) + TWO").replace("float* y", "float** y")
        with pytest.raises(SourceError) as caught:
            draft(code, None, "my.cu")
        for words in ("one (my.cu:4)", "TWO (my.cu:4)", "nowhere.h", "is a pointer to pointers"):
            assert words in str(caught.value)


class TestVectors:
    @pytest.mark.parametrize(
        ("pointed", "store", "argument"),
        [
            ("float4", "y[i] = make_float4(1, 2, 3, 4)", 'role = "out", dtype = "float32", shape = ["n", "4"]'),
            ("float4", "y[i].x = 1; y[i].z = 2", 'role = "inout", dtype = "float32", shape = ["n", "4"]'),
            ("half2", "y[i] = half2()", 'role = "out", dtype = "float16", shape = ["n", "2"]'),
            ("uchar3", "y[2 * i + 1].x = 1", 'role = "inout", dtype = "uint8", shape = ["2 * n", "3"]'),
            ("P", "y[i].a = 0; y[i].b[0] = 1; y[i].b[1] = 2", 'role = "out", dtype = "int32", shape = ["n", "3"]'),
        ],
    )
    def test_a_vector_is_a_dimension_more(self, pointed: str, store: str, argument: str) -> None:
        code = "#include <cuda_fp16.h>\nstruct P { int a, b[2]; };\n__global__ void k(POINTED* y, int n) { BODY }"
        body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {store}; }}"
        assert argument in line(code.replace("POINTED", pointed).replace("BODY", body), "y")

    @pytest.mark.parametrize("members", ["float2 a; float b", "__align__(16) float a; float b, c"])
    def test_room_between_members_is_asked_about(self, members: str) -> None:
        code = f"struct P {{ {members}; }}; __global__ void k(P* y) {{ y[threadIdx.x + blockIdx.x * 64] = P(); }}"
        asked = line(code, "y")
        assert '"4"]' in asked and "a store may change what fills up its elements" in asked

    def test_a_specialisation_of_a_template_is_chosen_by_its_values(self, nvrtc: Any) -> None:
        code = """template <class T> __global__ void k(T* y, int n) { int i = threadIdx.x; if (i < n) y[i] = T(); }
        template <> __global__ void k<float>(float* y, int n) { int i = threadIdx.x; if (i < n) y[i] += 1; }"""
        assert 'role = "out", dtype = "float64"' in line(code, "y", "k<double>")
        assert 'role = "inout", dtype = "float32"' in line(code, "y", "k<float>")
        for entry in ("k<double>", "k<float>"):
            assert isinstance(nvrtc.compile(Specialised("cuda", "k", baseline(code, entry))), Artifact)


class TestPrimitives:
    CODE = (SOURCES / "block_maximum.cu").read_text()

    @pytest.mark.slow
    def test_a_kernel_with_primitives_of_a_block_is_read_and_compiles(self, nvrtc: Any) -> None:
        assert 'role = "in", dtype = "float32", shape = ["rows", "n"]' in line(self.CODE, "x", "k")
        assert 'role = "out", dtype = "float32", shape = ["rows"]' in line(self.CODE, "y", "k")
        assert compiles(nvrtc, self.CODE)

    def test_passes_take_them_for_barriers(self) -> None:
        subject = Syntax(baseline(self.CODE), "cuda", "k")
        met = [one.op for one in subject.everything() if one.what == "call" and one.op.startswith("__syncthreads")]
        assert met == ["__syncthreads_Load", "__syncthreads", "__syncthreads_Reduce"] and not subject.problems

    def test_tensor_cores_take_float32_of_fewer_bits(self) -> None:
        code = """#include <mma.h>
using namespace nvcuda;
__global__ void k(const float* a, const float* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> z;
    wmma::fill_fragment(z, 0.0f);
    wmma::load_matrix_sync(x, a, 8);
    wmma::load_matrix_sync(y, b, 8);
    for (int i = 0; i < x.num_elements; ++i) x.x[i] = wmma::__float_to_tf32(x.x[i]);
    wmma::mma_sync(z, x, y, z);
    wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
"""
        assert "wmma::precision::tf32" in read_kernel(code, None, "k.cu").slice.text

    def test_what_a_function_takes_by_reference_may_change(self) -> None:
        code = """#include <cub/block/block_scan.cuh>
        __global__ void k(const int* x, int* y, int n) {
            typedef cub::BlockScan<int, 64> Scan; __shared__ typename Scan::TempStorage place; int at = 0;
            Scan(place).ExclusiveSum(x[threadIdx.x], at); y[at] = 1;
        }"""
        assert "the shape of y, whose indices are data" in line(code, "y")

    @pytest.mark.parametrize(
        ("change", "known"),
        [("*y = i;", True), ("atomicAdd(y, i);", True), ("q += 1;", False), ("*p += 1;", False), ("r++;", False)],
    )
    def test_a_loop_over_data_changes_what_it_assigns_to_and_no_pointer_to_it(self, change: str, known: bool) -> None:
        loop = f"for (int i = x[0]; i < x[1]; i++) if (x[i] > 0) {{ {change} }}"
        of = "int q = 0, m = 0; int *p = &q; int &r = m;"
        text = line(f"__global__ void k(const int* x, int* y) {{ {of} {loop} y[q + m] = 1; }}", "y")
        assert 'shape = ["1"]' in text and ("the shape of y" in text) is not known


class TestTemplates:
    CODE = """template <int BLOCK, typename T> __global__ void k(const T* x, T* y, int n) {
        int i = blockIdx.x * BLOCK + threadIdx.x;
        if (i < n) y[i] = x[i] + T(BLOCK);
    }
    """

    @pytest.mark.parametrize(
        ("host", "entry", "defines", "wanted"),
        [
            ("", "k<64, float>", {}, ["constexpr int BLOCK = 64;", "using T = float;", "float32"]),
            ("", "k", {"BLOCK": "32"}, ["constexpr int BLOCK = 32;", "[types]"]),
            ("N k<128><<<n / 128, 128>>>(x, x, n); }", "k", {}, ["BLOCK = 128;", "n // 128"]),
            ("N k<8><<<n, 8>>>(x, x, n); k<4><<<n, 4>>>(x, x, n); }", "k", {}, ["whether BLOCK = 8"]),
            ("", "k", {}, ["BLOCK = 256;", "whether BLOCK = 256 in it is meant, of which the source says nothing"]),
            (INSTANCES, "k", {}, ["BLOCK = 64;", 'grid = ["n // 64"], block = [64]', "the source launches <32> too"]),
        ],
    )
    def test_values_are_bound_as_a_compiler_binds_them(
        self, host: str, entry: str, defines: dict[str, str], wanted: list[str], nvrtc: Any
    ) -> None:
        files = draft(self.CODE + of_host(host), entry, "my.cu", (), defines)[1]
        assert all(one in files["baseline.cu"] + files["task.toml"] for one in wanted)
        source = "#define T float\n" * ("[types]" in str(files)) + files["baseline.cu"]
        assert isinstance(nvrtc.compile(Specialised("cuda", "k", source)), Artifact)

    def test_a_template_becomes_a_kernel_over_a_type_of_the_task(self, tmp_path: Path, nvrtc: Any) -> None:
        code = "template <typename T> __device__ T twice(T x) { return x + x; }\ntemplate <typename T>\n"
        code += KERNEL.replace("const float* x, float* y", "const T* x, T* y, T a").replace("BODY", "twice(x[i]) * a")
        code += "template __global__ void k<float>(const float*, float*, float, int);\n"
        task = read_task(written(code, tmp_path))
        assert {one.name: one.dtype for one in task.arguments} == {"x": "T_", "y": "T_", "a": "T_", "n": "int32"}
        for dtype in ("float32", "float16"):
            made = nvrtc.compile(specialise(task.sources("cuda").baseline.template, {}, {"T_": dtype}))
            assert isinstance(made, Artifact), made

    def test_shared_memory_of_a_templates_type_is_counted_by_the_name_in_the_task(self, tmp_path: Path) -> None:
        code = """template <typename T> __device__ T twice(T x) { return x + x; }
        template <typename T> __global__ void k(const T* x, T* y, int n) {
            __shared__ T row[64];
            int i = blockIdx.x * 64 + threadIdx.x;
            if (i < n) row[threadIdx.x] = twice(x[i]);
            __syncthreads();
            if (i < n) y[i] = row[threadIdx.x];
        }
        void run(float* x, float* y, int n) { k<float><<<(n + 63) / 64, 64>>>(x, y, n); }
        """
        read_task(written(code, tmp_path))
        assert 'static_shared_bytes = "64 * sizeof(T_)"' in (tmp_path / "task.toml").read_text()

    @pytest.mark.parametrize(
        ("launch", "is_asked"),
        [
            ("void run(double* x, int n) { k<double><<<n, 1>>>(x, n); }", False),
            ("template <typename F> void run(F* x, int n) { k<F><<<n, 1>>>(x, n); }", True),
            ("", True),
        ],
    )
    def test_a_type_that_no_launch_tells_is_asked_about(self, launch: str, is_asked: bool) -> None:
        code = (
            "template <typename T> __global__ void k(T* x, int n) { if (blockIdx.x < n) x[blockIdx.x] = n; }" + launch
        )
        line = next(one for one in draft(code, "k", "my.cu")[1]["task.toml"].splitlines() if one.startswith("T = "))
        assert ("FILL: the types of T" in line) is is_asked

    def test_a_product_of_sizes_does_not_tell_which_of_them_is_a_row(self) -> None:
        code = """__device__ int at(int x, int y, int z, int w, int h) { return (z * h + y) * w + x; }
        __global__ void k(float* v, int w, int h, int d) {
            int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, step = w * h;
            if (x >= w || y >= h) return;
            int i = at(x, y, 0, w, h);
            for (int z = 0; z < d; ++z, i += step) v[i] *= 2;
        }
        void run(float* v, int w, int h, int d) { k<<<dim3((w + 31) / 32, (h + 7) / 8), dim3(32, 8)>>>(v, w, h, d); }
        """
        assert 'shape = ["d", "h", "w"]' in draft(code, "k", "my.cu")[1]["task.toml"]


def written(code: str, folder: Path, *, filled: bool = True, place: str = "my.cu") -> Path:
    """Writes the draft of a task; filled: as if the user had nothing to change in it."""
    for name, text in draft(code, None, place)[1].items():
        (folder / name).write_text(re.sub("  # FILL:.*", "", text) if filled else text)
    return folder / "task.toml"


class TestTask:
    def test_what_is_not_known_is_named_line_by_line_until_nothing_is_left(self, tmp_path: Path) -> None:
        path = written(SAXPY, tmp_path, filled=False)
        for question in ("the value of a", "the launch", "the sizes you use"):
            with pytest.raises(TaskError, match=rf"task.toml, line \d+, is still .*: {question}"):
                read_task(path)
            path.write_text(re.sub(rf"  # FILL: {question}.*", "", path.read_text()))
        with pytest.raises(TaskError, match=r"reference.py, line \d+, is still to be filled in: an array for each"):
            read_task(path)
        reference = tmp_path / "reference.py"
        reference.write_text(reference.read_text().split("    return")[0] + '    return {"y": a * in_ + y}\n')
        task = read_task(path)
        assert {one.name: (one.role, one.dtype, one.shape, one.value) for one in task.arguments} == {
            "a": ("scalar", "float32", (), "1.0"),
            "in_": ("in", "float32", ("n",), None),
            "y": ("inout", "float32", ("n",), None),
            "n": ("scalar", "int32", (), "n"),
        }
        assert task.bytes == "n * sizeof(float32) + 2 * n * sizeof(float32)"

    def test_a_kernel_of_cuda_may_have_a_name_that_opencl_reserves(self, tmp_path: Path) -> None:
        for name, text in draft(PLAIN.replace("k(", "kernel("), None, "my.cu")[1].items():
            (tmp_path / name).write_text(re.sub(" *# FILL.*", "", text).replace("reference.py:kernel", "baseline"))
        assert read_task(tmp_path / "task.toml").entry == "kernel"

    @pytest.mark.parametrize(
        ("before", "old", "new", "factor", "message"),
        [
            ("int x;", SAXPY, "", "", "there is no kernel"),
            (SAXPY.replace("saxpy", "other"), "", "", "a *", "2 kernels: choose one of other, saxpy with --entry"),
            ("template <int N>", "", "", "a.b * N *", "and nothing says the value of N: give it with -D NAME=VALUE"),
            ("#include <torch/extension.h>\n", "", "", "at::f(a) *", "undeclared names: at (my.cu:5)"),
            ("template <typename... T>", "int n", "int n, T... rest", "a *", "any number of parameters"),
            ("", "float* y", "float** y", "a *", "is a pointer to pointers: join the arrays into one, `float* y`"),
            (TWO, "float* in", "Two (*in)[4]", "in[i][1].p *", "make an array of each member that is used (p)"),
            ("texture<int, 1, cudaReadMode> t, u;", "", "", "tex1Dfetch(t, i) *", "it reads the texture t, which no"),
            ("texture <float> t;", "", "", "tex1Dfetch(t, i) *", "my.cu: it reads the texture t, which no launch"),
            ("", "int n", "const int& n", "a *", "is a reference: declare it by value, as `int n`"),
            ("", "float a", "float (*a)(float)", "a(1) *", "is a pointer to a function"),
            ("", "int i =", "SHARED(float, s) int i =", "s[0] *", "type construction): give the macros that your"),
            (
                "",
                "y[i] = a * in[i] + y[i]",
                'printf("%f", y[i])',
                "",
                "no parameter of saxpy is an array that it writes",
            ),
            ("__device__ float* y;", ", float* y", "", "a *", "no parameter of saxpy is an array that it writes"),
            ("", "int i =", "saxpy<<<1, 1>>>(a, in, y, n); int i =", "a *", "saxpy launches kernels"),
            ("#define T {{T}}\n", "", "", "a *", "a program fills in {{T}} before this file is a source"),
            ("#include <cv.h>\n", "float* y", "Mat y", "a *", "my.cu: it uses undeclared names: Mat (my.cu:3)"),
            (
                "template <class T>",
                "int n",
                "int n, Of<T, 2> s",
                "a *",
                "names: Of; declare them in it, or give macros",
            ),
            ("", "float a", "cudaTextureObject_t a", "tex1Dfetch<float>(a, i) *", "a of saxpy holds an image"),
            (
                "__device__ cudaTextureObject_t t;",
                "",
                "",
                "tex1Dfetch<float>(t, i) *",
                "the texture t, which no launch",
            ),
            ("template <class F>", "int n", "int n, F f", "f(a) *", "called object type 'float' is not a function"),
            ("struct P { int n; };", "float a", "P a, int a_n", "a.n *", "a of saxpy is the structure `P`"),
            ("struct P { P* q; int n; };", "float a", "P a", "a.q->n *", "a_q of saxpy points to the structure `P`"),
            ("struct P { int (*f)(int); };", "float a", "P a", "a.f(i) *", "a of saxpy is the structure `P`"),
            ("struct Two { int p, q[99]; };", "float a", "Two a", "a.q[1] *", "of its own (q)"),
            (TWO, "float* y", "Two* y", "y[i].p = a *", "several types: make an array of each member that is used (p)"),
            ("", "float* y", "void* y", "((float*)y)[i] = ((int*)y)[i] *", "is a void pointer"),
            ("template <class T> struct V;", "float* y", "V<float>* y", "a *", "whose members are not known"),
        ],
    )
    def test_what_cannot_be_drafted_is_said_with_the_remedy(
        self, before: str, old: str, new: str, factor: str, message: str
    ) -> None:
        code = before + SAXPY.replace(old, new).replace("y[i] = a *" if "=" in factor else "a *", factor)
        with pytest.raises(SourceError) as caught:
            draft(code, None, "my.cu")
        assert message in str(caught.value) and str(caught.value).startswith("my.cu")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            (f"#define A\n#ifdef A\n#else\n{SAXPY}#endif\n", "leaves saxpy out at `#else of #ifdef A`: set its mac"),
            ("__global__ void saxpy(float* y);", "saxpy is declared here without its body: name the file that has it"),
            ("__kernel void saxpy(image2d_t a, image2d_t b) {}", "the parameters a and b of saxpy hold an image"),
            ("__kernel void saxpy(__global float* y) MORE { y[0] = 1; }", "line 1, with saxpy, is not understood"),
            ("__kernel void saxpy(OF, X)(__global float* y) { y[0] = 1; }", "line 1, with saxpy, is not understood"),
            ("template <class T>\n__kernel void saxpy(__global T* y) { *y = 1; }", "`template <class T>` is C++, not"),
        ],
    )
    def test_why_a_kernel_of_this_name_cannot_be_seen_is_said(self, code: str, message: str) -> None:
        with pytest.raises(SourceError) as caught:
            draft(code, "saxpy", "my.cu")
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        "condition",
        ["if defined(GPU) // build", "ifdef GPU", "if GPU == 3", "ifndef GPU\n#else", "if defined(GPU) || defined(B)"],
    )
    def test_a_macro_without_which_there_is_no_such_kernel_is_defined(self, condition: str) -> None:
        assert 'role = "in"' in line(f"#{condition}\n{PLAIN}\n#endif\n", "x", "k")

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [
            ("unsigned long long const", "uint64"),
            ("short int const", "int16"),
            ("std::size_t", "uint64"),
            ("off_t", "int64"),
            ("count", "int32"),
            ("Mode", "int16"),
        ],
    )
    def test_types_by_any_name(self, kind: str, dtype: str) -> None:
        code = f"typedef int count;\nenum Mode : short {{ PLAIN, TWICE }};\n{SAXPY.replace('int n', f'{kind} n')}"
        assert f'dtype = "{dtype}"' in line(code, "n")

    @pytest.mark.parametrize(
        ("table", "asked"),
        [
            ("__constant__ float table[4]", "__constant__ memory that is read but never set: give an initialiser"),
            ("__constant__ float table[2] = {1, 2}", ""),
            ("__device__ float table[4]", "__device__ memory that no launch sets: make an argument of it"),
            ("__device__ float of(float table, float b);\n__constant__ float table[1] = {1}", ""),
        ],
    )
    def test_memory_that_nothing_sets_is_to_be_filled_in(self, table: str, asked: str) -> None:
        code = f"{table};\n{SAXPY.replace('+ y[i]', '+ table[0] + THE_BUILDS')}"
        text = draft(code, None, "my.cu")[1]["task.toml"]
        assert "FILL: whether THE_BUILDS = 4" in text and ("; the values of table" in text) is bool(asked)
        assert asked in text


class TestOpenCL:
    GRID = """int at(int x, int y, int w) { return y * w + x; }
    __kernel void k(__global const float* in, __global float* out, int w, int h) {
        int x = get_global_id(0), y = get_global_id(1);
        if (x < w && y < h) out[at(x, y, w)] = in[at(x, y, w)];
    }
    __kernel void other(__global FPTYPE* x, __local int* s) { barrier(CLK_LOCAL_MEM_FENCE); }
    """

    def drafted(self, code: str) -> tuple[str, str]:
        files = draft(code, "k", "my.cl")[1]
        return files["task.toml"], files["baseline.cl"]

    def test_other_kernels_of_the_file_play_no_part(self) -> None:
        task, source = self.drafted(self.GRID)
        assert 'shape = ["h", "w"]' in task and 'role = "out"' in task and "other" not in source and "int at(" in source

    @pytest.mark.parametrize(
        ("body", "shape"),
        [
            ("int i = get_global_id(1) * get_global_size(0) + get_global_id(0); if (i < n) y[i] = x[i];", '["n"]'),
            ("for (int i = get_global_id(0); i < n; i += get_global_size(0)) y[i] = x[i];", '["n"]'),
            ("int i = get_global_id(0); if (i < n) vstore4(vload4(i, x), i, y);", '["4 * n"]'),
            ("int i = get_global_id(0) + get_global_offset(0); if (i < n) y[i] = x[i];", '["n"]'),
            ("size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0); if (i < n) y[i] = x[i];", '["n"]'),
        ],
    )
    def test_indices(self, body: str, shape: str) -> None:
        task, _ = self.drafted(f"__kernel void k(__global const float* x, __global float* y, int n) {{ {body} }}")
        assert f'name = "y", role = "out", dtype = "float32", shape = {shape}' in task

    def test_types_that_a_host_cannot_pass_become_what_it_passes_for_them(self) -> None:
        code = "int f(size_t n) { return n; }\n__kernel void k(__global float* y, const size_t n, bool on) {\n"
        task, source = self.drafted(f"{code} size_t i = get_global_id(0); if (on && i < n) y[i] = f(n); }}")
        assert '"n", role = "scalar", dtype = "uint64"' in task and '"on", role = "scalar", dtype = "uint8"' in task
        assert "const ulong n, uchar on)" in source and "size_t i =" in source and "does not understand" not in task

    def test_a_count_that_the_kernel_does_not_use_is_that_of_its_elements(self) -> None:
        code = "__kernel void k(__global const float* x, __global float* y, uint count) {\n"
        task, _ = self.drafted(f"{code} int i = get_global_id(0); y[i] = x[i]; }}")
        assert 'shape = ["count"]' in task and 'grid = ["count // 256"]' in task and "count % 256 == 0" in task

    def test_shapes_that_follow_from_a_guessed_count_of_blocks_are_asked_about(self) -> None:
        code = "__kernel void k(__global float* y, __global const float* m, __global const float* w, int c) {\n"
        task, _ = self.drafted(f"{code} int i = get_global_id(0); y[i] = m[i / c] * w[i % c]; }}")
        assert "the shape of m, where your launch is another one" in task

    @pytest.mark.parametrize(
        ("body", "asked"),
        [
            ("for (int j = get_local_id(0); j < 600; j += 300) s += x[j]; if (i < n) y[i] = s;", "x"),
            ("if (i < n) s = x[i]; if (get_local_id(0) == 0 && i < n) y[get_group_id(0)] = s;", "y"),
            ("for (int j = get_local_id(0); j < n; j += 48) s += x[j]; if (i < n) y[i] = s;", ""),
            ("int r = get_global_id(1); y[r * n + i] = x[3 * get_local_id(1)];", "x"),
        ],
    )
    def test_shapes_that_another_block_changes_are_asked_about(self, body: str, asked: str) -> None:
        code = "__kernel void k(__global float* y, __global const float* x, int n) { float s = 0;"
        task, _ = self.drafted(f"{code} int i = get_global_id(0); {body} }}")
        lines = [one for one in task.splitlines() if "where your launch is another one" in one]
        assert [one.split('"')[1] for one in lines] == [asked] * bool(asked)

    def test_what_an_index_depends_on_is_said_and_an_element_more_has_a_shape(self) -> None:
        code = "__kernel void k(__global const int* x, __global int* y, int n, int s) { int i = get_global_id(0);"
        task, _ = self.drafted(f"{code} if (i < n) y[i] = x[i ^ (1 << s)]; }}")
        assert "the shape of x, whose indices depend on scalars that are not sizes" in task
        assert 'shape = ["n + 1"]' in self.drafted(f"{code.replace(', int n, int s', '')} y[i] = x[i + 1]; }}")[0]

    KERNEL = "__kernel void k(__global int* y) { y[get_global_id(0)] = 1; } // ':)'"

    @pytest.mark.parametrize(
        "code",
        [
            f'// No __global__ here.\nR"(\n{KERNEL}\n)"\n',
            f'#pragma once\nstatic const char* source = R"CL(\n{KERNEL}\n)CL";\nint lines = 4;',
            f"#ifndef K\n#define K\nconst char *const source = TEXT(\n{KERNEL}\n);\n#endif",
        ],
    )
    def test_a_file_that_has_its_kernels_in_a_string_of_the_host_is_read(self, code: str) -> None:
        task, source = self.drafted(code)
        assert 'role = "out"' in task and source.startswith("__kernel") and "source" not in source

    def test_a_header_that_an_installation_has_elsewhere_is_that_beside_the_source(self, tmp_path: Path) -> None:
        (tmp_path / "types.cl").write_text("typedef short number;\n")
        code = '#include "/nowhere/share/types.cl"\n__kernel void k(__global number* y) { y[get_global_id(0)] = 1; }'
        drafted = draft(code, None, str(tmp_path / "k.cl"))[1]
        with pytest.raises(SourceError, match=r"undeclared names: number .*not found \(types.cl\)"):
            draft(code.replace("y)", "y, __global number* z)"), None, "elsewhere.cl")
        assert 'dtype = "int16"' in drafted["task.toml"] and "typedef short" in drafted["baseline.cl"]

    def test_of_a_kernel_that_is_too_long_a_few_turns_of_its_loops_are_run(self, monkeypatch: Any) -> None:
        # As too long as one of minutes is by the usual limits.
        monkeypatch.setattr("tunesmith.kernels.reader.facts.BUDGET", 60_000_000)
        monkeypatch.setattr("tunesmith.kernels.reader.run.MAX_WORK", 13_000_000)
        loops = "for (int r = 0; r < 500; r++) for (int s = 0; s < 500; s++)"
        code = f"""__kernel void k(__global const float* x, __global float* y, __global int* at, int n) {{
        int i = get_global_id(0); float v = 0; if (i >= n) return;
        {loops} {{ v = v * v + x[i]; at[500 * r + s] = 1; }} y[i] = v; }}"""
        task, _ = self.drafted(code)
        assert all(f'"{one}", dtype = "float32", shape = ["n"] }},\n' in task for one in ("in", "out"))
        assert "the shape of at, whose indices depend on loops too long to be followed" in task

    def test_of_many_whole_numbers_those_are_sizes_that_steer_the_kernel(self) -> None:
        code = """__kernel void k(__global int* y, uint16 key, int n) { int i = get_global_id(0);
        if (i < n) y[3 * i + 1] = key.s3 ^ key.sa; }"""
        task, _ = self.drafted(code)
        assert "ceil_div(n, 256)" in task and task.count('value = "1" },  # FILL') == 16

    FOR_BOTH = "#ifdef __NVCC__\n__global__ void k(float* y) { *y = 1; }\n#endif\n__kernel void"

    @pytest.mark.parametrize("head", ["void kernel", "kernel __attribute__((vec_type_hint(int))) void", FOR_BOTH])
    def test_a_kernel_is_one_wherever_its_mark_stands(self, head: str) -> None:
        task, _ = self.drafted(f"{head} k(global float4* y, global uchar3* x) {{ y[get_global_id(0)].x += x[0].y; }}")
        assert '"y", role = "inout", dtype = "float32", shape = ["n", "4"]' in task
        assert '"x", role = "in", dtype = "uint8", shape = ["4"]' in task

    def test_pointers_to_void_have_the_type_that_they_are_cast_to(self) -> None:
        code = """kernel void k(global const void* x, ulong off, global void* y, int n) {
            global const char* from = (global const char*)x + off; int i = get_global_id(0);
            if (i < n) ((global float4*)y)[i] = *(global const half*)(from + 2 * i);
        }"""
        task, _ = self.drafted(code)
        assert '"x", role = "in", dtype = "float16"' in task
        assert '"y", role = "out", dtype = "float32", shape = ["n", "4"]' in task

    def test_local_memory_that_grows_with_a_size_is_passed_last(self) -> None:
        code = """__kernel void k(__local float4* a, int n, __global float* y) {
            for (int j = get_local_id(0); j < n; j += get_local_size(0)) a[j] = j;
            barrier(CLK_LOCAL_MEM_FENCE);
            y[get_global_id(0)] = a[n - 1].x;
        }"""
        task, source = self.drafted(code)
        assert 'shared_bytes = "16 * n"' in task
        assert "k(int n, __global float* y, __local float4* a)" in source

    def test_local_parameters_in_any_place_are_declared_inside(self) -> None:
        code = """__kernel void k(__local float* a, __global float* y, __local int* b,
            \n#ifdef MORE\nint m,\n#endif\nint n) {
            int i = get_global_id(0), t = get_local_id(0);
            a[t] = i; b[2 * t + 1] = i; barrier(CLK_LOCAL_MEM_FENCE);
            if (i < n) y[i] = a[0] + b[1];
        }"""
        task, source = self.drafted(code)
        assert "__local float a[256];" in source and "__local int b[512];" in source
        assert 'grid = ["ceil_div(n, 256)"], block = [256]' in task
        assert re.search(r"k\(__global float\* y, int n\)", source) and '"a"' not in task

    def test_parameters_of_vectors_and_with_reserved_names_are_changed(self) -> None:
        code = "__kernel void k(__global half* y, int3 from, int ceil) {\n"
        code += "    int i = get_global_id(0);\n    if (i < ceil) y[i] = from.x + from.s2;\n}"
        drafted = draft(code, None, "my.cl")[1]
        assert 'shape = ["ceil_"]' in drafted["task.toml"] and "cl_khr_fp16 : enable" in drafted["baseline.cl"]
        made = "int from_x, int from_y, int from_z, int ceil_) { int3 from = (int3)(from_x, from_y, from_z);"
        assert made in drafted["baseline.cl"]

    def test_sizes_leave_no_empty_grid(self) -> None:
        code = "void f(float* x, int n) { k<<<n / 6, 64>>>(x, x, n); }"
        assert "sizes = { n = 8 }" in files(PLAIN + code, None)["task.toml"]

    def test_macros_and_types_that_the_build_gives_are_guessed_and_asked_about(self) -> None:
        code = "#if WIDE == 2\ntypedef float2 vec;\n#endif\n__kernel void k(__global real4* y, __global vec* z) {\n"
        code += (
            "__local real a[GROUP]; uint16_t i = get_global_id(0); real v = first; a[i] = SCALE; y[i] = v; z[i] = v; }"
        )
        task, source = self.drafted(code)
        assert "typedef float2 vec;" in source and "#define real4 float4\n" in source and "#define GROUP 256" in source
        for one in ["real4 = float4", "real = float", "WIDE = 2", "uint16_t = ushort", "first = 4", "GROUP = 256"]:
            assert f"whether {one} in it is meant" in task
        assert "whether shapes and roles hold" in task

    def test_each_macro_of_a_build_that_hides_a_declaration_is_guessed(self) -> None:
        head = "#if BITS == 32 || BITS == 64\nusing real = float;\n#endif\n"
        head += "enum Row {\n#ifdef MORE\n FIRST, SECOND,\n#endif\n LAST };\n"
        code = f"{head}template <class T> __global__ void k(real* y, const T* x) {{ y[LAST] = x[SECOND] + real(1); }}"
        task = files(code + "void run(float* y) { k<float><<<1, 1>>>(y, y); }", None)["task.toml"]
        assert "whether BITS = 32 in it is meant" in task and "whether MORE = 1 in it is meant" in task

    def test_a_type_of_the_build_with_elements_is_a_pointer(self) -> None:
        code = PLAIN.replace("const float* x", "real_const_p x").replace("float* y", "real_p __restrict__ y")
        assert 'role = "in"' in line(code, "x") and 'role = "out"' in line(code, "y")
        assert "whether real_p = float* in it is meant" in files(code, None)["task.toml"]

    PARTS = "#define A_x 2\n#define B_y 1\n#define ADD(a, b) (a + b)\n#define USE(t, c, of) of(A_##t, c##_y)\n"
    PARTS += "#define WGS 64\nint twice(int v) { return v * USE(x, B, ADD); }"

    @pytest.mark.parametrize(("name", "text"), [("parts.h", PARTS), ("parts.opencl", f'R"(\n{PARTS}\n)"')])
    def test_what_another_file_of_the_project_declares_is_taken_along(
        self, name: str, text: str, tmp_path: Path
    ) -> None:
        (tmp_path / ".git").mkdir()
        (tmp_path / name).write_text(text)
        code = "__kernel __attribute__((reqd_work_group_size(WGS, 1, 1))) void k(__global int* y) {\n"
        (tmp_path / "k.cl").write_text(code := code + "y[get_global_id(0)] = twice(3); }")
        drafted = draft(code, None, str(tmp_path / "k.cl"))[1]
        assert all(f"#define {one}" in drafted["baseline.cl"] for one in ("A_x 2", "B_y 1", "ADD"))
        assert f"declarations that {name} has" in drafted["task.toml"] and "block = [64]" in drafted["task.toml"]

    def test_members_behind_a_pointer_that_is_set_nowhere_are_not_known(self) -> None:
        code = "struct A { int n; __device__ int get() const { return this->n; } };\n"
        assert 'dtype = "float32"' in line(code + PLAIN.replace("if (i < n)", "A* a; if (i < a->get())"), "y")

    def test_a_volume_has_the_shape_that_its_guard_gives(self) -> None:
        code = """__kernel void k(__global const uchar* x, __global uchar* y, uint h, uint w, uint c) {
            int i = get_global_id(0), j = get_global_id(1), k = get_global_id(2);
            if (i < w && j < h && k < c) y[i + j * w + k * w * h] = x[i + j * w + k * w * h];
        }"""
        assert '"y", role = "out", dtype = "uint8", shape = ["c", "h", "w"]' in self.drafted(code)[0]
