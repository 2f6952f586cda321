"""Kernels inside of projects: headers of other folders, overloads, and what templates leave open."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.reader.parse import SourceError, built_in

INDEX = "const I i = blockIdx.x * blockDim.x + threadIdx.x;"


def text_of(name: str) -> str:
    return (Path(__file__).with_name("sources") / f"{name}.cu").read_text()


def drafted(code: str, entry: str = "k", where: str = "my.cu") -> tuple[str, str]:
    """The task and the source."""
    files = draft(code, entry, where)[1]
    return files["task.toml"], files["baseline.cu"]


def compiles(nvrtc: Any, source: str) -> None:
    made = nvrtc.compile(Specialised("cuda", "k", source))
    assert isinstance(made, Artifact), made


@pytest.mark.parametrize("use", ["x[at[i]]", "get(x, at[i])"])
def test_a_type_of_indices_is_an_integer(use: str) -> None:
    code = f"""template <class A, class B> __device__ A get(const A* x, B i) {{ return x[i]; }}
    template <typename T, typename I>
    __global__ void k(const T* x, const I* at, T* y, I n) {{ {INDEX} if (i < n) y[i] = {use}; }}"""
    task, _ = drafted(code)
    assert '"at", role = "in", dtype = "int32"' in task and '"x", role = "in", dtype = "T"' in task


@pytest.mark.parametrize("folder", ["csrc/include/math", "other/math"])
def test_headers_of_the_project_are_found_as_its_build_finds_them(tmp_path: Path, folder: str) -> None:
    for name in ("csrc/ops", ".git", folder):
        (tmp_path / name).mkdir(parents=True)
    header = "#if BITS == 32\ntypedef float real;\n#endif\nvoid of_the_host(real);\n#include <missing.h>\n"
    header += "__device__ inline float twice(float x) { return 2.0f * x; }\n"
    (tmp_path / folder / "twice.cuh").write_text(header)
    code = f"""#include "math/twice.cuh"
    __global__ void k(const real* x, float* y, int n) {{ typedef int I; {INDEX} if (i < n) y[i] = twice(x[i]); }}"""
    (tmp_path / "csrc" / "ops" / "k.cu").write_text(code)
    task, source = drafted(code, where=str(tmp_path / "csrc" / "ops" / "k.cu"))
    assert "return 2.0f * x;" in source and "#include" not in source
    assert "typedef float real;" in source and "# FILL: whether BITS = 32 in it is meant" in task


def test_of_several_headers_of_a_name_the_nearest_is_meant(tmp_path: Path) -> None:
    code = (
        f'#include "utils.h"\n__global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = two(); }}'
    )
    for folder in (".git", "old/utils", "new/utils", "new/kernels"):
        (tmp_path / folder).mkdir(parents=True)
    for name, number in (("old", 1), ("new", 2)):
        (tmp_path / name / "utils/utils.h").write_text(f"__device__ inline int two() {{ return {number}; }}")
    (tmp_path / "new/kernels/k.cu").write_text(code)
    assert "return 2;" in drafted(code, where=str(tmp_path / "new/kernels/k.cu"))[1]
    (tmp_path / "k.cu").write_text(code)
    with pytest.raises(SourceError, match=r"two \(k.cu:2\); .* not found \(utils.h\)"):
        drafted(code, where=str(tmp_path / "k.cu"))


def test_a_macro_of_the_build_without_which_there_is_no_kernel_is_defined() -> None:
    code = "#if defined(__GPU) && !defined(__NO_GPU) && LEVEL == 2\n"
    code += f"__global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = LEVEL; }}\n#endif"
    assert "#define LEVEL 2" in drafted(code)[1]


def test_names_that_cuda_declares_without_a_header_are_known(nvrtc: Any) -> None:
    code = """#define NAMED(name) struct name##_of_it { int x; };
    NAMED(one)
    __global__ void k(const int* x, int* y) { cudaGridDependencySynchronize(); bool first;
        y[threadIdx.x] = __viaddmax_s32(x[threadIdx.x], 1, 2) + __vibmax_s32(x[0], 1, &first);
        cudaTriggerProgrammaticLaunchCompletion(); }"""
    compiles(nvrtc, drafted(code)[1])


def test_a_file_that_another_one_includes_is_read_with_it(tmp_path: Path) -> None:
    code = "__global__ void k(Two* y) { y[threadIdx.x].a = 1; y[threadIdx.x].b = 2; }"
    (tmp_path / "k.cu").write_text(code)
    host = "struct Two { int a, b; };\n#include <k.cu>\nvoid f(Two* y) { k<<<1, 64>>>(y); }"
    (tmp_path / "main.cu").write_text(host)
    assert 'role = "out", dtype = "int32", shape = ["64", "2"]' in drafted(code, where=str(tmp_path / "k.cu"))[0]


def test_what_only_the_file_that_includes_a_header_has_is_read_with_it(tmp_path: Path, nvrtc: Any) -> None:
    header = """extern __constant__ float gains[4];
    template <int B> __global__ void k(Rows rows, float* y) { y[threadIdx.x] = rows.x[threadIdx.x] * gains[1] + B; }"""
    (tmp_path / "k.cuh").write_text(header)
    with pytest.raises(SourceError, match=r"undeclared names: Rows \(k.cuh:2\)"):
        drafted(header, where=str(tmp_path / "k.cuh"))
    host = 'struct Rows { float* x; int n; };\n#include "k.cuh"\nvoid f(Rows x, float* y) { k<2><<<1, 64>>>(x, y); }'
    (tmp_path / "main.cu").write_text(host)
    task, source = drafted(header, where=str(tmp_path / "k.cuh"))
    assert 'name = "rows_x", role = "in", dtype = "float32", shape = ["64"]' in task and "int B = 2;" in source
    assert "# FILL: the values of gains, __constant__ memory that is read but never set" in task
    compiles(nvrtc, source)
    (tmp_path / "k.cuh").write_text(header := header.replace("gains[1]", "lost(1)"))
    with pytest.raises(SourceError, match=r"main.cu: .* it uses undeclared names: lost \(k.cuh:2\)"):
        drafted(header, where=str(tmp_path / "k.cuh"))


def test_a_macro_may_have_several_parameters_among_them_structures() -> None:
    code = f"""struct Two {{ float a; int n; }};
    #define REST Two two, const float* __restrict__ x, \\
        int n
    __global__ void k(float* y, REST) {{ typedef int I; {INDEX} if (i < n) y[i] = x[i] * two.a; }}"""
    task, source = drafted(code)
    assert "float two_a, const float *__restrict x, int n)" in source and '"x", role = "in"' in task


def test_what_another_file_defines_for_the_device_is_named() -> None:
    code = """extern __constant__ float table[];
    __device__ float other(float); __device__ float later(float); float of_the_host(float);
    __global__ void k(float* y) { y[threadIdx.x] = table[1] + other(y[0]) + later(1); }
    __device__ float later(float x) { return x; }"""
    with pytest.raises(SourceError, match="it declares, but does not define, table, other: include"):
        drafted(code)


@pytest.mark.parametrize("name", ["template_classes", "enumeration", "namespaces", "rounding"])
def test_what_a_kernel_names_is_found(name: str, nvrtc: Any) -> None:
    compiles(nvrtc, drafted(text_of(name))[1])


def test_one_of_several_kernels_of_a_name_is_chosen_by_its_line() -> None:
    code = "\n".join(
        f"__global__ void k(const {one}* x, {one}* y, int n) {{ typedef int I; {INDEX} if (i < n) y[i] = x[i]; }}"
        for one in ("float", "double")
    )
    asked = "# FILL: whether the first k is meant: --entry k:LINE drafts that of line 2"
    assert asked in drafted(code)[0] and "double*" not in drafted(code)[1]
    task, source = drafted(code, "k:2")
    assert 'dtype = "float64"' in task and "float*" not in source


def test_a_specialisation_comes_with_its_template_and_operators_of_the_host_do_not(nvrtc: Any) -> None:
    _, source = drafted(text_of("specialisation"))
    assert "Tensor" not in source
    compiles(nvrtc, "#define T float\n" + source)


def test_specialisations_and_overloads_for_types_of_the_host_are_left_out(nvrtc: Any) -> None:
    _, source = drafted(text_of("host_types"), "k<1, float>")
    assert "Host" not in source and "Half" not in source
    compiles(nvrtc, source)


def test_members_of_structures_become_parameters(nvrtc: Any) -> None:
    task, source = drafted(text_of("structures"))
    for line in (
        '{ name = "p_x", role = "in", dtype = "T", shape = ["p_size_cols"] },',
        '{ name = "p_y", role = "out", dtype = "float32", shape = ["p_size_cols"] },',
        '{ name = "p_size_cols", role = "scalar", dtype = "int32", value = "p_size_cols" },',
    ):
        assert line in task, task
    assert 'grid = ["ceil_div(p_size_cols, 128)"], block = [128] }\n' in task
    assert "p_gain_1" in task and "p_turn_1_0" in task
    assert "p_size_rows" not in task and "p_rows" not in task and "of_the_host" not in task
    compiles(nvrtc, "#define T float\n" + source)


def test_members_of_classes_with_constructors_and_bases_are_set_one_by_one(nvrtc: Any) -> None:
    task, source = drafted(text_of("classes"))
    assert "x.cols = x_cols; x.data = x_data; Rows<int> z; z.data = z_data; float3 by = {{}, {}, by_z};" in source
    assert '"x_data", role = "in", dtype = "float32", shape = ["x_cols"]' in task
    assert "twice = true;" in source and '"y", role = "inout", dtype = "float32", shape = ["x_cols", "4"]' in task
    compiles(nvrtc, source)


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("y[row][i] = 2 * x[row][i][0];", "x[(row * x_size1 + i) * x_size2 + 0]"),
        ("auto of_row = x[row]; y[row][i] = of_row[i][1] * of_row.size(1);", "of_row[i * x_size2 + 1] * x_size2"),
        ("const float* first = x[row][i].data(); y[row][i] = *first;", "(x + (row * x_size1 + i) * x_size2)"),
        ("y[row][i] = x.data()[row * x.stride(0) + i * x.stride(1)];", "x[row * (x_size1 * x_size2) + i * (x_size2)]"),
        ("y[row][i] = sum(x, row, i);", "sum(x, x_size0, x_size1, x_size2, row, i)"),
    ],
)
def test_accessors_of_tensors_are_pointers_with_the_sizes_in_use(nvrtc: Any, body: str, reads: str) -> None:
    code = f"""#include <torch/extension.h>
    // __global__ void k(torch::PackedTensorAccessor32<float, 3> x) {{ as it was before }}
    #define ROWS torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits>
    __device__ float sum(const torch::PackedTensorAccessor32<float, 3, torch::RestrictPtrTraits> t, int row, int i) {{
        float sum = 0;
        for (int j = 0; j < t.size(2); ++j) sum += t[row][i][j];
        return sum;
    }}
    __global__ void k(const torch::PackedTensorAccessor32<float, 3, torch::RestrictPtrTraits> x,
                      ROWS y) {{
        const int row = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < y.size(1)) {{ {body} }}
    }}
    void run(torch::Tensor x, torch::Tensor y, int rows) {{
        const dim3 grid((y.size(1) + 255) / 256, rows);
        k<<<grid, 256>>>(
            x.packed_accessor32<float, 3, torch::RestrictPtrTraits>(),
            y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
    }}"""
    task, source = drafted(code)
    assert reads in source and "int y_size1" in source and "y_size0" not in source
    assert '"y", role = "out", dtype = "float32", shape = ["rows", "y_size1"] },\n' in task, task
    assert re.search(r'"x", role = "in", .* shape = \["\w+", "x_size1", "x_size2"\] },  # FILL', task), task
    compiles(nvrtc, source)


def test_names_for_accessors_of_any_element_are_known_from_headers_too(tmp_path: Path) -> None:
    (tmp_path / "of.h").write_text(
        "template <typename T, int N>\n    using Of = torch::PackedTensorAccessor32<T, N, torch::RestrictPtrTraits>;\n"
    )
    code = """#include "of.h"
    using Row = at::PackedTensorAccessor64<double, 1>;
    template <typename T> __global__ void k(const Of<T, 2> x, Of<T, 1> y, Row z) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < y.size(0)) y[i] = x[i][0] + z[i]; }"""
    task, source = drafted(code, where=str(tmp_path / "k.cu"))
    assert "k(T* __restrict__ x, int x_size1, T* __restrict__ y, int y_size0, double* z)" in source
    assert '"y", role = "out", dtype = "T", shape = ["y_size0"]' in task


def test_instances_that_a_file_asks_for_bind_a_template_which_another_file_launches(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "ops.cu").write_text("template <class T> void f(T* x, int n) { k<T, 8><<<blocks(n), 64>>>(x, n); }")
    code = f"""template <class T, int B>
    __global__ void k(T* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = B; }}
    //template __global__ void k<float, 4>(float*, int);
    template __global__ void k<__half, 8>(__half*, int);"""
    (tmp_path / "k.cu").write_text(code)
    task, source = drafted(code, where=str(tmp_path / "k.cu"))
    assert 'T = ["float16"]' in task and "constexpr int B = 8;" in source
    assert "the launch, as ops.cu has <<<blocks(n), 64>>>" in task


@pytest.mark.parametrize("place", ["ops.h", "acc/run.inl", "acc/cuda/run.cuh"])
def test_a_launch_is_found_in_any_file_of_the_project(tmp_path: Path, place: str) -> None:
    for folder in (".git", "acc/cuda/kernels"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "far.cu").write_text("void g(float* x) { k<<<far, 64>>>(x); }")
    (tmp_path / place).write_text("void f(float* x) { k<B><<<blocks, 64>>>(x); }")
    code = f"template <int B> __global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = B; }}"
    (tmp_path / "acc/cuda/kernels/k.cuh").write_text(code)
    task, _ = drafted(code, where=str(tmp_path / "acc/cuda/kernels/k.cuh"))
    nearest = "far.cu has <<<far, 64>>>" if place == "ops.h" else f"{Path(place).name} has <<<blocks, 64>>>"
    assert f"the launch, as {nearest}" in task, task


def test_a_launch_by_the_runtime_is_found_where_a_macro_of_another_library_hides_it() -> None:
    code = f"""template <class T, int B> __global__ void k(T* x, int n) {{ typedef int I; {INDEX} x[i] = B; }}
    void f(float* x) {{ CHECKED(cudaLaunchKernel((void*)k<float, 4>, grid_of(x), block, &args[0], 0, lost{{}})); }}"""
    assert "the launch, as the source has <<<grid_of(x), block>>>" in drafted(code)[0]


def test_an_array_that_only_other_instances_use_is_asked_about() -> None:
    code = f"""template <bool B = false>
    __global__ void k(float* x, float* y, float* z, int n) {{ typedef int I; {INDEX}
        if (i >= n) return;
        x[i] = 1;
        if constexpr (B) y[i] = 2; }}"""
    task, _ = drafted(code)
    assert "# FILL: the role and the shape of y, which the kernel uses with other values than B = false" in task
    assert '{ name = "z", role = "in", dtype = "float32", shape = ["1"] },\n' in task


def test_a_launch_in_a_method_of_a_class_is_followed_to_its_origins() -> None:
    code = f"""__global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = 1; }}
    class Node : public lost::Node {{
        void start(float* x, int rows, int cols) {{
            int n = rows * cols;
            int blocks = (n + 63) / 64;
            k<<<blocks, 64>>>(x, n); }} }};"""
    assert 'grid = ["ceil_div(n, 64)"], block = [64] }\n' in drafted(code)[0]


def test_a_type_that_is_an_array_of_the_hosts_choice_is_no_number() -> None:
    code = """template <class P> __global__ void k(P places, float* x) { x[places[threadIdx.x]] = 1; }"""
    with pytest.raises(SourceError, match="k<float> cannot be made: subscripted value is not an array"):
        drafted(code)


def test_the_types_of_all_launches_are_those_of_the_task() -> None:
    code = f"""template <class T, class U>
    __global__ void k(const T* x, U* y, int n) {{ typedef int I; {INDEX} if (i < n) y[i] = x[i]; }}
    void f(double* x, double* y, int n) {{ k<<<n / 64, 64>>>(x, y, n); }}
    void f(float* x, double* y, int n) {{ k<<<n / 64, 64>>>(x, y, n); }}"""
    task, _ = drafted(code)
    assert 'T = ["float64", "float32"]\nU = ["float64"]\n' in task, task


def test_one_of_several_templates_of_a_name_is_made_by_its_type() -> None:
    code = "\n".join(
        f"template <class T> __global__ void k(const {one}* x, T* y, int n) {{ typedef int I; {INDEX} if (i < n) {a} }}"
        for one, a in (("T", "y[i] = *x;"), ("Pair<T>", "y[i] = x[i].a;"))
    )
    code = (
        f"template <class T> struct Pair {{ T a, b; }};\n{code}\nvoid f(double* x, int n) {{ k<<<n, 64>>>(x, x, n); }}"
    )
    task, source = drafted(code)
    assert "# FILL: whether the first k is meant: --entry k:LINE drafts that of line 3" in task and "Pair" not in source
    assert 'shape = ["n", "2"]' in drafted(code, "k:3")[0] and 'T = ["float64"]' in task
    with pytest.raises(SourceError, match="cannot be made") as why:
        drafted(code, "k<Lost>")
    assert "tunesmith_" not in str(why.value)


def test_a_source_on_which_libclang_crashes_is_read_without_what_crashes_it(capfd: Any) -> None:
    lost = "Lost lost;\nvoid f(int s) { auto t = spread<Lost, float>(s, &all); }\n"
    code = f"{lost}__global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = 1; }}"
    assert '"x", role = "out", dtype = "float32", shape = ["n"]' in drafted(code)[0]
    assert not capfd.readouterr().err


def test_members_of_a_class_that_nothing_declares_are_not_names_of_the_source(tmp_path: Path) -> None:
    more = "".join(f"int n{at} = lost{at}(1);\n" for at in range(500))
    code = f"""#include "lost.h"
    {more} __global__ void k(Lost* y) {{ Lost one = y[threadIdx.x]; y[0].a = one.b + one.c(); }}"""
    with pytest.raises(SourceError) as why:
        drafted(code)
    assert "names: Lost (my.cu:502); name with -I the folders of headers that were not found (lost.h)," in str(
        why.value
    )
    assert "accepted headers" not in str(why.value)


AT = "template <class I> __device__ float at(I p) { return p[0]; }\n"


@pytest.mark.parametrize(
    ("head", "of_class", "why"),
    [
        ("template <class T, bool B = T::on>", "", "cannot be made: say what it is over, as --entry 'k<...>'."),
        (f"{AT}template <class I>", "y[1] = at(I());", "or vector): say what its template is over, as --entry 'NAME<"),
        ("template <int B>", "y[0] = Of<B>().next;", "cannot be made: no member named 'next' in 'Of<4>', and nothing"),
    ],
)
def test_why_a_template_cannot_be_made_is_said_of_itself(head: str, of_class: str, why: str) -> None:
    of = "template <int B> struct Of { int a; };\n"
    code = (
        f"{of}{head} __global__ void k(float* y) {{ *y = 1; {of_class} }}\nvoid f() {{ std::vector<int> v; v->a(); }}"
    )
    with pytest.raises(SourceError) as caught:
        drafted(code)
    assert why in str(caught.value)


def test_of_headers_of_one_name_that_of_the_folder_of_the_sources_name_is_taken(tmp_path: Path) -> None:
    for folder, type_ in (
        (".git", "int"),
        ("src/cuda", ""),
        ("include/of/hip", "float"),
        ("include/of/cuda", "double"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / ("real.h" if type_ else "k.cu")).write_text(f"typedef {type_} real;")
    code = '#include "real.h"\n__global__ void k(real* y) { y[threadIdx.x] = 1; }'
    assert 'dtype = "float64"' in drafted(code, where=str(tmp_path / "src/cuda/k.cu"))[0]


def test_what_is_read_ahead_of_a_source_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    built_in.cache_clear()
    drafted("__global__ void k(float* y) { y[threadIdx.x] = 1; }")
    assert not [*tmp_path.iterdir()]


def test_any_number_of_headers_may_not_be_here(tmp_path: Path) -> None:
    for at in range(80):
        (tmp_path / f"h{at}.h").write_text(f'#include <of_the_system{at}.h>\n#include "h{at + 1}.h"\n')
    (tmp_path / "h80.h").write_text("struct Pair { float a, b; };")
    code = '#include "h0.h"\n__global__ void k(Pair* x) { x[threadIdx.x].b = x[0].a + BODY; }'
    assert "struct Pair" in drafted(code.replace("BODY", "1"), where=str(tmp_path / "k.cu"))[1]
    with pytest.raises(SourceError, match=r"names: lost \(k.cu:2\).*\(of_the_system0.h, .* and 68 more\)"):
        drafted(code.replace("BODY", "lost(1)"), where=str(tmp_path / "k.cu"))


def test_functions_of_the_host_that_hand_templates_on_are_followed_in_little_time() -> None:
    parameters = ", ".join(f"int N{at}" for at in range(6))
    given = ", ".join(f"N{at}" for at in range(6))
    steps = "\n".join(
        f"template <{parameters}> void f{at}(float* x) {{ " + 3 * f"f{at + 1}<{given}>(x); " + "}" for at in range(4)
    )
    code = f"""template <{parameters}> __global__ void k(float* x) {{ x[threadIdx.x] = N0 + N5; }}
    {steps}\ntemplate <{parameters}> void f4(float* x) {{ Lost lost(x); k<{given}><<<1, 32>>>(x); }}
    void start(float* x) {{ f0<1, 2, 3, 4, 5, 6>(x); f0<1, 2, 3, 4, 5, 7>(x); }}"""
    begun = time.process_time()
    task, _ = drafted(code)
    assert "whether N5" not in task and time.process_time() - begun < 20


def test_a_brace_that_a_type_of_another_library_leaves_open_is_the_hosts_matter() -> None:
    code = f"""static unsigned seed() {{ static std::mt19937 made{{std::random_device{{}}()}}; return made(); }}
    __global__ void k(float* x, int n) {{ typedef int I; {INDEX} if (i < n) x[i] = 1; }}"""
    assert "x[i] = 1" in drafted(code)[1]
