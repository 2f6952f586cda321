"""When each rewrite applies, why not where it does not, and that what it makes computes the same."""

from typing import Any

import pytest
from emulation import TENSOR_CORES
from rewrite_cases import (
    H200,
    LINE,
    ROWS,
    TURNS,
    Arrays,
    kernel,
    opencl_kernel,
    require_equal,
    require_refused,
    rewritten,
    same,
    stays,
    task_of,
    template_of,
)

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.source import kit
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Config, LaunchGeometry

ELEMENT = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"
STRIDED = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)"
X: Arrays = {"x": ("in", "float32", "n")}
Y: Arrays = {"y": ("out", "float32", "n")}
SERIES: Arrays = {**X, "y": ("inout", "float32", "n")}
THREE: Arrays = {"x": ("in", "float32", "3 * n"), "y": ("inout", "float32", "3 * n")}
PLANE: Arrays = {"x": ("in", "float32", "n * n"), "y": ("inout", "float32", "n * n")}
MATRICES: Arrays = {"a": PLANE["x"], "b": PLANE["x"], "y": PLANE["y"]}
OVER: Arrays = {"a": PLANE["x"], "y": PLANE["y"]}
COUNTS: Arrays = {"x": ("in", "int32", "n"), "y": ("inout", "int32", "100"), "z": ("inout", "float32", "n")}
SIGNAL: Arrays = {"x": ("in", "float32", "n * 40"), "y": ("out", "float32", "n * 40")}
MANY = LaunchGeometry(grid=("n",), block=("64",))
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)"), block=("16", "16"))
WIDE_SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 8)"), block=("16", "8"))
CUBE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 16)", "4"), block=("16", "16"))
FLAT = LaunchGeometry(grid=("ceil_div(3 * n * n, 256)",), block=("256",))
BLOCKS = LaunchGeometry(grid=("ceil_div(n, 128)",), block=("128",))
STEPS = LaunchGeometry(grid=("1", "n"), block=("64",))
AT = "int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;"
INSIDE = f"{AT} if (r >= n || c >= n) return;"
EACH, ROW = "int r = blockIdx.x * blockDim.x + threadIdx.x; if (r >= n) return;", "for (int k = 0; k < n; ++k)"
HINTS = [
    *stays(("STORES", LINE, X | Y), f"{ELEMENT} y[i] += x[i];", f"{ELEMENT} {{ float v = (y[i] = x[i]); y[i] = v; }}"),
    *stays(
        ("LOADS", LINE, X | Y),
        f"{ELEMENT} {{ use(x); y[i] = x[i]; }}",
        f"{ELEMENT} y[i] = atomicAdd((float*)x + i, 1.0f);",
        more="__device__ void use(const float*) {}",
    ),
    *stays(("VEC", LINE, SERIES), ELEMENT.replace("int", "unsigned char") + " y[i] = x[i];"),
    # Of an array with another name it is not known what happens to it by that name.
    *stays(
        ("VEC LOADS STORES WALK LANES ROW_VEC KEEP OWN_BINS", LINE, SERIES),
        "float* q = n > 5 ? y : (float*)x; q[i] = 1.0f;",
        "y = y + 1; y[i] = 1.0f;",
        "float4* q = (float4*)y; q[i / 4].x = 1.0f;",
        "float* p[2] = {y, y}; p[i % 2][i] = 1.0f;",
        "float* q; if (n > 5) q = y; q[i] = 1.0f;",
        "float& q = y[i]; q = 1.0f;",
        at=f"{ELEMENT} {{ BODY }}",
    ),
]
# What may depend on the size of a block.
HINTS += stays(
    ("BLOCK", ROWS, THREE),
    f"int w = threadIdx.x / 32; y[w] = 1; {TURNS} y[i] = 1;",
    f"{TURNS} {{ __syncthreads(); y[i] = 1 + y[n - 1 - i]; }}",
    f"extern __shared__ float s[]; {TURNS} y[i] = s[threadIdx.x / 32];",
    f"\n#define ME threadIdx.x\n{ELEMENT} y[i] = ME;",
)
# A reference that may be written is another name.
LOOKED, LOOK = f"{ELEMENT} y[i] = look(y[i]);", "__device__ float look(float& at) { return at + 1; }"
HINTS += stays(("VEC", LINE, SERIES), LOOKED, more=LOOK)
REFERENCES = same((LINE, SERIES, 203), [{"VEC": 4}], LOOKED, more=LOOK.replace("(float", "(const float"))
KEPT = f"""float* r = y + blockIdx.x * n; __shared__ float part[64]; float s = 0; const int t = threadIdx.x;
    {TURNS} {{ r[i] = r[i] * 2 + x[blockIdx.x * n + i]; s += r[i]; }}
    part[t] = s;
    __syncthreads();
    for (int o = 32; o > 0; o /= 2) {{ if (t < o) part[t] += part[t + o]; __syncthreads(); }}
    {TURNS} r[i] = r[i] / (1 + fabsf(part[0]));"""
KEPT_CONFIGS: list[Config] = [
    {"ROW_VEC": 2},
    {"KEEP": 1},
    {"ROW_VEC": 4, "KEEP": 2},
    {"ROW_VEC": 4, "KEEP": 1, "LOADS": 1},
]
# What depends on who has which element.
HALF = TURNS.replace("< n", "< n / 2")
ROW_LOOPS = stays(
    ("ROW_VEC", ROWS, {"y": ("inout", "float32", "n")}),
    f"{TURNS} y[n - i] = 1;",
    f"{TURNS} {{ if (i % 3 == 0) continue; y[i] = 1; }}",
    f"const int half = threadIdx.x / 2; {TURNS} y[i] = half;",
    f"__shared__ float s[999]; {TURNS} {{ s[i] = y[i]; }} {TURNS} y[i] = s[i] + 1;",
    f"for (int k = 0; k < 2; ++k) {{ {TURNS} y[i] = k; }}",
    # A sum of each block, over the elements that it happens to have.
    """__shared__ float part[64]; float s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += y[i];
    part[threadIdx.x] = s; __syncthreads();
    if (threadIdx.x == 0) { for (int k = 1; k < 64; ++k) s += part[k]; y[blockIdx.x] = s; }""",
    f"for (int k = 0; k < 2; ++k) {{ {TURNS} y[k * n / 2 + i] += k; }}",
    f"for (int k = 0; k < 2; ++k) {{ {HALF} {{ y[k * (n / 2) + 2 * i] = k; y[k * (n / 2) + 2 * i + 1] = k; }} }}",
    f"{TURNS} y[i] = __shfl_xor_sync(0xffffffffu, i, 1);",
)
ROW_LOOPS_SAME = [
    *same((ROWS, THREE, 201), KEPT_CONFIGS, KEPT),
    *same(
        (ROWS, {"q": ("in", "int8", "3 * n"), "y": THREE["y"]}, 204),
        [{"ROW_VEC": 4}],
        f"{TURNS} y[blockIdx.x * n + i] = 0.5f * q[blockIdx.x * n + i];",
    ),
    *same(
        (ROWS, THREE, 204),
        [{"ROW_VEC": 4}],
        f"{TURNS.replace('< n', '< min(n, 2 * 77)')} y[blockIdx.x * n + i] = 2 * x[blockIdx.x * n + i];",
        f"{TURNS.replace('< n', '< max(n / 2, n - 7)')} y[blockIdx.x * n + i] = 2 * x[blockIdx.x * n + i];",
    ),
    # Blocks that go on from row to row.
    *same(
        (BLOCKS.model_copy(update={"grid": ("5",)}), PLANE, 76),
        [{"ROW_VEC": 4}, {"ROW_VEC": 2, "KEEP": 4}, {"KEEP": 1, "BLOCK": 64}],
        f"""__shared__ float part[32];
        for (long long row = blockIdx.x; row < n; row += gridDim.x) {{
            const float* from = x + row * n; float s = 0;
            {TURNS} s += from[i] * from[i];
            for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
            __syncthreads();
            if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
            __syncthreads();
            s = 0;
            for (int k = 0; k < blockDim.x / 32; ++k) s += part[k];
            {TURNS} y[row * n + i] = from[i] / s;
        }}""",
    ),
]
PAIRS = "const int at = blockIdx.x * n + i / 6 * 12 + i % 6; y[at] = x[at] - x[at + 6]; y[at + 6] = x[at + 6] + x[at];"
RECORD = "const int at = blockIdx.x * n + 2 * i; y[at + 1] = x[at] - x[at + 1]; y[at] = 2 * x[at];"
LANE = "const int w = threadIdx.x / 32, l = threadIdx.x % 32; for (int i = l; i < n; i += 32)"
WARPS = LaunchGeometry(grid=("1",), block=("96",))
LINES = LaunchGeometry(grid=("1",), block=("32", "3"))
OF_LINE, AT_LINE = "for (int i = threadIdx.x; i < n; i += 32)", "threadIdx.y * n + i"
ROW_LOOPS_SAME += [
    *same(
        (ROWS, THREE, 204),
        [{"ROW_VEC": 2}, {"ROW_VEC": 4, "LOADS": 1, "STORES": 1}],  # parts of 6 elements have no vectors of 4
        f"{TURNS} y[i / 12 * 36 + blockIdx.x * 12 + i % 12] = 2 * x[blockIdx.x * n + i];",
        f"{HALF} {{ {PAIRS} }}",
    ),
    *same((ROWS, THREE, 204), [{"ROW_VEC": 2}], f"{HALF} {{ {PAIRS} y[at] += x[at]; }}"),
    *same((ROWS, THREE, 204), [{"ROW_VEC": 2, "LOADS": 1}], f"{HALF} {{ {RECORD} }}"),
    *same((WARPS, THREE, 204), [{"ROW_VEC": 4}], f"{LANE} y[w * n + i] = 2 * x[w * n + i];"),
    *same(
        (WARPS, THREE, 204),
        [{"ROW_VEC": 2, "KEEP": 2}],
        f"""float s = 0; {LANE} s += x[w * n + i]; for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(~0u, s, o);
        for (int i = l; i < n; i += 32) y[w * n + i] = s * x[w * n + i];""",
    ),
    *same((LINES, THREE, 203), [{"ROW_VEC": 2, "STORES": 1}], f"{OF_LINE} y[{AT_LINE}] = 2 * x[{AT_LINE}];"),
]
ROW_LOOPS += [
    *stays(
        ("ROW_VEC", WARPS, THREE),
        f"{LANE.replace('/ 32', '/ 16')} y[w * n + i] = 1;",
        f"{LANE} y[w * n + i] = l;",
        f"{LANE.replace('i < n', 'i < n - l')} y[w * n + i] = 1;",
        f"{OF_LINE} y[i] = 1;",  # its block has 96 threads
    ),
    *stays(
        ("ROW_VEC", ROWS, THREE),
        f"{TURNS} y[blockIdx.x * n + i + i / 32] = 1;",
        f"{HALF} y[blockIdx.x * n + 2 * i] = 1;",
    ),
]
SPLIT = [
    *same(
        (LINE, SERIES, 204),
        [{"VEC": 2}, {"VEC": 4, "ITEMS": 2, "STORES": 1}],
        f"{ELEMENT} y[i / 12 * 12 + (i % 12 + 6) % 12] = 2 * x[i];",
        f"{ELEMENT.replace('< n', '< n / 2')} {{ {PAIRS.replace('blockIdx.x * n', '0')} }}",
    ),
    # Without a guard.
    *same((LINE, SERIES, 512), [{"VEC": 4}, {"VEC": 2, "ITEMS": 2}], f"{ELEMENT.split(' if')[0]} y[i] += 2 * x[i];"),
    *same(
        (LINE, SERIES, 202),
        [{"VEC": 2, "STORES": 1}],
        f"{ELEMENT.replace('< n', '< n / 2')} {{ {RECORD.replace('blockIdx.x * n', '0')} }}",
    ),
]
SUM, ADD = "float s = 0; for (int k = 0; k < n; ++k)", "s += a[r * n + k] * b[k * n + c];"
OUT, TURNED = "y[r * n + c] = s;", "a[k * n + r] * b[k * n + c]"
CELL = "int i = blockIdx.x * blockDim.x + threadIdx.x,"
LONGER: Arrays = {name: (role, dtype, "4 * n * n + 4096") for name, (role, dtype, _) in MATRICES.items()}
TILES: list[Config] = [
    {"OUTPUT_TILE": 32, "OUTPUT_ROWS": 2, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 16},
    {"OUTPUT_TILE": 64, "OUTPUT_ROWS": 8, "OUTPUT_COLUMNS": 4, "OUTPUT_DEPTH": 8, "LOADS": 1},
]
OUTPUT_TILES = stays(
    ("OUTPUT_TILE", SQUARE, MATRICES),
    (f"{INSIDE} {SUM} s += a[r * n + c] * b[k * n + c]; {OUT}", "on the row or on the column alone"),
    (f"{INSIDE} {SUM.replace('< n', '< c')} {ADD} {OUT}", "length is not given by parameters"),
    (f"{INSIDE} {SUM.replace('++k', 'k += 2')} {ADD} {OUT}", "does not count one by one"),
    (f"{INSIDE} {SUM} {{ {ADD} break; }} {OUT}", "may end early"),
    (f"{INSIDE} const float f = b[c]; {SUM} s += f * a[r * n + k] * b[k * n + c]; {OUT}", "uses f,"),
    (f"{INSIDE} y[r * n + c] = 1; {SUM} {ADD} {OUT}", "more than declarations"),
    (f"{AT} if (r > 0 && r < n && c < n) {{ {SUM} {ADD} {OUT} }}", "not one loop behind the guard"),
    (f"{INSIDE} y[r * n + c] = 1; {SUM} {{ {ADD} y[r * n + k] += s; }}", "on the row or on the column alone"),
    (f"{INSIDE} float t = y[r * n + c]; {SUM} y[r * n + c] += t * a[r * n + k] * b[k * n + c];", "more than"),
    (f"{INSIDE} {SUM} if (k % 2) {ADD} {OUT}", "in every round"),
)
OUTPUT_TILES_SAME = [
    *same(
        (SQUARE, LONGER, 37),
        TILES,
        # No guard; conditions one in another; a sum in memory that goes on; three operands on a side and a factor.
        f"{AT} {SUM} {ADD} y[r * 64 + c] = s;",
        f"{AT} if (r >= 0 && r < n) if (n > c) {{\n#pragma unroll 2\n{ROW} y[r * n + c] += {TURNED}; }}",
        f"{INSIDE} const float f = 2; float t = 1; {SUM} {{ {ADD} t += f * a[k * n + r] * b[r * n + k]; }} "
        "y[r * n + c] = s * t;",
        # A product with a transpose, a sum that goes on, and distances: two sums, a column for each thread of y.
        f"{INSIDE} const float* p = a + r * n; float s = y[r * n + c]; {ROW} s += p[k] * b[c * n + k]; {OUT}",
        f"{AT} if (r < n && c < n) {{ float s = 0, q = 1; for (int k = 1; k < n; k++) "
        "{ float d = a[k * n + c] - b[r * n + k]; s += d * d; q += s; } y[c * n + r] = s + q; }",
    ),
    # Batches of blocks, and digits of one number: the whole of it, a part, and of a batch.
    *same(
        (CUBE, LONGER, 37),
        TILES,
        f"if (blockIdx.z >= 3) return; {INSIDE} const float* p = a + blockIdx.z * n * n; "
        f"{SUM} s += p[r * n + k] * b[k * n + c]; y[blockIdx.z * n * n + r * n + c] = s;",
    ),
    *same(
        (FLAT, LONGER, 37),
        TILES,
        f"{CELL} r = i / n, c = i % n; if (r < n) {{ {SUM} {ADD} {OUT} }}",
        f"{CELL} c = i % 24; if (i >= n * n-5) return; {SUM} s += a[i / 24 + k] * b[k * n + c]; y[i] = s;",
        f"{CELL} q = i / (n * n), rest = i % (n * n), r = rest / n, c = rest % n; if (q >= 3) return; "
        f"y[i] = 0; {ROW} y[i] += a[q * n * n + r * n + k] * b[k * n + c];",
    ),
]
LANES = [
    *stays(
        ("LANES", LaunchGeometry(grid=("5000",), block=("64",)), OVER),
        (f"{EACH} float s = 0; {ROW} s += a[k * n + r]; y[r] = s;", "reads neighbours"),
    ),
    *stays(
        ("LANES", LINE, OVER),
        (f"float s = 0; {ROW} s = s * 0.5f + a[r * n + k]; y[r] = s;", "depends on the order"),
        (f"float s = 1; {ROW} s += s * a[r * n + k]; y[r] = s;", "depends on the order"),
        (f"float s = 1; {ROW} s = sqrtf(s + a[r * n + k]); y[r] = s;", "depends on the order"),
        (f"float s = 0; {ROW} {{ s += a[r * n + k]; y[r * n + k] = s; }}", "before it is complete"),
        (f"float s = 0; {ROW} {{ if (a[r * n + k] < 0) break; s += 1; }} y[r] = s;", "may end early"),
        (f"{ROW} y[r * n + k] = y[r * n + n - 1 - k] + a[r * n + k];", "used at other places"),
        (f"{ROW} {{ int e = a[k]; y[r * n + k + e] = a[r * n + k]; }}", "used at other places"),
        (f"{ROW} for (int j = 0; j < 4; ++j) y[r * n + k + j] = a[r * n + k];", "used at other places"),
        ("for (int k = 0; k != n; ++k) y[r * n + k] = a[r * n + k];", "one by one"),
        ("for (unsigned char k = 0; k < 250; ++k) y[r * n + k] = a[r * n + k];", "one by one"),
        (f"float s = 9; {ROW} if (a[r * n + k] > s) y[r] = s; else s = a[r * n + k]; y[r] = s;", "the order"),
        (f"{ROW} {{ atomicAdd(y + k, a[k]); }} if (y[(int)a[r]] > 1) {ROW} y[r * n + k] = 1;", "other threads"),
        (f"float s = 0, t = 0; {ROW} {{ s += a[r * n + k]; if (s > 1) t += 1; }} y[r] = t;", "complete"),
        ("int k = 0; for (; k < n / 2; ++k) y[r] += a[k]; for (; k < n; ++k) y[r] += 2 * a[k];", "lanes do not share"),
        at=f"{EACH} BODY",
    ),
    *stays(
        ("LANES", LaunchGeometry(grid=("1",), block=("64",)), {**PLANE, "z": ("inout", "float32", "n")}),
        (
            "for (int j = threadIdx.x; j < n; j += blockDim.x) for (int l = 0; l < n; ++l) y[j * n + l] = x[l];"
            "if (threadIdx.x % 32 == 0) z[blockIdx.x] = 1;",
            "in its warp",
        ),
    ),
]
TWO = LaunchGeometry(grid=("2",), block=("64",))
ENDS: Arrays = {**PLANE, "v": X["x"], "y": SERIES["y"], "z": SERIES["y"]}
NUMBERED: Arrays = {**PLANE, "w": ("in", "int32", "n")}
LANES_SAME = [
    *same(
        (LINE, OVER, 45),
        [{"LANES": 4}, {"LANES": 32, "BLOCK": 128, "UNROLL": 4}],
        # Each lane needs what others wrote: another part of the row, later rounds of a loop around, an element.
        f"{ROW} y[r * n + k] = 1; for (int k = 1; k < n; ++k) y[r * n + k] += a[r * n + k - 1];",
        "for (int p = 0; p < 5; ++p) { for (int k = 0; k < n - 5; ++k) y[r * n + p + k] += a[k + p]; }",
        f"{ROW} y[r * n + k] = a[r * n + k]; float s = 0; {ROW} s += y[r * n + n - 1 - k] * k; y[r * n] = s;",
        f"float s = 0; {ROW} s += a[r * n + k]; y[r] = s; s = 0; {ROW} s += a[k] * y[r]; y[r + n] += s + y[r];",
        # Loops inside of others, branches and early ends outside of them, atomic sums, a sum that begins elsewhere.
        f"for (int p = 0; p < 3; ++p) {{ float s = p; {ROW} s += a[r + k]; if (s > 9) return; y[r * 3 + p] = s; }}",
        f"float s = 0; {ROW} s += a[k] * k; if (r % 2) if (s > 0) y[r] = s; else y[r] = 5; else y[r + n] = 7;",
        f"{ROW} if (k != r) {{ atomicAdd(y + k, a[r * n + k]); }}",
        "float s = 0; for (int k = 0; k < n; ++k) for (int p = 0; p < 2; ++p) { s += a[r * n + k]; } y[r] = s;",
        f"float s = 9, t = 9; {ROW} if (a[k] < s) {{ s = a[k]; }} {ROW} t = a[k] > t ? t : a[k]; y[r] = s + t;",
        f"float s = 3; {ROW} if (a[r * n + k] > 0) s -= a[r * n + k]; s = s * 2; y[r] += s;",
        # Few threads, whose lanes read elements that are apart; a flag, and the largest of records.
        f"float s = 1e30f; {ROW} {{ if (a[k * n + r] < s) s = a[k * n + r]; }} y[r] = s;",
        f"bool any = r > 40; int all = 7; float s = -9; {ROW} {{ if (a[k * 2 + 1] > 2 + r % 2) any = true;"
        f"if (a[k * 2] < -1) {{ all = 3; }} s = fmaxf(s, a[k * 2]); }} y[r] = any ? s + all : s - all;",
        # A softmax of one thread.
        f"""const float* row = a + r * n; float most = row[0], sum = 0; {ROW} most = fmaxf(most, row[k]);
        {ROW} {{ float e = expf(row[k] - most); y[r * n + k] = e; sum += e; }}
        {ROW} y[r * n + k] = y[r * n + k] / sum;""",
        at=f"{EACH} BODY",
    ),
    # Counters that are declared ahead of their loops; a row by pointer whose result goes to every element.
    *same(
        (LINE, ENDS, 75),
        [{"LANES": 8}, {"LANES": 32, "BLOCK": 128}],
        """int who = threadIdx.x + blockIdx.x * blockDim.x, c; if (n <= who) return;
        float dot = 0, most = x[who * n];
        for (c = 0; c < n; c++) dot += x[c + who * n] * v[c];
        for (c = 1; n > c; c += 1) most = fmaxf(x[who * n + c], most);
        y[who] = dot; z[who] = most;""",
    ),
    *same(
        (LINE, PLANE, 75),
        [{"LANES": 4}, {"LANES": 16, "FAST_MATH": True}],
        """const long long line = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (line < n) {
            const float* from = x + line * n; float* to = y + n * line; double total = 1;
            for (unsigned int k = 0; k < n; ++k) { const float e = from[k]; if (e > 0) total = total + e; }
            const float by = 1.0f / (float)total;
            for (unsigned int k = 0; k < n; ++k) to[k] = from[k] * by;
        }""",
    ),
    # Loops inside those in which threads take turns, as PointNet++ groups points.
    *same(
        (TWO, NUMBERED, 75),
        [{"LANES": 32, "TEAM_BLOCKS": 32}, {"LANES": 8, "BLOCK": 16, "TEAM_ROWS": 4, "STORES": 1}],
        """const int b = blockIdx.x, stride = blockDim.x; x += b * n; y += n * n / 3 * b;
        for (int j = threadIdx.x; j < n / 9; j += stride)
            for (int k = 0; k < 3; ++k) { const int from = w[j * 3 + k] & 7;
                for (int l = 0; l < n; ++l) y[j * 3 * n + k * n + l] = x[from * n + l]; }""",
    ),
    *same(
        (TWO, NUMBERED, 75),
        [{"LANES": 16, "BLOCK": 128}, {"LANES": 2, "TEAM_ROWS": 2}],
        """for (int j = threadIdx.x; j < n; j += blockDim.x) { float s = 0;
            for (int l = 0; l < n; ++l) { s += x[j * n + l]; atomicAdd(&y[(w[j] & 3) * n + l], 1.5f); }
            if (blockIdx.x == 1) y[n * 9 + j] = s; }""",
    ),
    *same(
        (TWO, NUMBERED, 75),
        [{"LANES": 8}, {"LANES": 32, "BLOCK": 64}],
        """for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < n; j += gridDim.x * blockDim.x) {
            if (w[j] % 3 == 0) continue;
            for (int l = 0; l < n; ++l) y[j * n + l] = x[(w[j] & 3) * n + l]; }""",
    ),
]
DOWN = "float s = 0; for (int i = 0; i < n; i++)"
COLUMN = "const int j = blockIdx.x * blockDim.x + threadIdx.x; if (j < n) { BODY }"
COLUMN_LANES = stays(
    ("COLUMN_LANES", LINE, PLANE),
    (f"{DOWN} s = s * 0.5f + x[i * n + j]; y[j] = s;", "no sums whose order"),
    (f"{DOWN} s += x[j * n + i]; y[j] = s;", "reads no neighbours"),
    (f"{DOWN} {{ s += x[i * n + j]; y[i * n + j] = 0; }}", "more than to add"),
    (f"{DOWN} {{ s += x[i * n + j]; if (s > 9) break; }} y[j] = s;", "more than"),
    ("float s = y[j]; y[j] = 0; for (int i = 0; i < n; i++) s += x[i * n + j]; y[j] = s;", "ahead of the loop"),
    at=COLUMN,
)
COLUMN_LANES_SAME = same(
    (LINE, {**PLANE, "v": X["x"], "y": SERIES["y"]}, 75),
    [{"COLUMN_LANES": 4}, {"COLUMN_LANES": 32, "UNROLL": 2, "LOADS": 1}],
    "y[j] = 0; for (int i = 0; i < n; i++) y[j] += x[i * n + j] * v[i]; y[j] /= n;",
    "float most = v[j], sum = 1; for (int i = 1; i < n; ++i) { most = fmaxf(most, x[i * n + j]);"
    "if (x[i * n + j] > 0) sum += v[i]; } y[j] = most + sum;",
    "int i; for (i = 0; i < n; i++) y[j] += x[j + i * n];",
    at=COLUMN,
)
WITHOUT_BINS = "blocks have no bins of their own"
ADDED = f"{ELEMENT} atomicAdd(&y[x[i]], 1);"
OWN_BINS = [
    *stays(
        ("OWN_BINS", LINE, COUNTS),
        (f"{ELEMENT} x[i] > 0 ? atomicAdd(&y[x[i]], 1) : 0;", WITHOUT_BINS),
        (f"{ELEMENT} {{ if (atomicAdd(&y[x[i]], 1)) return; }}", WITHOUT_BINS),
        (f"{ELEMENT} atomicMax(&y[x[i]], 1);", WITHOUT_BINS),
        (f"{ELEMENT} y[x[i]] += 1;", WITHOUT_BINS),
        (f"{ELEMENT} tally(y, x[i]);", WITHOUT_BINS),
        (f"{ELEMENT} {{ atomicAdd(&y[x[i]], 1); if (y[0] > 5) atomicAdd(y, 1); }}", WITHOUT_BINS),
        more="__device__ void tally(int* of, int at) { atomicAdd(of + at, 1); }",
    ),
    *stays(("OWN_BINS", LINE, {**COUNTS, "y": ("inout", "int32", "100000")}), (ADDED, WITHOUT_BINS)),
    *stays(("OWN_BINS", LINE, {**COUNTS, "y": ("inout", "int32", "k")}), (ADDED, WITHOUT_BINS)),
]
BINS: Config = {"OWN_BINS": True}
EIGHT: Config = {"COPIES": 8}
BLOCKS_BINS = """__shared__ int bins[64], most[2]; if (threadIdx.x < 2) most[threadIdx.x] = 0; bins[threadIdx.x] = 0;
    __syncthreads();
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) ADD
    __syncthreads(); const int own = bins[threadIdx.x];
    if (bins[threadIdx.x] != 0) atomicAdd(y + threadIdx.x, own + most[0]);"""
COPIES = stays(
    ("COPIES", LINE, COUNTS),
    "z[e] = atomicAdd(bins + x[e] % 64, 1);",
    "{ int* to = bins; atomicAdd(to + x[e] % 64, 1); }",
    "{ atomicMax(&bins[x[e] % 64], 3); atomicAdd(&bins[x[e] % 64], 1); }",
    "{ atomicAdd(&bins[x[e] % 64], 1); bins[0] = 1; }",
    "atomicAdd((unsigned int*)&bins[x[e] % 64], 1u);",
    "{ tally(bins, x[e] % 64); atomicAdd(&bins[5], 1); }",
    at=BLOCKS_BINS.replace("ADD", "BODY"),
    more="__device__ void tally(int* of, int at) { atomicAdd(of + at, 1); }",
)
TAKEN = "for (int t = threadIdx.x; t < 64; t += blockDim.x)"
GIVEN = f"""__shared__ int bins[64]; {TAKEN} bins[t] = 0; __syncthreads(); const int t = threadIdx.x;
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) BODY"""
COUNTED = "atomicAdd(&bins[x[e] % 64], 1); __syncthreads();"
GIVEN_STAYS = stays(
    ("ROW_VEC", LINE, COUNTS),
    # The blocks' parts of a sum matter.
    f"{COUNTED} if (blockIdx.x == 0) atomicAdd(&y[t], bins[t]);",
    f"{COUNTED} atomicAdd(&y[t + blockIdx.x], bins[t]);",
    f"{COUNTED} bins[blockIdx.x] = 0; __syncthreads(); atomicAdd(&y[t], bins[t]);",
    f"{COUNTED} atomicAdd(&y[t], bins[t] / 2);",
    f"{COUNTED} if (bins[t] != 0) {{ atomicAdd(&y[t], bins[t]); atomicAdd(&y[70], 1); }}",
    f"{COUNTED} if (bins[t] != 0) atomicAdd(&y[70], 1);",
    f"{COUNTED} atomicMax(&y[t], bins[t]);",
    f"{COUNTED} y[t] = bins[t];",
    f"{COUNTED} if (blockIdx.x > 0) bins[0] = 0; atomicAdd(&y[t], bins[t]);",
    "atomicAdd(&bins[x[e] % 64], x[e] - 9); __syncthreads(); if (bins[t] > 0) atomicAdd(&y[t], bins[t]);",
    # Lanes ask for what others have added, or for their own numbers.
    "{ if (bins[3] < 7) atomicAdd(&bins[x[e] % 64], 1); } __syncthreads(); atomicAdd(&y[t], bins[t]);",
    "atomicAdd(&bins[t], x[e]); __syncthreads(); atomicAdd(&y[t], bins[t]);",
    at=GIVEN,
)
GIVEN_SAME = same(
    (LaunchGeometry(grid=("3",), block=("64",)), COUNTS, 1003),
    [{"ROW_VEC": 4}, {"ROW_VEC": 2, "COPIES": 4, "LOADS": 1}],
    f"{COUNTED} atomicAdd(&y[t], bins[t]);",
    f"{COUNTED} if (bins[t] > 0) atomicAdd(y + t, bins[t]);",
    f"{COUNTED} const int own = bins[t]; if (own) atomicAdd(y + t, own);",
    f"{{ if (x[e] > 90) continue; {COUNTED.split(';')[0]}; }} __syncthreads(); {TAKEN} if (bins[t] != 0) "
    "atomicAdd(&y[t], bins[t]);",
    at=GIVEN,
) + same(
    (LaunchGeometry(grid=("3",), block=("64",)), COUNTS, 1003),
    [{"ROW_VEC": 4}],
    "for (int e = threadIdx.x; e < n; e += blockDim.x) atomicAdd(&bins[x[e] % 64], 1); __syncthreads(); "
    "if (blockIdx.x == 1) y[threadIdx.x] = bins[threadIdx.x];",
    at="__shared__ int bins[64]; bins[threadIdx.x] = 0; __syncthreads(); BODY",
)
COPIES_SAME = same(
    (LaunchGeometry(grid=("3",), block=("64",)), COUNTS, 1000),
    [EIGHT, {"COPIES": 32, "UNROLL": 2}, {"COPIES": 2, "LOADS": 1}],
    "atomicAdd(&bins[x[e] % 64], 1);",
    "{ if (x[e] > 50) continue; atomicAdd(bins + x[e] % 64, x[e]); atomicAdd(&most[0], (int)(e == 7)); }",
    at=BLOCKS_BINS.replace("ADD", "BODY"),
)
OWN_BINS_SAME = [
    *same(
        (LINE, COUNTS, 203),
        [BINS, BINS | EIGHT | {"ITEMS": 4, "BLOCK": 128}, BINS | {"VEC": 2, "COPIES": 32}],
        f"{ELEMENT.replace('if (i < n)', 'if (i >= n) return;')} atomicAdd(y + x[i], 2);",
    ),
    *same(
        (LaunchGeometry(grid=("3",), block=("64",)), COUNTS, 1000),
        [BINS, BINS | {"BLOCK": 128} | EIGHT],
        "for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) "
        "{ const int v = x[e]; if (v > 3) atomicAdd(&y[v], 2); }",
    ),
    *same(
        (LaunchGeometry(grid=("ceil_div(n, 64)",), block=("16", "4")), COUNTS, 1000),
        [BINS],
        "int* to = y + 1; const int e = (blockIdx.x * 16 + threadIdx.x) * 4 + threadIdx.y; "
        "if (e < n) { atomicAdd(to + x[e] % 99, 1); atomicAdd(z + e % n, 0.5f); }",
    ),
]
WINDOW = "no thread keeps a window"
IN_STEPS = """int ch = blockIdx.x * blockDim.x + threadIdx.x, step = blockIdx.y; if (ch >= 40) return;
    float s = 0; BODY y[step * 40 + ch] = s;"""
WALK = [
    *stays(
        ("WALK", SQUARE, OVER),
        f"{INSIDE} y[r * n + c] = a[r * n + c] + a[r * n + c * 2];",
        f"{INSIDE} y[r * n + c] = a[r * n + c] + a[(r + 40) * n + c];",
    ),
    *stays(("WALK", LINE, {"y": ("inout", "float32", "n + 1")}), f"{ELEMENT} y[i] = y[i] + y[i + 1];"),
    # How long the array is, the kernel does not know.
    *stays(("WALK", LINE, {"x": ("in", "float32", "rows"), **Y}), f"{ELEMENT} if (i > 3) y[i] = x[i] + x[i - 1];"),
    # The window moves with the data or by other steps, the length is not known, or only one place is read.
    *stays(
        ("WALK", LINE, SERIES),
        ("for (int w = 0; w < 5; ++w) if (i + w * 3 < n) y[i] += x[i + w * 3];", WINDOW),
        ("for (int w = 0; w < 5; ++w) if (i + (int)x[0] + w < n) y[i] += x[i + (int)x[0] + w];", WINDOW),
        ("for (int w = 0; w < 5; ++w) { if (i + w < n) y[i] += x[i + w]; w += 1; }", WINDOW),
        ("for (int w = 0; w < n % 5; ++w) if (i + w < n) y[i] += x[i + w];", WINDOW),
        at=f"{ELEMENT} {{ BODY }}",
    ),
    *stays(
        ("WALK", STEPS, SIGNAL),
        ("for (int k = 0; k < 3; ++k) s += x[(step * 2 + k) * 40 % n + ch];", "nothing alike"),
        ("for (int k = 0; k < 3; ++k) if (step >= k) s += x[(step - k) * 40 + ch] + gridDim.y;", "nothing alike"),
        ("for (int k = 0; k < 64; ++k) if (step >= k) s += x[(step - k) * 40 + ch];", "nothing alike"),
        (
            "ch += 0; if (ch > 1) n -= 1; if (step > 0) s = x[(step - 1) * 40 + ch] - x[step * 40 + ch];",
            f"{WINDOW}: the kernel changes its parameter n",
        ),
        at=IN_STEPS,
    ),
]
WALK_SAME = [
    # A line with what lies beyond its guard, and windows that slide along a series.
    *same(
        (LINE, {"x": ("in", "float32", "n + 3"), **Y}, 203),
        [{"WALK": 2}, {"WALK": 8, "BLOCK": 128, "LOADS": 1, "STORES": 1}],
        f"{ELEMENT} if (i > 3) y[i] = x[i - 1] - 2 * x[i + 3] + (i >= 5 ? x[i - 2] : x[i]);",
    ),
    *same(
        (LINE, SERIES, 203),
        [{"WALK": 8}, {"WALK": 2, "BLOCK": 128, "LOADS": 1}],
        "pos - 4 + w",
        "pos - w",
        "w + (pos - 2)",
        at="""const int lane = threadIdx.x, pos = blockDim.x * blockIdx.x + lane; if (pos >= n) return;
        float acc = y[pos];
        for (int w = 0; w < 5; w++) { const int from = BODY; if (from >= 0 && from < n) acc += x[from] / (w + 1); }
        y[pos] = acc;""",
    ),
    # Rows that go along y; a stencil whose threads go down; rows of which each is read where it is there.
    *same(
        (WIDE_SQUARE, PLANE, 37),
        [{"WALK": 2}, {"WALK": 8, "BLOCK_X": 32, "BLOCK_Y": 4}],
        """const int p = blockIdx.y * blockDim.y + threadIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;
        if (p < n - 1 && q > 0 && q < n) y[q * n + p] = x[q * n + p + 1] - x[q * n + p] + x[(q - 1) * n + p];""",
        f"""{AT} if (c < 1 || r < 1 || c >= n - 1 || r >= n - 1) return;
        float s = 0;
        for (int a = -1; a <= 1; ++a) for (int b = -1; b <= 1; ++b) s += x[(r + a) * n + c + b] * (a + 2 * b + 5);
        y[r * n + c] = s;""",
        f"""{INSIDE} float s = x[r * n + c]; if (r > 0 && c > 1) s += x[(r - 1) * n + c - 2];
        if (r < n - 1) s += x[(r + 1) * n + c];
        y[r * n + c] = s;""",
    ),
    # A causal window over the blocks of a grid.
    *same(
        (STEPS, SIGNAL, 37),
        [{"WALK": 2}, {"WALK": 8}, {"WALK": 4, "BLOCK": 128}],
        "for (int k = 0; k < 4; ++k) { const int from = step - 3 + k; "
        "if (from >= 0) s += x[(long long)from * 40 + ch] / (k + 1); }",
        "for (int back = 0; back <= 2; back++) if (step >= back) s = s * 0.5f + x[ch + 40 * (step - back)];",
        "s = x[step * 40 + ch] - (step > 0 ? x[(step - 1) * 40 + ch] : 0); "
        "if (step + 2 < n) s += x[(step + 2) * 40 + ch];",
        at=IN_STEPS.replace("int ch", "const int ch"),
    ),
]
PER_ROW, OUT_OF_ROW = "const float* r = x + blockIdx.x * n;", "y[blockIdx.x * n + i]"
TWICE = f"{PER_ROW} {TURNS} y[blockIdx.x * n + i] = 2 * r[i] + y[blockIdx.x * n + i];"
ROW_TEAMS = [
    *stays(
        ("TEAM_ROWS", LaunchGeometry(grid=("n", "2"), block=("64",)), PLANE),
        (f"{TURNS} {{ {OUT_OF_ROW} += x[i]; }} __syncthreads();", "its threads work together, line"),
        (f"{TURNS} {OUT_OF_ROW} = gridDim.y * x[i];", "which depends on the grid"),
        ("int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];", "do not take turns"),
        f"__shared__ float s[2]; {PER_ROW} {TURNS} {OUT_OF_ROW} = r[i] + s[0];",
    ),
    *stays(
        ("TEAM_BLOCKS", MANY, PLANE),
        f"{TURNS} {OUT_OF_ROW} = r[i]; {TURNS} y[blockIdx.x * n + n - 1 - i] += r[i];",
        f"{TURNS} {OUT_OF_ROW} = r[i]; if (threadIdx.x == 0) y[blockIdx.x * n] += 1;",
        at=f"{PER_ROW} BODY",
    ),
]
OF_ROWS = """const int who = NUMBER, lane = threadIdx.x, width = blockDim.x;
    for (int c = lane; c < n; c = c + width) y[who * n + c] = x[who * n + c] * 2 + y[who * n + c];"""
ROW_TEAMS_SAME = [
    *same((MANY, PLANE, 74), [{"TEAM_ROWS": 4, "BLOCK": 32, "ROW_VEC": 4}, {"TEAM_BLOCKS": 4, "ROW_VEC": 2}], TWICE),
    *same((MANY, PLANE, 74), [{"TEAM_ROWS": 2, "TEAM_BLOCKS": 2}], TWICE),
    *same(
        (LaunchGeometry(grid=("n // 2",), block=("64",)), PLANE, 74),
        [{"TEAM_ROWS": 4}, {"TEAM_ROWS": 2, "BLOCK": 32, "TEAM_BLOCKS": 2}],
        f"if (n < 9) return; {OF_ROWS.replace('NUMBER', '(int)blockIdx.x')}",
    ),
    *same(
        (LaunchGeometry(grid=("2", "n // 2"), block=("64",)), PLANE, 74),
        [{"TEAM_ROWS": 8}, {"TEAM_BLOCKS": 4}],
        OF_ROWS.replace("NUMBER", "(int)(blockIdx.y * 2 + blockIdx.x)"),
    ),
]
OWN = """__shared__ float cache[128]; const unsigned int me = threadIdx.x, at = blockIdx.x * blockDim.x + me;
    cache[me] = at < n ? x[at] : 0.0f; __syncthreads();"""
TREE = f"{OWN} BODY if (me == 0) y[blockIdx.x] = cache[0];"
HALVES = "for (int k = 64; k > 0; k >>= 1) { if (me < k) cache[me] += cache[me + k]; __syncthreads(); }"
LAST_WARP = """template <class V> __device__ void last_warp(V* of, int lane) {
    of[lane] += of[lane + 32]; __syncwarp(); if (lane < 16) of[lane] += of[lane + 16]; __syncwarp();
    for (int by = 8; by; by /= 2) { if (lane < by) of[lane] = of[lane + by] + of[lane]; __syncwarp(); } }"""
SHUFFLES = stays(
    ("SHUFFLES", BLOCKS, SERIES),
    # A part of a value; a number that wraps; a step too few; a value twice; another operation between; a scan.
    (HALVES.replace("cache[me + k]", "(int)cache[me + k]"), "no statements"),
    (HALVES.replace("me < k", "me - k < 0"), "no statements"),
    (HALVES.replace("k > 0", "k > 1"), "no statements"),
    (HALVES.replace("me < k", "me <= k"), "no statements"),
    (HALVES.replace("+=", "-="), "no statements"),
    (
        "float v; for (int k = 1; k < 128; k *= 2) { v = me >= k ? cache[me - k] : 0; __syncthreads(); "
        "cache[me] += v; __syncthreads(); }",
        "no statements",
    ),
    # An element that is used later; elements that some threads keep from before.
    (f"{HALVES} if (me == 1) y[me] = cache[1];", "needs more than its first element"),
    (f"for (int r = 0; r < 2; ++r) {{ if (me > r) cache[me] = x[r]; __syncthreads(); {HALVES} }}", "keeps"),
    at=TREE,
)
SHUFFLES_SAME = same(
    (BLOCKS, SERIES, 1000),
    [{"SHUFFLES": True}],
    # A return; strides that grow; unrolled; a last warp in a function; a while loop with another spelling of a maximum.
    f"{HALVES} if (me > 0) return;",
    "for (int gap = 1; gap < 128; gap *= 2) { int to = 2 * gap * me; "
    "if (to < 128) cache[to] += cache[to + gap]; __syncthreads(); }",
    "for (unsigned int w = 1; w < blockDim.x; w <<= 1) { "
    "if (me % (2 * w) == 0) cache[me] += cache[me + w]; __syncthreads(); }",
    "if (me < 64) cache[me] += cache[me + 64]; __syncthreads(); if (me < 32) last_warp(cache, me);",
    "int half = 128; while (half > 1) { half /= 2; "
    "if (me < half) { const float a = cache[me], b = cache[me + half]; cache[me] = a > b ? a : b; } "
    "__syncthreads(); }",
    "for (int k = 64; k != 0; k >>= 1) { __syncthreads(); "
    "if (k > me) *(cache + me) = fmaxf(cache[k + me], cache[me]); }",
    at=TREE,
    more=LAST_WARP,
)
WIDE = "const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"
SIGNED = WIDE.replace("size_t", "long long")
INDICES = stays(
    ("INDEX_BITS", LINE, X | Y),
    ("{ const long long at = (long long)i * n; y[i] = x[at / n]; }", "indices stay"),
    ("{ const long long at = (long long)i * n; y[i] = x[i] + at; }", "indices stay"),
    ("{ const long long at = (long long)i * n; if (at < n) y[at] = x[i]; }", "indices stay"),
    ("{ long long at = i; at += n; y[at - n] = x[i]; }", "indices stay"),
    ("{ const long long at = n * (1ll << 33); y[at - at + i] = x[i]; }", "indices stay"),
    ("{ const float* r = x + n; y[i] = r[(long long)i - n]; }", "indices stay"),
    ("{ x += n; y[i] = x[(long long)i - n]; }", "indices stay"),
    ("y[i] = x[(size_t)(x[i] * 0)];", "indices stay"),
    at=f"{ELEMENT} BODY",
)
INDICES_SAME = [
    *same(
        (LINE, X | Y, 203),
        [{"INDEX_BITS": 32}, {"INDEX_BITS": 32, "ITEMS": 4, "BLOCKED": True}],
        "const size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; if (at < n) y[at] = 2 * x[at];",
        f"{WIDE} y[i] = x[i];",
        f"{SIGNED} y[n - 1 - i] = x[i];",
        f"{ELEMENT} y[(long long)i] = x[i];",
        f"{SIGNED} {{ const long long at = n - 1 - i; y[at] = x[i] + x[at]; }}",
    ),
    *same(
        (MANY, PLANE, 74),
        [{"INDEX_BITS": 32, "ROW_VEC": 2, "TEAM_ROWS": 2}],
        "const float w = x[blockIdx.x * n]; const long long row = blockIdx.x, from = row * n; "
        f"{TURNS} y[from + i] = w * x[from + i];",
    ),
]
ITEMS_SAME = [
    *same(
        (LINE, X | Y, 203),
        [{"ITEMS": 4}, {"ITEMS": 4, "BLOCKED": True}, {"ITEMS": 8, "BLOCKED": True}],
        "const int t = threadIdx.x; int i = t + blockIdx.x * blockDim.x; if (i >= n) return; y[i] = x[i] + i;",
    ),
    *same(
        (SQUARE, OVER, 37),
        [{"ITEMS_Y": 4, "BLOCKED_Y": True}, {"ITEMS_X": 2, "BLOCKED_X": True, "ITEMS_Y": 2}],
        f"{INSIDE} y[r * n + c] = a[r * n + c] + r;",
    ),
]

OF_BINS = """__kernel void k(__global const int* x, __global int* y, int n) {
    const size_t e = get_global_id(0); EARLY if (e < n) { atomic_inc(&y[x[e]]); atomic_add(y + 3, 2); } }"""
OF_ROWS_CL = """__kernel void k(__global const float* x, __global float* y, int n) {
    const int u = get_global_id(0), v = get_global_id(1);
    if (u < n && v > 0 && v < n - 1)
        y[v * n + u] = x[(v - 1) * n + u] - 2 * x[v * n + u] + x[(v + 1) * n + u]; }"""
TALLIES: Arrays = {"x": ("in", "int32", "n"), "y": ("inout", "int32", "100")}
MACROS_SAME = same(
    (LINE, SERIES, 70),
    [{"ITEMS": 2}],
    "int m = n; SHRINK(m); y[i] = x[i] + m;",
    "y[i] = x[i]; OUT[i] += 3;",
    "EACH(k) y[i] += x[k];",
    at=f"{ELEMENT} {{ BODY }}",
    more="#define SHRINK(v) v = v / 2\n#define OUT y\n#define EACH(k) for (int k = 0; k < 3; ++k)",
)
OPENCL_SAME: list[tuple[Task, list[Config], int]] = [
    *(
        (opencl_kernel(OF_BINS.replace("EARLY", early), TALLIES, LINE), [BINS, BINS | EIGHT | {"ITEMS": 16}], 1000)
        for early in ("if (e >= n) return;", "")
    ),
    (opencl_kernel(OF_ROWS_CL, PLANE, WIDE_SQUARE), [{"WALK": 2}, {"WALK": 4, "BLOCK_X": 8, "BLOCK_Y": 8}], 37),
]


STAYS = [*HINTS, *ROW_LOOPS, *OUTPUT_TILES, *LANES, *COLUMN_LANES, *OWN_BINS, *COPIES, *GIVEN_STAYS]
STAYS += [*WALK, *ROW_TEAMS, *SHUFFLES, *INDICES]
SAME = [*REFERENCES, *ROW_LOOPS_SAME, *SPLIT, *OUTPUT_TILES_SAME, *LANES_SAME, *COLUMN_LANES_SAME, *OWN_BINS_SAME]
SAME += [*COPIES_SAME, *GIVEN_SAME, *WALK_SAME, *ROW_TEAMS_SAME, *SHUFFLES_SAME, *INDICES_SAME, *MACROS_SAME]
SAME += OPENCL_SAME


@pytest.mark.parametrize(("task", "names", "why"), STAYS)
def test_what_a_rewrite_does_not_fit_stays(task: Task, names: set[str], why: str) -> None:
    require_refused(task, names, why)


@pytest.mark.parametrize(("task", "configs", "n"), SAME + ITEMS_SAME)
def test_a_rewrite_computes_what_the_kernel_did(task: Task, configs: list[Config], n: int) -> None:
    require_equal(task, configs, n)


def names_of(task: Task) -> set[str]:
    return {one.name for one in template_of(task).parameters}


def test_rows_are_held_where_they_are_read_again_and_runs_only_where_threads_are_elements() -> None:
    row = "const float* r = x + blockIdx.x * n;"
    names = names_of(kernel(f"{row} {TURNS} y[blockIdx.x * n + i] = r[i];", THREE, ROWS))
    assert "ROW_VEC" in names and "KEEP" not in names
    together = "__shared__ float t; if (threadIdx.x == 0) t = 0; __syncthreads(); atomicAdd(&t, s); __syncthreads();"
    twice = f"{row} float s = 0; {TURNS} s += r[i]; {together} s = t; {TURNS} y[blockIdx.x * n + i] = r[i] * s;"
    assert {"ROW_VEC", "KEEP"} <= names_of(kernel(twice, THREE, ROWS))
    task = kernel(f"{ELEMENT} y[i] = x[i] + i;", X | Y, LINE)
    template = template_of(task)
    space = feasible(template, [task.workloads[0]], H200)
    assert space.reject({**template.default_config, "BLOCKED": True}) is not None, "a run of one element"
    names = names_of(kernel(f"{STRIDED} y[i] = x[i];", X | Y, LINE))
    assert "ITEMS" in names and "BLOCKED" not in names


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
def test_a_plain_sum_of_products_takes_several_steps_at_once(dtype: str, add: str, steps: int) -> None:
    total, loop = ("int32", SUM.replace("float", "int")) if dtype == "int8" else ("float32", SUM)
    arrays = {name: (role, total if name == "y" else dtype, size) for name, (role, _, size) in MATRICES.items()}
    task = kernel(f"{INSIDE} {loop} {add} {OUT}", arrays, SQUARE, "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n")
    template = template_of(task)
    assert {one.name: one.values for one in template.parameters}.get("OUTPUT_STEPS", (1,))[-1] == steps
    points = [{"OUTPUT_TILE": 32, "OUTPUT_ROWS": 4, "OUTPUT_COLUMNS": 2, "OUTPUT_DEPTH": 16}] + TILES[1:]
    more = {"OUTPUT_STEPS": steps, "OUTPUT_DEPTH": 16} if steps > 1 else {}
    stand_ins = {kit()["kit/fragments.cuh"]: TENSOR_CORES} if steps == 16 else None
    require_equal(task, [one | more for one in points], n=37, stand_ins=stand_ins)
    for target, allowed in (("t4", False), ("a100", True)) if steps == 16 else ():
        space = feasible(template, [task.workloads[0]], resolve_target(target))
        assert (space.reject(template.default_config | points[0] | more) is None) is allowed


def test_rows_are_of_whole_teams_or_of_less_than_a_warp() -> None:
    body = "for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * 9 + c % 9] = x[c];"
    template = template_of(kernel(body, PLANE, LaunchGeometry(grid=("n ** 2",), block=("64",))))
    assert any("(n ** 2) % TEAM_ROWS == 0" in one.expression for one in template.constraints)
    task = kernel(TWICE, PLANE, MANY)
    template = template_of(task)
    assert "__launch_bounds__(BLOCK * TEAM_ROWS)" in template.source
    assert {8, 16} <= set(next(one.values for one in template.parameters if one.name == "BLOCK"))
    space = feasible(template, [task.workloads[0]], H200)
    alone = {**template.default_config, "BLOCK": 16}
    assert space.reject(alone) is not None and space.reject({**alone, "TEAM_ROWS": 4}) is None
    require_equal(task, [{"BLOCK": 16, "TEAM_ROWS": 4, "ROW_VEC": 4}, {"BLOCK": 8, "TEAM_ROWS": 8}], n=20)
    body = f"""cg::thread_block all = cg::this_thread_block(); {OWN.replace("__syncthreads()", "cg::sync(all)")}
        if (me < 64) cache[me] += cache[me + 64];
        cg::sync(all);
        if (me < 32) {{
            volatile float* of = cache; of[me] += of[me + 32]; of[me] += of[me + 16]; of[me] += of[me + 8];
            of[me] += of[me + 4]; of[me] += of[me + 2]; of[me] += of[me + 1]; }}
        if (me == 0) y[blockIdx.x] = cache[0];"""
    more = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;"
    source = template_of(kernel(body, SERIES, BLOCKS, more)).source
    assert "tunesmith::combine<128>(cache, [](float a, float b) { return a + b; });" in source
    task = kernel(f"{WIDE} y[i] = x[i];", {"x": ("in", "float32", "2 * n"), **Y}, LINE)
    template = template_of(task)
    for n, fits in ((1000, True), (1 << 30, False)):
        space = feasible(template, [task.workloads[0].model_copy(update={"sizes": {"n": n}})], H200)
        assert (space.reject({**template.default_config, "INDEX_BITS": 32}) is None) is fits
        assert space.reject(template.default_config) is None


def test_tiles_have_no_launch_bounds_of_another_block() -> None:
    head = 'extern "C" __global__ void __launch_bounds__(256, 2) k(const float* a, const float* b, float* y, int n)'
    code = f"{head} {{ {INSIDE} {SUM} {ADD} {OUT} }}"
    template = template_of(task_of("k", code, MATRICES, SQUARE, {"n": "int32"}))
    lines = template.source.partition("#if OUTPUT_TILE > 0\n")[2].splitlines()
    assert lines[:2] == ["#define LAUNCH_BOUNDS", "#elif MIN_BLOCKS > 0"]
    assert "#define LAUNCH_BOUNDS __launch_bounds__(256, 2)" in lines


@pytest.mark.parametrize(("target", "threads"), [("sm_75", 1024), ("sm_89", 1024), ("h200", 2048)])
def test_blocks_of_a_multiprocessor_are_as_many_as_it_has_threads_for(target: str, threads: int) -> None:
    """In powers of two, as blocks are: 1024 of 1536."""
    task = kernel(f"{WIDE} y[i] = x[i];", {"x": ("in", "float32", "2 * n"), **Y}, LINE)
    space = feasible(template_of(task), task.workloads, resolve_target(target))
    found = [space.config(point) for point in range(len(space))]
    assert max(one["BLOCK"] * one["MIN_BLOCKS"] for one in found if isinstance(one["BLOCK"], int)) == threads


@pytest.mark.parametrize("lane", ["threadIdx.x % 32", "(threadIdx.x & 31)"])
def test_a_thread_that_asks_for_its_lane_keeps_whole_warps(lane: str) -> None:
    task = kernel(f"if ({lane} == 0) y[blockIdx.x] = 1; {TURNS} y[blockIdx.x * n + i] = x[i];", PLANE, MANY)
    found = rewritten(task).template
    assert found is None or 16 not in next(one.values for one in found.parameters if one.name == "BLOCK")


FEW = LaunchGeometry(grid=("1", "2"), block=("64",))
OF_ROWS = "for (int r = blockIdx.x; r < 3; r += gridDim.x)"
OF_PARTS = "for (int i = threadIdx.x + blockIdx.y * blockDim.x; i < n; i += blockDim.x * gridDim.y)"
OF_ONE = "for (int i = of; i < n; i += gridDim.y)"
ADDS: Any = {"x": ("in", "float32", "3 * n"), "y": ("inout", "float32", "9 * n")}


@pytest.mark.parametrize(
    ("body", "config"),
    [
        (f"{OF_ROWS} {OF_PARTS} atomicAdd(&y[r], x[r * n + i]);", {"MORE_BLOCKS_X": 4, "MORE_BLOCKS_Y": 8}),
        (f"{OF_PARTS} {{ y[3 * i] = x[i]; y[3 * i + 2] = 1; }}", {"MORE_BLOCKS": 4}),
        (f"const int of = blockIdx.y; if (threadIdx.x == 3) {OF_ONE} y[i] = 2 * x[i];", {"MORE_BLOCKS": 4}),
    ],
)
def test_blocks_that_take_turns_may_be_more(body: str, config: Config) -> None:
    require_equal(kernel(body, ADDS, FEW), [config])


@pytest.mark.parametrize(
    ("task", "names", "why"),
    stays(
        ("MORE_BLOCKS MORE_BLOCKS_X MORE_BLOCKS_Y", FEW, ADDS),
        # An element that several rounds write or read; a sum of a block; something that each block does once; an end.
        f"{OF_PARTS} y[i / 2] = x[i];",
        f"{OF_PARTS} y[i] = i > 0 ? y[i - 1] : x[i];",
        f"{OF_ROWS} {OF_PARTS} y[r + i] = x[r * n + i];",
        f"float s = 0; {OF_PARTS} s += x[i]; atomicAdd(y, s);",
        f"{OF_PARTS} y[i] = x[i]; atomicAdd(y + n, 1.0f);",
        f"{OF_PARTS} {{ if (x[i] > 2) break; y[i] = x[i]; }}",
        f"{OF_PARTS} y[i] = gridDim.y;",
        f"{OF_ROWS} {OF_ROWS.replace('r', 'q').replace('foq', 'for')} atomicAdd(&y[q], x[r]);",
        "for (int i = blockIdx.y * 2; i < n; i += gridDim.y) y[i] = 1;",
        "for (int i = blockIdx.y; i < n; i += gridDim.y) y[i * 9 + threadIdx.x] = x[i];",
    ),
)
def test_blocks_stay_as_many_where_rounds_depend_on_them(task: Task, names: set[str], why: str) -> None:
    require_refused(task, names, why)
