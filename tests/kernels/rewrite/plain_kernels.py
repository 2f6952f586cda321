"""Plain kernels in the style that people write, of sixteen kinds with what comes in production; sizes are small.

Of production's three the plain baselines are in the library.
"""

from __future__ import annotations

import functools
import re
import shutil
import tempfile
from pathlib import Path

from tunesmith.kernels.reader.draft import Draft, draft
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import read_task

ELEMENT = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
KERNELS: dict[str, tuple[str, dict[str, int]]] = {
    "gelu": (
        f"""__global__ void gelu(const float* x, float* y, int n) {{
            {ELEMENT}
            if (i < n) y[i] = 0.5f * x[i] * (1.0f + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
        }}""",
        {"n": 1003},
    ),
    "add_relu": (
        f"""__global__ void add_relu(const float* __restrict__ a, const float* __restrict__ b, float* c, int n) {{
            {ELEMENT}
            if (i >= n) return;
            float v = a[i] + b[i];
            c[i] = v > 0.0f ? v : 0.0f;
        }}""",
        {"n": 777},
    ),
    "row_sum": (
        """__global__ void row_sum(const float* x, float* out, int n) {
            __shared__ float part[256];
            float sum = 0.0f;
            for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
            part[threadIdx.x] = sum;
            __syncthreads();
            for (int s = blockDim.x / 2; s > 0; s >>= 1) {
                if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
                __syncthreads();
            }
            if (threadIdx.x == 0) out[blockIdx.x] = part[0];
        }""",
        {"n": 700, "rows": 3},
    ),
    "softmax": (
        """__global__ void softmax(const float* x, float* y, int n) {
            __shared__ float part[256];
            const float* row = x + blockIdx.x * n;
            int tid = threadIdx.x;
            float most = -3.4e38f;
            for (int i = tid; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
            part[tid] = most;
            __syncthreads();
            for (int s = blockDim.x / 2; s > 0; s >>= 1) {
                if (tid < s) part[tid] = fmaxf(part[tid], part[tid + s]);
                __syncthreads();
            }
            most = part[0];
            __syncthreads();
            float sum = 0.0f;
            for (int i = tid; i < n; i += blockDim.x) sum += expf(row[i] - most);
            part[tid] = sum;
            __syncthreads();
            for (int s = blockDim.x / 2; s > 0; s >>= 1) {
                if (tid < s) part[tid] += part[tid + s];
                __syncthreads();
            }
            for (int i = tid; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - most) / part[0];
        }""",
        {"n": 601, "rows": 3},
    ),
    "layernorm": (
        """__global__ void layernorm(const float* x, const float* gamma, float* y, int n) {
            __shared__ float total[256];
            __shared__ float squares[256];
            int t = threadIdx.x;
            float a = 0, b = 0;
            for (int j = t; j < n; j += blockDim.x) { float v = x[blockIdx.x * n + j]; a += v; b += v * v; }
            total[t] = a;
            squares[t] = b;
            __syncthreads();
            for (int o = 128; o > 0; o /= 2) {
                if (t < o) { total[t] += total[t + o]; }
                __syncthreads();
            }
            for (int o = 128; o > 0; o /= 2) {
                if (t < o) { squares[t] = squares[t] + squares[t + o]; }
                __syncthreads();
            }
            float mean = total[0] / n, scale = rsqrtf(squares[0] / n - mean * mean + 1e-5f);
            for (int j = t; j < n; j += blockDim.x)
                y[blockIdx.x * n + j] = (x[blockIdx.x * n + j] - mean) * scale * gamma[j];
        }""",
        {"n": 333, "rows": 3},
    ),
    "transpose": (
        """__global__ void transpose(const float* in, float* out, int rows, int cols) {
            int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
            if (r < rows && c < cols) out[c * rows + r] = in[r * cols + c];
        }""",
        {"rows": 67, "cols": 45},
    ),
    "stencil1d": (
        f"""__global__ void stencil1d(const float* x, float* y, int n) {{
            {ELEMENT}
            if (i < n) {{
                float left = i > 0 ? x[i - 1] : x[i], right = i < n - 1 ? x[i + 1] : x[i];
                y[i] = 0.25f * left + 0.5f * x[i] + 0.25f * right;
            }}
        }}""",
        {"n": 1009},
    ),
    "stencil2d": (
        """__global__ void stencil2d(const float* in, float* out, int h, int w) {
            int x = blockIdx.x * blockDim.x + threadIdx.x;
            int y = blockIdx.y * blockDim.y + threadIdx.y;
            if (x >= w || y >= h) return;
            float sum = in[y * w + x];
            if (x > 0) sum += in[y * w + x - 1];
            if (x < w - 1) sum += in[y * w + x + 1];
            if (y > 0) sum += in[(y - 1) * w + x];
            if (y < h - 1) sum += in[(y + 1) * w + x];
            out[y * w + x] = 0.2f * sum;
        }""",
        {"h": 37, "w": 45},
    ),
    "matvec": (
        """__global__ void matvec(const float* A, const float* x, float* y, int m, int n) {
            int r = blockIdx.x * blockDim.x + threadIdx.x;
            if (r < m) {
                float sum = 0;
                for (int k = 0; k < n; ++k) sum += A[r * n + k] * x[k];
                y[r] = sum;
            }
        }""",
        {"m": 301, "n": 19},
    ),
    "histogram": (
        f"""__global__ void histogram(const int* data, int* bins, int n) {{
            {ELEMENT}
            if (i < n) atomicAdd(&bins[data[i]], 1);
        }}""",
        {"n": 1001},
    ),
    "gather": (
        f"""__global__ void gather(const float* table, const int* index, float* out, int n) {{
            {ELEMENT}
            if (i < n) out[i] = table[index[i]];
        }}""",
        {"n": 555},
    ),
    "scatter": (
        f"""__global__ void scatter(const float* x, const int* index, float* out, int n) {{
            {ELEMENT}
            if (i < n) atomicAdd(out + index[i], x[i]);
        }}""",
        {"n": 555},
    ),
    "dequantise": (
        f"""__global__ void dequantise(const signed char* q, const float* scale, float* out, int n, int group) {{
            {ELEMENT}
            if (i < n) out[i] = (float)q[i] * scale[i / group];
        }}""",
        {"n": 1024, "group": 32},
    ),
    "depthwise": (
        """__global__ void depthwise(const float* x, const float* f, float* y, int c, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y * blockDim.y + threadIdx.y;
            if (i < n && k < c) {
                float sum = 0;
                for (int t = -1; t <= 1; ++t)
                    if (i + t >= 0 && i + t < n) sum += x[k * n + i + t] * f[k * 3 + t + 1];
                y[k * n + i] = sum;
            }
        }""",
        {"c": 5, "n": 99},
    ),
    "matmul": (
        """__global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K) {
            int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
            if (r < M && c < N) {
                float s = 0;
                for (int k = 0; k < K; ++k) s += A[r * K + k] * B[k * N + c];
                C[r * N + c] = s;
            }
        }""",
        {"M": 33, "N": 41, "K": 17},
    ),
    "scale_rows": (
        """__global__ void scale_rows(const float* x, const float* s, float* y, int n) {
            for (int i = threadIdx.x; i < n; i += blockDim.x)
                y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * s[blockIdx.x];
        }""",
        {"n": 333, "rows": 4},
    ),
}
SHAPES = {
    "scatter": {"out": "n"},
    "gather": {"table": "n"},
    "histogram": {"bins": "100"},
    "dequantise": {"scale": "n"},
    "stencil1d": {"x": "n"},
    "stencil2d": {"in": "h * w"},
    "depthwise": {"x": "c * n", "f": "3 * c"},
}
"""What a draft asks for besides sizes: lengths of arrays whose indices are data, or may leave the array."""


@functools.cache
def draft_of(name: str) -> Draft:
    return draft(KERNELS[name][0], None, "my.cu")


@functools.cache
def drafted(name: str) -> tuple[Task, list[str]]:
    """The drafted task with its questions answered, and the questions."""
    sizes, left, folder = KERNELS[name][1], list[str](), Path(tempfile.mkdtemp())
    for file, text in draft_of(name).files.items():
        left += re.findall(r"# FILL: (.*)", text)
        text = re.sub(r" +# FILL:.*", "", text)
        if file == "task.toml":
            given = ", ".join(f"{size} = {value}" for size, value in sizes.items())
            text = re.sub(r"sizes = \{.*\}", f"sizes = {{ {given} }}", text)
            for array, shape in SHAPES.get(name, {}).items():
                array = f"{array}_" if array == "in" else array
                text = re.sub(rf'(name = "{array}", .*shape = )\[[^\]]*\]', rf'\1["{shape}"]', text)
        if file == "reference.py":
            text = re.sub(r"def .*", f"def {name}(**given): return given", text).split('    """')[0]
        (folder / file).write_text(text)
    task = read_task(folder / "task.toml")
    shutil.rmtree(folder)
    return task, left
