"""What is read from CUDA sources: roles, launches, shapes, and drafts of tasks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_kernels import KERNELS
from rewrite_cases import LIBRARY_NAMES, OWN, RAW_NAMES, TURNS, plain_task

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import Compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.device_code import whole_source
from tunesmith.kernels.rewrite.draft import draft
from tunesmith.kernels.rewrite.source import Source, SourceError
from tunesmith.kernels.rewrite.threads import Axis, Cells, Fixed, Rows, sharing
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import read_task

SAXPY = """
__global__ void saxpy(float a, const float* in, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * in[i] + y[i];
}
"""


COORDINATE = "const int i = blockIdx.x * blockDim.x + threadIdx.x;"
GUARDED = Cells((Axis("x", "n", guarded=True),))


@pytest.mark.parametrize("name", [*OWN, *RAW_NAMES, *LIBRARY_NAMES])
def test_roles_are_those_that_a_person_gave(name: str) -> None:
    task = plain_task(name)
    kernel = Source(task.sources("cuda").baseline.template.source).kernel(name, "here")
    assert kernel.oddities == () and kernel.extern_c
    roles = {one.name: kernel.role(one.name) for one in kernel.parameters if one.pointer}
    assert roles == {one.name: one.role for one in task.arguments if one.role != "scalar"}


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("p[threadIdx.x] = 1;", "out"),
        ("*p = 1;", "out"),
        ("p[0] += 1;", "inout"),
        ("p[0]++;", "inout"),
        ("atomicAdd(&p[0], 1.0f);", "inout"),
        ("atomicAdd(p + 1, 1.0f);", "inout"),
        ("float* q = p + 4; q[1] = 2;", "out"),
        ("float* q = &p[4]; float x = q[1];", "in"),
        ("float x = __ldg(p + 1);", "in"),
        ("use(p);", "unknown"),
        ("float4 x = *(float4*)p;", "unknown"),
        ("p = p + 1;", "unknown"),
        ("float& q = p[1]; q = 2;", "unknown"),
        ("auto q = &p[1]; *q = 2;", "unknown"),
        ("float* q(p); q[1] = 2;", "unknown"),
        ("{ float* q = p; q[1] = 2; } { const float* q = p + 1; float x = q[0]; }", "unknown"),
        ("set(p[1], 2);", "unknown"),
        ("float x = look(p[1], 2);", "in"),
    ],
)
def test_role_of_a_pointer(body: str, role: str) -> None:
    functions = "__device__ void set(float& at, int v) { at = v; } "
    functions += "__device__ float look(const float& at, int) { return at; }"
    assert Source(f"{functions} __global__ void k(float* p) {{ {body} }}").kernel(None, "here").role("p") == role


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{COORDINATE} if (i < n) p[i] = 1;", GUARDED),
        ("int i = threadIdx.x + blockDim.x * blockIdx.x; if (n <= i) return; p[i] = 1;", GUARDED),
        (f"{COORDINATE} p[i] = 1;", Cells((Axis("x", ""),))),
        (f"{COORDINATE} if (i < n) p[i] = 1; p[0] = 2;", Cells((Axis("x", ""),))),
        (f"{TURNS} p[i] = 1;", Rows()),
        (f"__shared__ float s[8]; {TURNS} p[i] = s[threadIdx.x / 32];", Rows(256)),
    ],
)
def test_how_work_is_shared(body: str, expected: object) -> None:
    assert sharing(Source(f"__global__ void k(float* p, int n) {{ {body} }}").kernel(None, "here")) == expected


@pytest.mark.parametrize(
    "body",
    [
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) p[i] = 1;",
        f"__shared__ float s[256]; s[threadIdx.x] = 1; {TURNS} p[i] = s[0];",
        f"int w = threadIdx.x / 32; p[w] = 1; {TURNS} p[i] = 1;",
        f"{TURNS} {{ __syncthreads(); p[i] = 1; }}",
        f"extern __shared__ float s[]; {TURNS} p[i] = s[threadIdx.x / 32];",
        "if (threadIdx.x < 7) p[threadIdx.x] = 1;",
        "p[0] = blockDim.x;",
    ],
)
def test_what_may_depend_on_the_block_stays(body: str) -> None:
    assert isinstance(sharing(Source(f"__global__ void k(float* p, int n) {{ {body} }}").kernel(None, "here")), Fixed)


@given(st.text(alphabet="__global__ void k(float* p){}[];<>=+*if for return 0123\n#define", max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(code: str) -> None:
    try:
        kernel = Source(code).kernel(None, "here")
    except SourceError as error:
        assert str(error).startswith("here: ")
    else:
        sharing(kernel)
        assert isinstance(kernel.oddities, tuple)


class TestDraft:
    def write(self, code: str, folder: Path, *, filled: bool = False) -> Path:
        """Writes the draft of a task; filled: as if the user had nothing to change in it."""
        for name, text in draft(code, None, "my.cu").files.items():
            (folder / name).write_text(re.sub("  # FILL:.*", "", text) if filled else text)
        return folder / "task.toml"

    def line(self, code: str, name: str) -> str:
        """The line of a draft that says what `name` is."""
        task = draft(code, None, "my.cu").files["task.toml"]
        return next(line for line in task.splitlines() if f'name = "{name}"' in line)

    def test_what_is_not_known_is_named_line_by_line_until_nothing_is_left(self, tmp_path: Path) -> None:
        path = self.write(SAXPY, tmp_path)
        with pytest.raises(TaskError, match=r"task.toml, line \d+, is still .*: the value of a; then delete"):
            read_task(path)
        path.write_text(path.read_text().replace("  # FILL: the value of a", ""))
        with pytest.raises(TaskError, match="is still to be filled in: the sizes you use"):
            read_task(path)
        path.write_text(path.read_text().replace("  # FILL: the sizes you use", ""))
        with pytest.raises(TaskError, match=r"reference.py, line \d+, is still to be filled in: an array for each"):
            read_task(path)
        reference = tmp_path / "reference.py"
        reference.write_text(reference.read_text().split("    return")[0] + '    return {"y": a * in_ + y}\n')
        task = read_task(path)
        roles = {one.name: (one.role, one.dtype, one.shape, one.value) for one in task.arguments}
        assert roles == {
            "a": ("scalar", "float32", (), "1.0"),
            "in_": ("in", "float32", ("n",), None),
            "y": ("inout", "float32", ("n",), None),
            "n": ("scalar", "int32", (), "n"),
        }
        assert task.bytes == "n * sizeof(float32) + 2 * n * sizeof(float32)"
        assert 'extern "C" __global__ void saxpy' in task.sources("cuda").baseline.template.source

    @pytest.mark.parametrize("name", ["int8_quant", "layernorm", "silu_and_mul", "softmax"])
    def test_shapes_and_bytes_are_those_that_a_person_gave(self, name: str, tmp_path: Path) -> None:
        task = plain_task(name)
        code = task.sources("cuda").baseline.template.source.replace("T*", "float*").replace("T(", "float(")
        drafted = read_task(self.write(code, tmp_path, filled=True))
        assert {one.name: one.shape for one in drafted.arguments} == {one.name: one.shape for one in task.arguments}
        workload = task.workloads[0].model_copy(update={"types": {"T": "float32"}})
        assert drafted.bytes_of(workload) == task.bytes_of(workload)

    def test_the_size_that_an_index_multiplies_by_is_the_inner_dimension(self) -> None:
        code, _ = KERNELS["matmul"]
        for name, shape in (("A", '["M", "K"]'), ("B", '["K", "N"]'), ("C", '["M", "N"]')):
            assert f"shape = {shape} }}" in self.line(code, name)

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("int x;", "there is no kernel"),
            (SAXPY + SAXPY.replace("saxpy", "other"), "2 kernels: choose one of saxpy, other with --entry"),
            ("template <int N> " + SAXPY, "is a template over the value N: say which one you launch, with -D N=VALUE"),
            ("template <typename T, int N = 4> " + SAXPY, "over the value N"),
            ("#include <torch/extension.h>\n" + SAXPY, "write out what the kernel needs of it"),
            ("#include <cub/cub.cuh>\n" + SAXPY, "such as cub/block/block_reduce.cuh"),
            ("__kernel void k(__global float* x) {}", "this is OpenCL C, and `init` drafts CUDA sources alone"),
            ("template <typename... T> __global__ void k(float* x, T... rest) {}", "any number of parameters"),
            (SAXPY.replace("int n", "int n, ..."), "`...` in the signature of saxpy is no parameter"),
            (SAXPY.replace("float* y", "Thing* y"), "the type `Thing`, which tasks do not know: write the C type"),
            (SAXPY.replace("float* y", "float** y"), "is a pointer to pointers: join the arrays into one, `float* y`"),
            (SAXPY.replace("float* y", "float* y[]"), "is a pointer to pointers"),
            (SAXPY.replace("float* in", "float (*in)[4]"), "declare it as `const float* in`, and for in[i][j] write"),
            (SAXPY.replace("float* in", "float in[][4]"), "is a pointer to arrays"),
            (SAXPY.replace("int n", "const int& n"), "is a reference: declare it by value, as `int n`"),
            (SAXPY.replace("float a", "float (*a)(float)"), "is a pointer to a function: call a __device__ function"),
            (
                "struct Two { int p, q; };" + SAXPY.replace("float a", "Two a"),
                "each member that is used a parameter of its own (p, q)",
            ),
            ("struct Two { int p, q; };" + SAXPY.replace("float* y", "Two* y"), "points to the structure `Two`"),
            ("enum class E { p };" + SAXPY.replace("float a", "E a"), "declare it as `int a`"),
            (SAXPY.replace("float* in", "float4* in"), "`const float* in` and cast inside, `(const float4*)in`"),
            (SAXPY.replace("float* y", "__half2* y"), "declare it as `__half* y` and cast inside"),
            (SAXPY.replace("float a", "float3 a"), "parameters of their own (float a_x, float a_y, float a_z)"),
            (SAXPY.replace("float* y", "void* y"), "is a void pointer: declare it with the type of its elements"),
            (SAXPY.replace("float a", "cudaTextureObject_t a"), "no argument can be: read from an array"),
            ("template <class F> " + SAXPY.replace("float a", "F a").replace("a *", "a(1) *"), "called as a function"),
            (SAXPY.replace("int n", "int lambda").replace("< n", "< lambda"), "reserved name"),
        ],
    )
    def test_what_cannot_be_drafted_is_said_with_the_remedy(self, code: str, message: str) -> None:
        with pytest.raises(SourceError) as caught:
            draft(code, None, "my.cu")
        assert message in str(caught.value) and str(caught.value).startswith("my.cu")

    def test_a_template_becomes_a_kernel_over_a_type_of_the_task(self, tmp_path: Path, compiler: Compiler) -> None:
        code = """#define N 3
        template <typename T> __device__ T twice(T x) { return x + x; }
        template <typename T, int N>
        __global__ void k(const T* x, T* y, T a, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = twice(x[i]) * a + T(N);
        }"""
        task = read_task(self.write(code, tmp_path, filled=True))
        # Another template of the file has a parameter of the same name, which a macro T would replace.
        assert "twice(T x)" in (tmp_path / "baseline.cu").read_text()
        assert {one.name: one.dtype for one in task.arguments} == {"x": "T_", "y": "T_", "a": "T_", "n": "int32"}
        assert task.types == {"T_": ("float32",)}
        for dtype in ("float32", "float16"):
            made = compiler.compile(specialise(task.sources("cuda").baseline.template, {}, {"T_": dtype}))
            assert isinstance(made, Artifact), made

    def test_a_type_that_nothing_else_names_keeps_its_name(self) -> None:
        code = "template <class T> " + SAXPY.replace("float*", "T*")
        task = draft(code, None, "my.cu").files["task.toml"]
        assert '[types]\nT = ["float32"]' in task and 'bytes = "n * sizeof(T) + 2 * n * sizeof(T)"' in task

    def test_headers_and_macros_of_the_build_are_put_in(self, tmp_path: Path) -> None:
        inner, other = tmp_path / "include", tmp_path / "other"
        inner.mkdir(), other.mkdir()
        (inner / "a.h").write_text('#pragma once\n#include "b.h"\n#include <cuda_fp16.h>\nusing number = float;\n')
        (inner / "b.h").write_text("\ufeff#define TWO 2\n", encoding="utf-8")
        (other / "c.cuh").write_text('#include "../include/b.h"\n#include "c.cuh"\n#define THREE 3\n')
        code = '#include "a.h"\n#include <c.cuh>\n#include <cuda_runtime.h>\nint x = TWO + THREE + N;\n'
        made = whole_source(code, tmp_path / "my.cu", [inner, other], {"N": "1", "FAST": ""})
        assert made.splitlines()[:2] == ["#define N 1", "#define FAST"]
        assert made.count("#define TWO 2") == made.count("#define THREE 3") == 1
        assert "#include <cuda_fp16.h>" in made and "#include <cuda_runtime.h>" in made and "pragma" not in made
        assert '"a.h"' not in made and "c.cuh" not in made and "\ufeff" not in made

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ('#include "nowhere.h"', "its header nowhere.h was not found; name the folder that has it with -I"),
            ('#include "binary.h"', "binary.h is not UTF-8 text: save it as UTF-8."),
            ('#include "long.h"', "with its headers the source is longer than"),
        ],
    )
    def test_headers_that_cannot_be_put_in_are_said(self, code: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "binary.h").write_bytes(b"\xff\xfe")
        (tmp_path / "long.h").write_text("x" * (1 << 20) + "y")
        with pytest.raises(SourceError) as caught:
            whole_source(code, tmp_path / "my.cu")
        assert message in str(caught.value)

    def test_parameters_with_a_default_value_are_arguments(self) -> None:
        code = SAXPY.replace("float a,", "").replace("int n", "int n = 0x400, float a = -1.5e1f, int mode = 3")
        assert 'value = "-15.0" },  # FILL: the value of a, of which -15.0 is the default' in self.line(code, "a")
        assert 'value = "3" },  # FILL: the value of mode' in self.line(code, "mode")
        # The guard depends on it, so it is a size, which begins with the default.
        assert 'value = "n" }' in self.line(code, "n")
        assert "sizes = { n = 1024 }" in draft(code, None, "my.cu").files["task.toml"]

    @pytest.mark.parametrize(
        ("written", "dtype"),
        [
            ("unsigned long long const", "uint64"),
            ("long unsigned int", "uint64"),
            ("short int const", "int16"),
            ("std::size_t", "uint64"),
            ("int const", "int32"),
        ],
    )
    def test_types_in_any_order_of_their_words(self, written: str, dtype: str) -> None:
        assert f'dtype = "{dtype}", value = "n"' in self.line(SAXPY.replace("int n", f"{written} n"), "n")

    def test_a_pointer_to_const_on_the_right_is_only_read(self) -> None:
        assert 'role = "in"' in self.line(SAXPY.replace("const float* in", "unsigned char const* in"), "in_")

    def test_arrays_of_bool_hold_both_values(self) -> None:
        line = self.line(SAXPY.replace("const float* in", "const bool* in"), "in_")
        assert "fill = { low = 0, high = 1 } },  # FILL: what in holds" in line

    @pytest.mark.parametrize(
        ("table", "read", "asked_for"),
        [
            ("__constant__ float table[4];", True, True),
            ("static __constant__ float other = 1, table;", True, True),
            ("__constant__ float table[2] = {1, 2};", True, False),
            ("__constant__ float unused[2];", False, False),
        ],
    )
    def test_constant_memory_that_is_read_and_nothing_sets_is_to_be_filled_in(
        self, table: str, read: bool, asked_for: bool
    ) -> None:
        code = SAXPY.replace("+ y[i]", "+ (&table)[0]") if read else SAXPY
        text = draft(f"{table}\n{code}", None, "my.cu").files["task.toml"]
        assert ("# FILL: the values of table, __constant__ memory that is read but never set" in text) is asked_for
        assert ("__constant__" in text) is asked_for

    @pytest.mark.parametrize("place", ["before", "among"])
    def test_attributes_of_the_launch_are_read(self, place: str) -> None:
        attribute = "__cluster_dims__(2, 1, 1)"
        head = f"{attribute} __global__ void" if place == "before" else f"__global__ void {attribute}"
        made = draft(SAXPY.replace("__global__ void", head), None, "my.cu")
        (note,) = made.notes
        assert note == f"The rules leave this kernel as it is: it has {attribute}, which the rules do not know."
        assert f"# FILL: a grid that suits {attribute}" in made.files["task.toml"]
        assert f'extern "C" {head} saxpy' in made.files["baseline.cu"]

    def test_an_entry_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(TunesmithError, match="there is no kernel 'sax'; choose --entry from saxpy"):
            draft(SAXPY, "sax", "my.cu")


@pytest.mark.parametrize(
    ("body", "guarded"),
    [
        (f"{COORDINATE} int k = 3; k = k * 2; if (i >= n) return; y[i] = k;", True),
        (f"{COORDINATE} if (i < n) {{ y[i] = x[i]; }} return;", True),
        (f"{COORDINATE} if (i + 1 < n) y[i] = x[i + 1];", True),
        ("const int i = 1 + (blockIdx.x * blockDim.x + threadIdx.x); if (i >= n - 1) return; y[i] = x[i];", True),
        (f"{COORDINATE} const int m = 2 * n; if (i < m && x[i] > 0) y[i] = x[i];", True),
        (f"{COORDINATE} if (i < EIGHT) y[i] = x[i];", True),
        (f"{COORDINATE} const int k = half(i); if (i < n) y[k] = x[i];", True),
        ("if (blockIdx.x * blockDim.x + threadIdx.x < n) y[blockIdx.x * blockDim.x + threadIdx.x] = 1;", True),
        (f"{COORDINATE} if (x[i] > 0 && i < n) y[i] = x[i];", False),
        (f"{COORDINATE} y[i] = x[i]; if (i >= n) return;", False),
        (f"{COORDINATE} if (n < 3) goto work; if (i >= n) return; work: y[i] = x[i];", False),
        (f"{COORDINATE} int m = n; m -= i; if (i < m) y[i] = 1;", False),
        (f"{COORDINATE} if (i < x[0]) y[i] = 1;", False),
        (f"{COORDINATE} const int m = i + n; if (i < m) y[i] = 1;", False),
        (f"{COORDINATE} bump(); if (i < n) y[i] = 1;", False),
        (f"{COORDINATE} float t = table[i]; if (i < n) y[i] = t;", False),
        (f"{COORDINATE} float t[2]; t[0] = 1; if (i < n) y[i] = t[0];", True),
    ],
)
def test_a_guard_holds_where_nothing_happens_beyond_its_bound(body: str, guarded: bool) -> None:
    more = """#define EIGHT (1 << 3)
    __device__ int count; __constant__ float table[64];
    __device__ int half(int a) { a /= 2; return a; }
    __device__ void bump() { ++count; }
    """
    work = sharing(Source(f"{more}__global__ void k(const float* x, float* y, int n) {{ {body} }}").kernels[0])
    assert isinstance(work, Cells) and [axis.guarded for axis in work.axes] == [guarded]


def test_an_index_behind_a_pointer_is_not_changed() -> None:
    body = "const int i = threadIdx.x; *(y + n * i) = x[i]; float z[4]; *z = 1;"
    kernel = Source(f"__global__ void k(const float* x, float* y, int n) {{ {body} }}").kernels[0]
    assert kernel.changed == {"z"}
