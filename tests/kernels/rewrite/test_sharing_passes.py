"""Passes by which threads share what they read or compute, on kernels whose authors write in other ways."""

from __future__ import annotations

import pytest
from rewrite_cases import LINE, kernel, opencl_kernel, require_equal, require_refused, template_of

from tunesmith.kernels.spec.template import Config, LaunchGeometry

SERIES = {"x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
PLANE = {"x": ("in", "float32", "n * n"), "y": ("inout", "float32", "n * n")}
SQUARE = LaunchGeometry(grid=("ceil_div(n, 16)", "ceil_div(n, 8)"), block=("16", "8"))


class TestRowTeams:
    @pytest.mark.parametrize(
        ("grid", "early", "configs"),
        [
            (("n // 2",), "if (n < 9) return;", [{"TEAM_ROWS": 4}, {"TEAM_ROWS": 2, "BLOCK": 32, "TEAM_BLOCKS": 2}]),
            (("2", "n // 2"), "", [{"TEAM_ROWS": 8}, {"TEAM_BLOCKS": 4}]),
        ],
    )
    def test_rows_of_any_axis_with_early_return(self, grid: tuple[str, ...], early: str, configs: list[Config]) -> None:
        row = "(int)blockIdx.x" if len(grid) == 1 else "(int)(blockIdx.y * 2 + blockIdx.x)"
        body = f"""const int who = {row}, lane = threadIdx.x, width = blockDim.x; {early}
            for (int c = lane; c < n; c = c + width) y[who * n + c] = x[who * n + c] * 2 + y[who * n + c];"""
        require_equal(kernel(body, PLANE, LaunchGeometry(grid=grid, block=("64",))), configs, n=74)

    def test_rows_that_the_kernel_cannot_count_are_whole_teams(self) -> None:
        body = "for (int c = threadIdx.x; c < n; c += blockDim.x) y[blockIdx.x * 9 + c % 9] = x[c];"
        template = template_of(kernel(body, PLANE, LaunchGeometry(grid=("n ** 2",), block=("64",))))
        assert any("(n ** 2) % TEAM_ROWS == 0" in one.expression for one in template.constraints)

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            ("{0} {{ y[blockIdx.x * n + c] = x[c]; }} __syncthreads();", "its threads work together, line"),
            ("{0} y[blockIdx.x * n + c] = gridDim.y * x[c];", "which depends on the grid"),
            ("int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];", "do not take turns"),
        ],
    )
    def test_rows_whose_threads_need_one_another_stay(self, body: str, why: str) -> None:
        code = body.format("for (int c = threadIdx.x; c < n; c += blockDim.x)")
        require_refused(
            kernel(code, PLANE, LaunchGeometry(grid=("n", "2"), block=("64",))), {"TEAM_ROWS", "TEAM_BLOCKS"}, why
        )


BLOCKS = LaunchGeometry(grid=("ceil_div(n, 128)",), block=("128",))
OWN = """__shared__ float cache[128]; const unsigned int me = threadIdx.x, at = blockIdx.x * blockDim.x + me;
    cache[me] = at < n ? x[at] : 0.0f; __syncthreads();"""
FIRST = "if (me == 0) y[blockIdx.x] = cache[0];"
HALVES = "for (int k = 64; k > 0; k >>= 1) { if (me < k) cache[me] += cache[me + k]; __syncthreads(); }"
LAST_WARP = """template <class V> __device__ void last_warp(V* of, int lane) {
    of[lane] += of[lane + 32]; __syncwarp(); if (lane < 16) of[lane] += of[lane + 16]; __syncwarp();
    for (int by = 8; by; by /= 2) { if (lane < by) of[lane] = of[lane + by] + of[lane]; __syncwarp(); } }"""


class TestShuffles:
    @pytest.mark.parametrize(
        "steps",
        [
            # Strides that grow; unrolled; a last warp in a function; a while loop with another spelling of a maximum.
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
        ],
    )
    def test_trees_of_any_shape_become_exchanges(self, steps: str) -> None:
        task = kernel(f"{OWN} {steps} {FIRST}", SERIES, BLOCKS, LAST_WARP)
        require_equal(task, [{"SHUFFLES": True}], n=1000)

    def test_barriers_of_cooperative_groups_and_a_last_warp_without_any(self) -> None:
        body = f"""cg::thread_block all = cg::this_thread_block(); {OWN.replace("__syncthreads()", "cg::sync(all)")}
            if (me < 64) cache[me] += cache[me + 64];
            cg::sync(all);
            if (me < 32) {{
                volatile float* of = cache; of[me] += of[me + 32]; of[me] += of[me + 16]; of[me] += of[me + 8];
                of[me] += of[me + 4]; of[me] += of[me + 2]; of[me] += of[me + 1]; }} {FIRST}"""
        more = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;"
        source = template_of(kernel(body, SERIES, BLOCKS, more)).source
        assert "tunesmith::combine<128>(cache, [](float a, float b) { return a + b; });" in source

    @pytest.mark.parametrize(
        ("steps", "why"),
        [
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
        ],
    )
    def test_what_is_no_whole_tree_stays(self, steps: str, why: str) -> None:
        require_refused(kernel(f"{OWN} {steps} {FIRST}", SERIES, BLOCKS), {"SHUFFLES"}, why)


COUNTS = {"x": ("in", "int32", "n"), "y": ("inout", "int32", "100"), "z": ("inout", "float32", "n")}


class TestOwnBins:
    @pytest.mark.parametrize(
        ("body", "launch", "configs"),
        [
            (
                "for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < n; e += gridDim.x * blockDim.x) "
                "{ const int v = x[e]; if (v > 3) atomicAdd(&y[v], 2); }",
                LaunchGeometry(grid=("3",), block=("64",)),
                [{"OWN_BINS": True}, {"OWN_BINS": True, "BLOCK": 128}],
            ),
            (
                "int* to = y + 1; const int e = (blockIdx.x * 16 + threadIdx.x) * 4 + threadIdx.y; "
                "if (e < n) { atomicAdd(to + x[e] % 99, 1); atomicAdd(z + e % n, 0.5f); }",
                LaunchGeometry(grid=("ceil_div(n, 64)",), block=("16", "4")),
                [{"OWN_BINS": True}],
            ),
        ],
    )
    def test_any_grid_has_bins_of_its_blocks(self, body: str, launch: LaunchGeometry, configs: list[Config]) -> None:
        require_equal(kernel(body, COUNTS, launch), configs, n=1000)

    @pytest.mark.parametrize("early", ["if (e >= n) return;", ""])
    def test_opencl_has_bins_of_its_own(self, early: str) -> None:
        code = f"""__kernel void k(__global const int* x, __global int* y, int n) {{
            const size_t e = get_global_id(0); {early}
            if (e < n) {{ atomic_inc(&y[x[e]]); atomic_add(y + 3, 2); }} }}"""
        arrays = {"x": ("in", "int32", "n"), "y": ("inout", "int32", "100")}
        configs: list[Config] = [{"OWN_BINS": True}, {"OWN_BINS": True, "ITEMS": 16, "BLOCK": 128}]
        require_equal(opencl_kernel(code, arrays, LINE), configs, 1000)


DOWN = "float s = 0; for (int i = 0; i < n; i++)"


class TestColumnLanes:
    @pytest.mark.parametrize(
        "body",
        [
            "y[j] = 0; for (int i = 0; i < n; i++) y[j] += x[i * n + j] * v[i]; y[j] /= n;",
            "float most = v[j], sum = 1; for (int i = 1; i < n; ++i) { most = fmaxf(most, x[i * n + j]);"
            "if (x[i * n + j] > 0) sum += v[i]; } y[j] = most + sum;",
            "int i; for (i = 0; i < n; i++) y[j] += x[j + i * n];",
        ],
    )
    def test_lanes_share_the_rows_of_a_column(self, body: str) -> None:
        arrays = {**PLANE, "v": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
        guarded = f"const int j = blockIdx.x * blockDim.x + threadIdx.x; if (j < n) {{ {body} }}"
        configs: list[Config] = [{"COLUMN_LANES": 4}, {"COLUMN_LANES": 32, "UNROLL": 2, "LOADS": 1}]
        require_equal(kernel(guarded, arrays, LINE), configs, n=75)

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (f"{DOWN} s = s * 0.5f + x[i * n + j]; y[j] = s;", "no sums whose order"),
            (f"{DOWN} s += x[j * n + i]; y[j] = s;", "reads no neighbours"),
            (f"{DOWN} {{ s += x[i * n + j]; y[i * n + j] = 0; }}", "more than to add"),
            (f"{DOWN} {{ s += x[i * n + j]; if (s > 9) break; }} y[j] = s;", "more than"),
            ("float s = y[j]; y[j] = 0; for (int i = 0; i < n; i++) s += x[i * n + j]; y[j] = s;", "ahead of the loop"),
        ],
    )
    def test_other_loops_down_a_column_stay(self, body: str, why: str) -> None:
        task = kernel(f"int j = blockIdx.x * blockDim.x + threadIdx.x; if (j < n) {{ {body} }}", PLANE, LINE)
        require_refused(task, {"COLUMN_LANES"}, why)


class TestLanes:
    def test_counters_that_are_declared_ahead_of_their_loops(self) -> None:
        body = """int who = threadIdx.x + blockIdx.x * blockDim.x, c; if (n <= who) return;
            float dot = 0, most = x[who * n];
            for (c = 0; c < n; c++) dot += x[c + who * n] * v[c];
            for (c = 1; n > c; c += 1) most = fmaxf(x[who * n + c], most);
            y[who] = dot; z[who] = most;"""
        arrays = {**PLANE, "v": ("in", "float32", "n"), "y": ("inout", "float32", "n"), "z": ("inout", "float32", "n")}
        task = kernel(body, arrays, LINE)
        require_equal(task, [{"LANES": 8}, {"LANES": 32, "BLOCK": 128}], n=75)

    def test_a_row_by_pointer_whose_result_goes_to_every_element(self) -> None:
        body = """const long long line = (long long)blockIdx.x * blockDim.x + threadIdx.x;
            if (line < n) {
                const float* from = x + line * n; float* to = y + n * line; double total = 1;
                for (unsigned int k = 0; k < n; ++k) { const float e = from[k]; if (e > 0) total = total + e; }
                const float by = 1.0f / (float)total;
                for (unsigned int k = 0; k < n; ++k) to[k] = from[k] * by;
            }"""
        require_equal(kernel(body, PLANE, LINE), [{"LANES": 4}, {"LANES": 16, "FAST_MATH": True}], n=75)

    @pytest.mark.parametrize(
        ("body", "configs"),
        [
            # As PointNet++ groups points: a block for each batch, whose threads take turns on the points.
            (
                """const int b = blockIdx.x, stride = blockDim.x; x += b * n; y += n * n / 3 * b;
                for (int j = threadIdx.x; j < n / 9; j += stride)
                    for (int k = 0; k < 3; ++k) { const int from = w[j * 3 + k] & 7;
                        for (int l = 0; l < n; ++l) y[j * 3 * n + k * n + l] = x[from * n + l]; }""",
                [{"LANES": 32, "TEAM_BLOCKS": 32}, {"LANES": 8, "BLOCK": 16, "TEAM_ROWS": 4, "STORES": 1}],
            ),
            (
                """for (int j = threadIdx.x; j < n; j += blockDim.x) { float s = 0;
                    for (int l = 0; l < n; ++l) { s += x[j * n + l]; atomicAdd(&y[(w[j] & 3) * n + l], 1.5f); }
                    if (blockIdx.x == 1) y[n * 9 + j] = s; }""",
                [{"LANES": 16, "BLOCK": 128}, {"LANES": 2, "TEAM_ROWS": 2}],
            ),
            (
                """for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < n; j += gridDim.x * blockDim.x) {
                    if (w[j] % 3 == 0) continue;
                    for (int l = 0; l < n; ++l) y[j * n + l] = x[(w[j] & 3) * n + l]; }""",
                [{"LANES": 8}, {"LANES": 32, "BLOCK": 64}],
            ),
        ],
    )
    def test_loops_inside_those_in_which_threads_take_turns(self, body: str, configs: list[Config]) -> None:
        arrays = {**PLANE, "w": ("in", "int32", "n")}
        require_equal(kernel(body, arrays, LaunchGeometry(grid=("2",), block=("64",))), configs, n=75)

    def test_threads_that_ask_for_their_place_in_a_warp_stay(self) -> None:
        body = """for (int j = threadIdx.x; j < n; j += blockDim.x) for (int l = 0; l < n; ++l) y[j * n + l] = x[l];
            if (threadIdx.x % 32 == 0) z[blockIdx.x] = 1;"""
        arrays = {**PLANE, "z": ("inout", "float32", "n")}
        require_refused(kernel(body, arrays, LaunchGeometry(grid=("1",), block=("64",))), {"LANES"}, "in its warp")


SIGNAL = {"x": ("in", "float32", "n * 40"), "y": ("out", "float32", "n * 40")}
STEPS = LaunchGeometry(grid=("1", "n"), block=("64",))


class TestWalk:
    @pytest.mark.parametrize("at", ["pos - 4 + w", "pos - w", "w + (pos - 2)"])
    def test_a_window_that_slides_along_a_series(self, at: str) -> None:
        body = f"""const int lane = threadIdx.x, pos = blockDim.x * blockIdx.x + lane;
            if (pos >= n) return;
            float acc = y[pos];
            for (int w = 0; w < 5; w++) {{
                const int from = {at}; if (from >= 0 && from < n) acc += x[from] / (w + 1); }}
            y[pos] = acc;"""
        require_equal(kernel(body, SERIES, LINE), [{"WALK": 8}, {"WALK": 2, "BLOCK": 128, "LOADS": 1}])

    @pytest.mark.parametrize(
        "body",
        [
            # Rows that go along y; a stencil whose threads go down.
            """const int p = blockIdx.y * blockDim.y + threadIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;
            if (p < n - 1 && q > 0 && q < n) y[q * n + p] = x[q * n + p + 1] - x[q * n + p] + x[(q - 1) * n + p];""",
            """int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
            if (c < 1 || r < 1 || c >= n - 1 || r >= n - 1) return;
            float s = 0;
            for (int a = -1; a <= 1; ++a) for (int b = -1; b <= 1; ++b) s += x[(r + a) * n + c + b] * (a + 2 * b + 5);
            y[r * n + c] = s;""",
        ],
    )
    def test_a_window_that_slides_over_a_plane(self, body: str) -> None:
        configs: list[Config] = [{"WALK": 2}, {"WALK": 8, "BLOCK_X": 32, "BLOCK_Y": 4}]
        require_equal(kernel(body, PLANE, SQUARE), configs, n=37)

    @pytest.mark.parametrize(
        "body",
        [
            # The window moves with the data or by other steps, the length is not known, or only one place is read.
            "for (int w = 0; w < 5; ++w) if (i + w * 3 < n) y[i] += x[i + w * 3];",
            "for (int w = 0; w < 5; ++w) if (i + (int)x[0] + w < n) y[i] += x[i + (int)x[0] + w];",
            "for (int w = 0; w < 5; ++w) { if (i + w < n) y[i] += x[i + w]; w += 1; }",
            "for (int w = 0; w < n % 5; ++w) if (i + w < n) y[i] += x[i + w];",
            "y[i] = x[i];",
        ],
    )
    def test_what_neighbours_do_not_read_alike_stays(self, body: str) -> None:
        guarded = f"int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {body} }}"
        require_refused(kernel(guarded, SERIES, LINE), {"WALK"}, "no thread keeps a window")

    @pytest.mark.parametrize(
        "window",
        [
            "for (int k = 0; k < 4; ++k) { const int from = step - 3 + k; "
            "if (from >= 0) s += x[(long long)from * 40 + ch] / (k + 1); }",
            "for (int back = 0; back <= 2; back++) if (step >= back) s = s * 0.5f + x[ch + 40 * (step - back)];",
            "s = x[step * 40 + ch] - (step > 0 ? x[(step - 1) * 40 + ch] : 0); "
            "if (step + 2 < n) s += x[(step + 2) * 40 + ch];",
        ],
    )
    def test_a_causal_window_over_the_blocks_of_a_grid(self, window: str) -> None:
        body = f"""const int ch = blockIdx.x * blockDim.x + threadIdx.x, step = blockIdx.y; if (ch >= 40) return;
            float s = 0; {window} y[step * 40 + ch] = s;"""
        configs: list[Config] = [{"WALK": 2}, {"WALK": 8}, {"WALK": 4, "BLOCK": 128}]
        require_equal(kernel(body, SIGNAL, STEPS), configs, n=37)

    def test_opencl_goes_on_from_row_to_row(self) -> None:
        code = """__kernel void k(__global const float* x, __global float* y, int n) {
            const int u = get_global_id(0), v = get_global_id(1);
            if (u < n && v > 0 && v < n - 1)
                y[v * n + u] = x[(v - 1) * n + u] - 2 * x[v * n + u] + x[(v + 1) * n + u]; }"""
        configs: list[Config] = [{"WALK": 2}, {"WALK": 4, "BLOCK_X": 8, "BLOCK_Y": 8}]
        require_equal(opencl_kernel(code, PLANE, SQUARE), configs, 37)

    @pytest.mark.parametrize(
        ("window", "why"),
        [
            ("for (int k = 0; k < 3; ++k) s += x[(step * 2 + k) * 40 % n + ch];", "nothing alike"),
            ("for (int k = 0; k < n; ++k) s += x[k * 40 + ch];", "nothing alike"),
            ("for (int k = 0; k < 3; ++k) if (step >= k) s += x[(step - k) * 40 + ch] + gridDim.y;", "nothing alike"),
            ("for (int k = 0; k < 64; ++k) if (step >= k) s += x[(step - k) * 40 + ch];", "nothing alike"),
            (
                "ch += 0; n -= 1; if (step > 0) s = x[(step - 1) * 40 + ch] - x[step * 40 + ch];",
                "no thread keeps a window: the kernel changes its parameter n",
            ),
        ],
    )
    def test_steps_that_share_nothing_stay(self, window: str, why: str) -> None:
        body = f"""int ch = blockIdx.x * blockDim.x + threadIdx.x, step = blockIdx.y; if (ch >= 40) return;
            float s = 0; {window} y[step * 40 + ch] = s;"""
        require_refused(kernel(body, SIGNAL, STEPS), {"WALK"}, why)
