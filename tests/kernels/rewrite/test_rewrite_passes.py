"""When each rewrite of the data's way applies, why not where it does not, and that what it makes computes the same."""

from __future__ import annotations

import re

import pytest
from emulation import TENSOR_CORES
from rewrite_cases import H200, LINE, ROWS, TURNS, kernel, require_equal, require_refused, rewritten, template_of

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.source import kit
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry

ELEMENT = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"
ALL = "__shared__ float t; if (threadIdx.x == 0) t = 0; __syncthreads(); atomicAdd(&t, s); __syncthreads(); s = t;"


def names_of(task: Task) -> set[str]:
    return {one.name for one in template_of(task).parameters}


X, Y = {"x": ("in", "float32", "n")}, {"y": ("out", "float32", "n")}
XR, YR = {"x": ("in", "float32", "3 * n")}, {"y": ("out", "float32", "3 * n")}


class TestCacheHints:
    def test_loads_and_stores_are_marked_apart(self) -> None:
        template = template_of(kernel(f"{ELEMENT} y[i] = 2 * x[i];", X | Y, LINE))
        assert {"LOADS": (0, 1, 2), "STORES": (0, 1)}.items() <= {p.name: p.values for p in template.parameters}.items()
        assert re.search(
            r"STORE\(&\S*y\[i\]\S* *,[^;]*2 \* \S*LOAD\(&x\[i\]\)", template.source.replace("ELEMENT(x, ", "")
        )

    @pytest.mark.parametrize(
        ("body", "missing"),
        [
            (f"{ELEMENT} y[i] += x[i];", "STORES"),
            (f"{ELEMENT} {{ y[i] = x[i]; y[i] = y[i] + 1; }}", "STORES"),
            (f"{ELEMENT} {{ float v = (y[i] = x[i]); y[i] = v; }}", "STORES"),
            (f"{ELEMENT} {{ use(x); y[i] = x[i]; }}", "LOADS"),
            (f"{ELEMENT} y[i] = atomicAdd((float*)x + i, 1.0f);", "LOADS"),
        ],
    )
    def test_what_may_be_needed_again_or_changes_is_left(self, body: str, missing: str) -> None:
        assert missing not in names_of(kernel(body, X | Y, LINE, "__device__ void use(const float*) {}"))

    @pytest.mark.slow
    def test_marked_loads_and_stores_give_the_same(self) -> None:
        task = kernel(f"{ELEMENT} y[i] = 2 * x[i] + x[n - 1 - i];", X | Y, LINE)
        require_equal(task, [{"LOADS": 1}, {"LOADS": 2, "STORES": 1}, {"VEC": 4, "LOADS": 2, "STORES": 1}])


class TestRowLoops:
    def test_one_loop_goes_in_vectors_and_several_are_kept(self) -> None:
        row = "const float* r = x + blockIdx.x * n;"
        one = names_of(kernel(f"{row} {TURNS} y[blockIdx.x * n + i] = r[i];", XR | YR, ROWS))
        assert "ROW_VEC" in one and "KEEP" not in one
        two = f"{row} float s = 0; {TURNS} s += r[i]; {ALL} {TURNS} y[blockIdx.x * n + i] = r[i] * s;"
        assert {"ROW_VEC", "KEEP"} <= names_of(kernel(two, XR | YR, ROWS))

    @pytest.mark.parametrize(
        "body",
        [
            f"{TURNS} y[i * 2] = 1;",
            f"{TURNS} y[n - i] = 1;",
            f"{TURNS} if (i % 2) y[i] = 1;",
            f"{TURNS} {{ if (i % 3 == 0) continue; y[i] = 1; }}",
            f"{TURNS} y[i] = threadIdx.x;",
            f"const int half = threadIdx.x / 2; {TURNS} y[i] = half;",
            f"__shared__ float s[999]; {TURNS} {{ s[i] = y[i]; }} {TURNS} y[i] = s[i] + 1;",
            f"{TURNS} y[i] = 1; __syncthreads(); {TURNS} y[n - 1 - i] += 2;",
            f"for (int k = 0; k < 2; ++k) {TURNS} y[i] = k;",
            f"{TURNS} y[i] = __shfl_xor_sync(0xffffffffu, i, 1);",
        ],
    )
    def test_what_depends_on_who_has_which_element_stays(self, body: str) -> None:
        require_refused(kernel(body, {"y": ("inout", "float32", "n")}, ROWS), {"ROW_VEC"})

    @pytest.mark.slow
    def test_what_a_loop_writes_is_kept_for_the_next(self) -> None:
        body = f"""float* r = y + blockIdx.x * n; __shared__ float part[64]; float s = 0; const int t = threadIdx.x;
            {TURNS} {{ r[i] = r[i] * 2 + x[blockIdx.x * n + i]; s += r[i]; }}
            part[t] = s;
            __syncthreads();
            for (int o = 32; o > 0; o /= 2) {{ if (t < o) part[t] += part[t + o]; __syncthreads(); }}
            {TURNS} r[i] = r[i] / (1 + fabsf(part[0]));"""
        task = kernel(body, XR | {"y": ("inout", "float32", "3 * n")}, ROWS)
        configs = [{"ROW_VEC": 2}, {"KEEP": 1}, {"ROW_VEC": 4, "KEEP": 2}, {"ROW_VEC": 4, "KEEP": 1, "LOADS": 1}]
        require_equal(task, configs, n=204)
        require_equal(task, configs, n=201)

    def test_neighbours_of_several_types_are_read_together(self) -> None:
        arrays = {"q": ("in", "int8", "3 * n"), **YR}
        task = kernel(f"{TURNS} y[blockIdx.x * n + i] = 0.5f * q[blockIdx.x * n + i];", arrays, ROWS)
        require_equal(task, [{"ROW_VEC": 4}], n=204)


SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
AT = "int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;"
INSIDE = f"{AT} if (r >= n || c >= n) return;"
SUM, ADD = "float s = 0; for (int k = 0; k < n; ++k)", "s += a[r * n + k] * b[k * n + c];"
OUT = "y[r * n + c] = s;"
MATRICES = {"a": ("in", "float32", "n * n"), "b": ("in", "float32", "n * n"), "y": ("inout", "float32", "n * n")}

LOOP, TURNED = "for (int k = 0; k < n; ++k)", "a[k * n + r] * b[k * n + c]"
CUBE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)", "4"), block=("16", "16"))
FLAT = LaunchGeometry(grid=("ceil_div(3 * n * n, 256)",), block=("256",))
CELL = "int i = blockIdx.x * blockDim.x + threadIdx.x,"
TILES: list[Config] = [
    {"OUTPUT_TILE": 32, "OUTPUT_ROWS": 2, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 16},
    {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 8, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 8, "LOADS": 1},
]


class TestOutputTiles:
    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (f"{INSIDE} {SUM} s += a[r * n + k] * y[k * n + c]; {OUT}", "on the row or on the column alone"),
            (f"{INSIDE} {SUM} s += a[r * n + c] * b[k * n + c]; {OUT}", "on the row or on the column alone"),
            (f"{INSIDE} {SUM.replace('< n', '< c')} {ADD} {OUT}", "length is not given by parameters"),
            (f"{INSIDE} {SUM.replace('++k', 'k += 2')} {ADD} {OUT}", "does not count one by one"),
            (f"{INSIDE} {SUM} {{ {ADD} break; }} {OUT}", "may end early"),
            (f"{INSIDE} const float f = b[c]; {SUM} s += f * a[r * n + k] * b[k * n + c]; {OUT}", "uses f,"),
            (f"{INSIDE} y[r * n + c] = 1; {SUM} {ADD} {OUT}", "more than declarations"),
            (f"{INSIDE} if (c > r) {{ y[r * n + c] = 0; return; }} {SUM} {ADD} {OUT}", "more than declarations"),
            (f"{INSIDE} if (c > r) return; {SUM} {ADD} {OUT}", "more than declarations"),
            (f"{AT} if (r > 0 && r < n && c < n) {{ {SUM} {ADD} {OUT} }}", "not one loop behind the guard"),
            (f"{INSIDE} y[r * n + c] = 1; {SUM} {{ {ADD} y[r * n + k] += s; }}", "on the row or on the column alone"),
            (f"{INSIDE} float t = y[r * n + c]; {SUM} y[r * n + c] += t * a[r * n + k] * b[k * n + c];", "more than"),
            (f"{INSIDE} {SUM} if (k % 2) {ADD} {OUT}", "in every round"),
        ],
    )
    def test_what_does_not_share_its_operands_stays(self, body: str, why: str) -> None:
        require_refused(kernel(body, MATRICES, SQUARE), {"OUTPUT_TILE"}, why)

    @pytest.mark.parametrize(
        ("body", "launch"),
        [
            # No guard; conditions one in another; a sum in memory that goes on; three operands on a side and a factor.
            (f"{AT} {SUM} {ADD} y[r * 64 + c] = s;", SQUARE),
            (f"{AT} if (r >= 0 && r < n) if (n > c) {{\n#pragma unroll 2\n{LOOP} y[r * n + c] += {TURNED}; }}", SQUARE),
            (
                f"{INSIDE} const float f = 2; float t = 1; {SUM} {{ {ADD} t += f * a[k * n + r] * b[r * n + k]; }} "
                "y[r * n + c] = s * t;",
                SQUARE,
            ),
            # Batches of blocks, and digits of one number: the whole of it, a part, and of a batch.
            (
                f"if (blockIdx.z >= 3) return; {INSIDE} const float* p = a + blockIdx.z * n * n; "
                f"{SUM} s += p[r * n + k] * b[k * n + c]; y[blockIdx.z * n * n + r * n + c] = s;",
                CUBE,
            ),
            (f"{CELL} r = i / n, c = i % n; if (r < n) {{ {SUM} {ADD} {OUT} }}", FLAT),
            (f"{CELL} c = i % 24; if (i >= n * n-5) return; {SUM} s += a[i / 24 + k] * b[k * n + c]; y[i] = s;", FLAT),
            (
                f"{CELL} q = i / (n * n), rest = i % (n * n), r = rest / n, c = rest % n; if (q >= 3) return; "
                f"y[i] = 0; {LOOP} y[i] += a[q * n * n + r * n + k] * b[k * n + c];",
                FLAT,
            ),
        ],
    )
    def test_rows_and_columns_of_any_kind_give_the_same(self, body: str, launch: LaunchGeometry) -> None:
        longer = {name: (role, dtype, "4 * n * n + 4096") for name, (role, dtype, _) in MATRICES.items()}
        require_equal(kernel(body, longer, launch), TILES, n=37)

    @pytest.mark.parametrize(
        ("dtype", "add", "steps"),
        [
            ("float16", "s += __half2float(a[r * n + k]) * __half2float(b[k * n + c]);", 16),
            ("float16", "{ const float u = a[k * n + r], v = b[c * n + k]; s = fmaf(u, v, s); }", 16),
            ("bfloat16", "s = s + (float)b[c * n + k] * (float)a[r * n + k];", 16),
            ("int8", "s += a[r * n + k] * b[k * n + c];", 4),
            ("int8", "{ signed char u = a[k * n + r]; s = (int)u * (int)b[c * n + k] + s; }", 4),
            # Products in another type than the sum's, or of more.
            ("float16", "s += (float)(a[r * n + k] * b[k * n + c]);", 1),
            ("float16", "s += 2 * (float)a[r * n + k] * (float)b[k * n + c];", 1),
            ("int8", "s += (unsigned char)a[r * n + k] * b[k * n + c];", 1),
            ("int8", "s -= a[r * n + k] * b[k * n + c];", 1),
        ],
    )
    def test_a_plain_sum_of_products_takes_several_steps_at_once(self, dtype: str, add: str, steps: int) -> None:
        total, loop = ("int32", SUM.replace("float", "int")) if dtype == "int8" else ("float32", SUM)
        arrays = {name: (role, total if name == "y" else dtype, size) for name, (role, _, size) in MATRICES.items()}
        headers = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        task = kernel(f"{INSIDE} {loop} {add} {OUT}", arrays, SQUARE, headers)
        values = {one.name: one.values for one in template_of(task).parameters}
        assert values.get("OUTPUT_STEPS", (1,))[-1] == steps
        points = [{"OUTPUT_TILE": 32, "OUTPUT_ROWS": 4, "OUTPUT_COLUMNS": 2, "OUTPUT_DEPTH": 16}] + TILES[1:]
        more = {"OUTPUT_STEPS": steps, "OUTPUT_DEPTH": 16} if steps > 1 else {}
        stand_ins = {kit()["kit/fragments.cuh"]: TENSOR_CORES} if steps == 16 else None
        require_equal(task, [one | more for one in points], n=37, stand_ins=stand_ins)

    def test_no_instruction_for_several_steps_on_devices_that_lack_it(self) -> None:
        arrays = MATRICES | {name: ("in", "float16", "n * n") for name in "ab"}
        body = f"{INSIDE} {SUM} s += (float)a[r * n + k] * (float)b[k * n + c]; {OUT}"
        task = kernel(body, arrays, SQUARE, "#include <cuda_fp16.h>\n")
        template = template_of(task)
        config = template.default_config | TILES[0] | {"OUTPUT_DEPTH": 16, "OUTPUT_STEPS": 16}
        for target, allowed in (("t4", False), ("a100", True)):
            space = feasible(template, [task.workloads[0]], resolve_target(target))
            assert (space.reject(config) is None) is allowed

    @pytest.mark.parametrize(
        "body",
        [
            # A product with a transpose, a column for each thread of y, a sum that goes on, and distances: two sums.
            f"{INSIDE} const float* p = a + r * n; float s = y[r * n + c]; "
            "for (int k = 0; k < n; ++k) s += p[k] * b[c * n + k]; y[r * n + c] = s;",
            pytest.param(
                f"{AT} if (r < n && c < n) {{ float s = 0, q = 1; for (int k = 1; k < n; k++) "
                "{ float d = a[k * n + c] - b[r * n + k]; s += d * d; q += s; } y[c * n + r] = s + q; }",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_tiles_give_the_same(self, body: str) -> None:
        require_equal(kernel(body, MATRICES, SQUARE), TILES, n=37)


@pytest.mark.parametrize(
    ("body", "turned"),
    [
        ("if (r < n && c < n) y[c * n + r] = 2 * a[r * n + c] + n;", True),
        ("if (r >= n) return; if (c >= n) return; const int from = r * n + c, to = c * n + r; y[to] = a[from];", True),
        ("if (r < n && c < n) y[c * n + r] = n > 40 ? a[r * n + c] : 0;", False),
        ("if (r < n && c < n) y[c * n + r] = a[r * n + c] * r;", True),
        ("if (r < n && c < n) y[r * n + c] = a[r * n + c];", False),
    ],
)
def test_what_is_read_along_one_dimension_and_written_along_another_is_turned(body: str, turned: bool) -> None:
    task = kernel(f"{AT} {body}", {"a": MATRICES["a"], "y": MATRICES["y"]}, SQUARE)
    assert ("PERMUTE" in names_of(task)) is turned
    if turned:
        require_equal(task, [{"PERMUTE": 32}, {"PERMUTE": 64, "LOADS": 1}], n=37)


EACH, ROW = "int r = blockIdx.x * blockDim.x + threadIdx.x; if (r >= n) return;", "for (int k = 0; k < n; ++k)"
OVER = {"a": ("in", "float32", "n * n"), "y": ("inout", "float32", "n * n")}


class TestRowLanes:
    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (f"float s = 0; {ROW} s = s * 0.5f + a[r * n + k]; y[r] = s;", "depends on the order"),
            (f"float s = 1; {ROW} s += s * a[r * n + k]; y[r] = s;", "depends on the order"),
            (f"float s = 0; {ROW} {{ s += a[r * n + k]; y[r * n + k] = s; }}", "before it is complete"),
            (f"float s = 0; {ROW} {{ if (a[r * n + k] < 0) break; s += 1; }} y[r] = s;", "may end early"),
            (f"float s = 0; {ROW} s += a[k * n + r]; y[r] = s;", "reads neighbours"),
            (f"{ROW} y[r * n + k] = y[r * n + n - 1 - k] + a[r * n + k];", "used at other places"),
            (f"{ROW} {{ float e = atomicAdd(y + k, a[r * n + k]); if (e > 0) y[r] = e; }}", "used at other places"),
            (f"{ROW} {{ int e = a[k]; y[r * n + k + e] = a[r * n + k]; }}", "used at other places"),
            (f"{ROW} for (int j = 0; j < 4; ++j) y[r * n + k + j] = a[r * n + k];", "used at other places"),
            ("for (int k = 0; k != n; ++k) y[r * n + k] = a[r * n + k];", "one by one"),
            ("for (unsigned char k = 0; k < 250; ++k) y[r * n + k] = a[r * n + k];", "one by one"),
            (f"float s = 9; {ROW} if (a[r * n + k] > s) y[r] = s; else s = a[r * n + k]; y[r] = s;", "the order"),
            (f"{ROW} {{ atomicAdd(y + k, a[k]); }} if (y[(int)a[r]] > 1) {ROW} y[r * n + k] = 1;", "other threads"),
            (f"float s = 0, t = 0; {ROW} {{ s += a[r * n + k]; if (s > 1) t += 1; }} y[r] = t;", "complete"),
            (
                "int k = 0; for (; k < n / 2; ++k) y[r] += a[k]; for (; k < n; ++k) y[r] += 2 * a[k];",
                "lanes do not share",
            ),
        ],
    )
    def test_rounds_that_need_their_order_stay(self, body: str, why: str) -> None:
        require_refused(kernel(f"{EACH} {body}", OVER, LINE), {"LANES"}, why)

    @pytest.mark.parametrize(
        "body",
        [
            # Each lane needs what others wrote: another part of the row, later rounds of a loop around, an element.
            f"{ROW} y[r * n + k] = 1; for (int k = 1; k < n; ++k) y[r * n + k] += a[r * n + k - 1];",
            "for (int p = 0; p < 5; ++p) { for (int k = 0; k < n - 5; ++k) y[r * n + p + k] += a[k + p]; }",
            f"{ROW} y[r * n + k] = a[r * n + k]; float s = 0; {ROW} s += y[r * n + n - 1 - k] * k; y[r * n] = s;",
            f"float s = 0; {ROW} s += a[r * n + k]; y[r] = s; s = 0; {ROW} s += a[k] * y[r]; y[r + n] += s + y[r];",
            # Loops inside of others, branches and early ends outside of the loops, and atomic sums.
            f"for (int p = 0; p < 3; ++p) {{ float s = p; {ROW} s += a[r + k]; if (s > 9) return; y[r * 3 + p] = s; }}",
            f"float s = 0; {ROW} s += a[k] * k; if (r % 2) if (s > 0) y[r] = s; else y[r] = 5; else y[r + n] = 7;",
            f"{ROW} if (k != r) {{ atomicAdd(y + k, a[r * n + k]); }}",
            "float s = 0; for (int k = 0; k < n; ++k) for (int p = 0; p < 2; ++p) { s += a[r * n + k]; } y[r] = s;",
            f"float s = 9, t = 9; {ROW} if (a[k] < s) {{ s = a[k]; }} {ROW} t = a[k] > t ? t : a[k]; y[r] = s + t;",
        ],
    )
    def test_rounds_in_any_order_are_shared(self, body: str) -> None:
        configs: list[Config] = [{"LANES": 4}, {"LANES": 32, "BLOCK": 128, "UNROLL": 4}]
        require_equal(kernel(f"{EACH} {body}", OVER, LINE), configs, n=45)

    def test_a_softmax_of_one_thread_is_shared(self) -> None:
        body = f"""{EACH}
            const float* row = a + r * n; float most = row[0], sum = 0;
            {ROW} most = fmaxf(most, row[k]);
            {ROW} {{ float e = expf(row[k] - most); y[r * n + k] = e; sum += e; }}
            {ROW} y[r * n + k] = y[r * n + k] / sum;"""
        configs: list[Config] = [{"LANES": 8}, {"LANES": 32, "LOADS": 1, "BLOCK": 128}]
        require_equal(kernel(body, OVER, LINE), configs, n=75)

    @pytest.mark.slow
    def test_a_sum_that_begins_elsewhere_counts_once(self) -> None:
        body = f"{EACH} float s = 3; {ROW} if (a[r * n + k] > 0) s -= a[r * n + k]; s = s * 2; y[r] += s;"
        require_equal(kernel(body, OVER, LINE), [{"LANES": 2}, {"LANES": 16}], n=75)


COUNTS = {"x": ("in", "int32", "n"), "y": ("inout", "int32", "100")}
ADDED = f"{ELEMENT} atomicAdd(&y[x[i]], 1);"


class TestOwnBins:
    @pytest.mark.parametrize(
        ("body", "length"),
        [
            (f"{ELEMENT} x[i] > 0 ? atomicAdd(&y[x[i]], 1) : 0;", "100"),
            (f"{ELEMENT} {{ if (atomicAdd(&y[x[i]], 1)) return; }}", "100"),
            (f"{ELEMENT} atomicMax(&y[x[i]], 1);", "100"),
            (f"{ELEMENT} y[x[i]] += 1;", "100"),
            (f"{ELEMENT} tally(y, x[i]);", "100"),
            (f"{ELEMENT} {{ atomicAdd(&y[x[i]], 1); if (y[0] > 5) atomicAdd(y, 1); }}", "100"),
            (ADDED, "100000"),
            (ADDED, "k"),
        ],
    )
    def test_what_is_more_than_adding_to_a_few_places_stays(self, body: str, length: str) -> None:
        arrays = {**COUNTS, "y": ("inout", "int32", length)}
        more = "__device__ void tally(int* of, int at) { atomicAdd(of + at, 1); }"
        require_refused(kernel(body, arrays, LINE, more), {"OWN_BINS"}, "blocks have no bins of their own")

    def test_a_block_has_bins_of_its_own(self) -> None:
        task = kernel(f"{ELEMENT.replace('if (i < n)', 'if (i >= n) return;')} atomicAdd(y + x[i], 2);", COUNTS, LINE)
        template = template_of(task)
        assert template.static_shared_bytes == "0 + ((100) * sizeof(int32) if OWN_BINS else 0)"
        configs: list[Config] = [{"OWN_BINS": True}, {"OWN_BINS": True, "ITEMS": 4, "BLOCK": 128}]
        require_equal(task, [*configs, {"OWN_BINS": True, "VEC": 2}])


PLANE = {"a": ("in", "float32", "n * n"), "y": ("out", "float32", "n * n")}


class TestWindows:
    @pytest.mark.parametrize(
        ("body", "arrays"),
        [
            (f"{INSIDE} y[r * n + c] = a[r * n + c] + a[r * n + c * 2];", PLANE),
            (f"{INSIDE} y[r * n + c] = a[r * n + c] + a[r * 2 + c];", PLANE),
            (f"{INSIDE} y[r * n + c] = a[r * n + c] + a[(r + 40) * n + c];", PLANE),
            (f"{INSIDE} y[r * n + c] = a[r * n + c];", PLANE),
            (f"{ELEMENT} y[i] = y[i] + y[i + 1];", {"y": ("inout", "float32", "n + 1")}),
            # How long the array is, the kernel does not know.
            (f"{ELEMENT} if (i > 3) y[i] = x[i] + x[i - 1];", {"x": ("in", "float32", "rows"), **Y}),
        ],
    )
    def test_what_is_not_read_around_a_place_stays(self, body: str, arrays: dict[str, tuple[str, str, str]]) -> None:
        require_refused(kernel(body, arrays, SQUARE if arrays is PLANE else LINE), {"WALK"})

    def test_a_line_is_kept_with_what_lies_beyond_its_guard(self) -> None:
        body = f"{ELEMENT} if (i > 3) y[i] = x[i - 1] - 2 * x[i + 3] + (i >= 5 ? x[i - 2] : x[i]);"
        task = kernel(body, {"x": ("in", "float32", "n + 3"), **Y}, LINE)
        require_equal(task, [{"WALK": 2}, {"WALK": 8, "BLOCK": 128, "LOADS": 1, "STORES": 1}])

    @pytest.mark.slow
    @pytest.mark.parametrize("n", [37, 64])
    def test_rows_of_a_plane_are_kept(self, n: int) -> None:
        body = f"""{INSIDE} float s = a[r * n + c];
            if (r > 0 && c > 1) s += a[(r - 1) * n + c - 2];
            if (r < n - 1) s += a[(r + 1) * n + c];
            y[r * n + c] = s;"""
        configs: list[Config] = [{"WALK": 2}, {"WALK": 4, "BLOCK_X": 8, "BLOCK_Y": 4, "LOADS": 2}]
        require_equal(kernel(body, PLANE, SQUARE), configs, n=n)


MANY = LaunchGeometry(grid=("n",), block=("64",))
BOTH = {"x": ("in", "float32", "n * n"), "y": ("inout", "float32", "n * n")}
PER_ROW, OUT_OF_ROW = "const float* r = x + blockIdx.x * n;", "y[blockIdx.x * n + i]"


class TestRowTeams:
    @pytest.mark.parametrize(
        ("body", "launch", "missing"),
        [
            (f"{TURNS} {OUT_OF_ROW} = r[i] + gridDim.x;", MANY, "TEAM_ROWS"),
            (f"float s = 0; {TURNS} s += r[i]; if (threadIdx.x == 0) y[blockIdx.x] = s;", MANY, "TEAM_BLOCKS"),
            (f"{TURNS} {OUT_OF_ROW} = r[i]; {TURNS} y[blockIdx.x * n + n - 1 - i] += r[i];", MANY, "TEAM_BLOCKS"),
            (f"{TURNS} {OUT_OF_ROW} = r[i]; if (threadIdx.x == 0) y[blockIdx.x * n] += 1;", MANY, "TEAM_BLOCKS"),
            (f"__shared__ float s[2]; {TURNS} {OUT_OF_ROW} = r[i] + s[0];", MANY, "TEAM_ROWS"),
        ],
    )
    def test_rows_whose_threads_need_one_another_stay(self, body: str, launch: LaunchGeometry, missing: str) -> None:
        require_refused(kernel(f"{PER_ROW} {body}", BOTH, launch), {missing})

    def test_rows_share_blocks_and_blocks_share_rows(self) -> None:
        body = f"{PER_ROW} {TURNS} y[blockIdx.x * n + i] = 2 * r[i] + y[blockIdx.x * n + i];"
        configs: list[Config] = [{"TEAM_ROWS": 4, "BLOCK": 32, "ROW_VEC": 4}, {"TEAM_BLOCKS": 4, "ROW_VEC": 2}]
        task = kernel(body, BOTH, MANY)
        require_equal(task, [*configs, {"TEAM_ROWS": 2, "TEAM_BLOCKS": 2}], n=74)

    def test_bounds_of_a_launch_count_all_rows_of_a_block(self) -> None:
        template = template_of(kernel(f"{PER_ROW} {TURNS} y[blockIdx.x * n + i] = r[i];", BOTH, MANY))
        assert "__launch_bounds__(BLOCK * TEAM_ROWS)" in template.source

    def test_short_rows_have_less_than_a_warp_each(self) -> None:
        body = f"{PER_ROW} {TURNS} y[blockIdx.x * n + i] = 2 * r[i] + y[blockIdx.x * n + i];"
        task = kernel(body, BOTH, MANY)
        template = template_of(task)
        assert {8, 16} <= set(next(one.values for one in template.parameters if one.name == "BLOCK"))
        space = feasible(template, [task.workloads[0]], H200)
        alone = {**template.default_config, "BLOCK": 16}
        assert space.reject(alone) is not None and space.reject({**alone, "TEAM_ROWS": 4}) is None
        require_equal(task, [{"BLOCK": 16, "TEAM_ROWS": 4, "ROW_VEC": 4}, {"BLOCK": 8, "TEAM_ROWS": 8}], n=20)

    @pytest.mark.parametrize("lane", ["threadIdx.x % 32", "(threadIdx.x & 31)"])
    def test_a_thread_that_asks_for_its_lane_keeps_whole_warps(self, lane: str) -> None:
        task = kernel(f"if ({lane} == 0) y[blockIdx.x] = 1; {TURNS} y[blockIdx.x * n + i] = x[i];", BOTH, MANY)
        found = rewritten(task).template
        assert found is None or 16 not in next(one.values for one in found.parameters if one.name == "BLOCK")


WEIGHT = "const float w = x[blockIdx.x * n];"
FROM = "const long long row = blockIdx.x, from = row * n;"
WIDE = "const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"


class TestIndices:
    @pytest.mark.parametrize(
        ("body", "narrow"),
        [
            (f"{WIDE} y[i] = x[i];", True),
            (f"{WIDE.replace('size_t', 'long long')} y[n - 1 - i] = x[i];", True),
            (f"{ELEMENT} y[i] = x[(long long)i * 2 % n];", False),
            (f"{ELEMENT} y[(long long)i] = x[i];", True),
            (f"{ELEMENT} {{ const long long at = (long long)i * n; y[i] = x[at / n]; }}", False),
            (f"{ELEMENT} {{ const long long at = (long long)i * n; y[i] = x[i] + at; }}", False),
            (f"{ELEMENT} {{ const long long at = (long long)i * n; if (at < n) y[at] = x[i]; }}", False),
            (f"{ELEMENT} {{ long long at = i; at += n; y[at - n] = x[i]; }}", False),
            (f"{ELEMENT} {{ const long long at = n * (1ll << 33); y[at - at + i] = x[i]; }}", False),
            (f"{ELEMENT} {{ const float* r = x + n; y[i] = r[(long long)i - n]; }}", False),
            (f"{ELEMENT} {{ x += n; y[i] = x[(long long)i - n]; }}", False),
            (f"{ELEMENT} y[i] = x[(size_t)(x[i] * 0)];", False),
        ],
    )
    def test_numbers_whose_last_bits_tell_all_may_be_narrow(self, body: str, narrow: bool) -> None:
        found = rewritten(kernel(body, X | Y, LINE))
        assert found.template is not None
        assert ("INDEX_BITS" in found.template.default_config) is narrow
        assert narrow or any("indices stay" in one for one in found.skipped)

    def test_a_workload_that_needs_more_bits_has_them(self) -> None:
        task = kernel(f"{WIDE} y[i] = x[i];", {"x": ("in", "float32", "2 * n"), **Y}, LINE)
        template = template_of(task)
        for n, fits in ((1000, True), (1 << 30, False)):
            space = feasible(template, [task.workloads[0].model_copy(update={"sizes": {"n": n}})], H200)
            assert (space.reject({**template.default_config, "INDEX_BITS": 32}) is None) is fits
            assert space.reject(template.default_config) is None

    def test_narrow_indices_reach_the_same_elements(self) -> None:
        signed = WIDE.replace("size_t", "long long")
        task = kernel(f"{signed} {{ const long long at = n - 1 - i; y[at] = x[i] + x[at]; }}", X | Y, LINE)
        require_equal(task, [{"INDEX_BITS": 32}, {"INDEX_BITS": 32, "ITEMS": 4, "BLOCKED": True}])
        task = kernel(f"{WEIGHT} {FROM} {TURNS} y[from + i] = w * x[from + i];", BOTH, MANY)
        require_equal(task, [{"INDEX_BITS": 32, "ROW_VEC": 2, "TEAM_ROWS": 2}], n=74)


class TestWorkPerThread:
    def test_elements_of_a_thread_are_a_block_apart_or_neighbours(self) -> None:
        body = "const int t = threadIdx.x; int i = t + blockIdx.x * blockDim.x; if (i >= n) return; y[i] = x[i] + i;"
        task = kernel(body, X | Y, LINE)
        require_equal(task, [{"ITEMS": 4}, {"ITEMS": 4, "BLOCKED": True}, {"ITEMS": 8, "BLOCKED": True}])
        template = template_of(task)
        space = feasible(template, [task.workloads[0]], H200)
        assert space.reject({**template.default_config, "BLOCKED": True}) is not None

    def test_each_axis_is_shared_out_by_itself(self) -> None:
        task = kernel(f"{INSIDE} y[r * n + c] = a[r * n + c] + r;", PLANE, SQUARE)
        configs: list[Config] = [{"ITEMS_Y": 4, "BLOCKED_Y": True}, {"ITEMS_X": 2, "BLOCKED_X": True, "ITEMS_Y": 2}]
        require_equal(task, configs, n=37)

    def test_a_kernel_that_steps_by_the_grid_has_no_such_choice(self) -> None:
        body = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = x[i];"
        names = names_of(kernel(body, X | Y, LINE))
        assert "ITEMS" in names and "BLOCKED" not in names


@pytest.mark.parametrize(
    "body",
    [
        "float* q = n > 5 ? y : (float*)x; q[i] = 1.0f;",
        "float* q = y; q += i; *q = 1.0f;",
        "y = y + 1; y[i] = 1.0f;",
        "float4* q = (float4*)y; q[i / 4].x = 1.0f;",
        "float* p[2] = {y, y}; p[i % 2][i] = 1.0f;",
        "float* q; q = y; q[i] = 1.0f;",
        "float& q = y[i]; q = 1.0f;",
    ],
)
def test_an_array_with_another_name_is_left_alone(body: str) -> None:
    """What happens to it by that name is not known, so nothing of it goes in vectors, or by a cache of its own."""
    task = kernel(f"{ELEMENT} {{ {body} }}", {**X, "y": ("inout", "float32", "n")}, LINE)
    require_refused(task, {"VEC", "LOADS", "STORES", "WALK", "LANES", "ROW_VEC", "KEEP", "OWN_BINS"})
