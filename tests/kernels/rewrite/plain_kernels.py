"""Plain kernels in the style that people write, of sixteen kinds with what comes in production; sizes are small.

Of production's three the plain baselines are in the library.
"""

import functools
import re
import sys
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


def answered(name: str) -> dict[str, str]:
    """The files of the draft with its questions answered."""
    sizes, files = KERNELS[name][1], dict[str, str]()
    for file, text in draft_of(name)[1].items():
        text = re.sub(r" +# FILL:.*", "", text)
        if file == "task.toml":
            text = re.sub(r"sizes = \{.*\}", _toml(sizes), text)
            for array, shape in SHAPES.get(name, {}).items():
                array = f"{array}_" if array == "in" else array
                text = re.sub(rf'(name = "{array}", .*shape = )\[[^\]]*\]', rf'\1["{shape}"]', text)
        if file == "reference.py":
            text = re.sub(r"def .*", f"def {name}(**given): return given", text).split('    """')[0]
        files[file] = text
    return files


def _toml(sizes: dict[str, int]) -> str:
    return f"sizes = {{ {', '.join(f'{size} = {value}' for size, value in sizes.items())} }}"


def _written(files: dict[str, str], folder: Path) -> None:
    for file, text in files.items():
        (folder / file).write_text(text)


@functools.cache
def drafted(name: str) -> tuple[Task, list[str]]:
    """The drafted task with its questions answered, and the questions."""
    left = [found for text in draft_of(name)[1].values() for found in re.findall(r"# FILL: (.*)", text)]
    with tempfile.TemporaryDirectory() as folder:
        _written(answered(name), Path(folder))
        return read_task(Path(folder) / "task.toml"), left


M = 1 << 20
LINE = ({"n": 8 * M}, {"n": 3 * M}, {"n": 100_003})
ROWS = ({"n": 4096, "rows": 4096}, {"n": 1024, "rows": 8192}, {"n": 1003, "rows": 33})
LARGE: dict[str, tuple[dict[str, int], ...]] = {
    **dict.fromkeys(("gelu", "add_relu", "stencil1d", "gather", "scatter", "histogram"), LINE),
    **dict.fromkeys(("row_sum", "softmax", "layernorm", "scale_rows"), ROWS),
    "transpose": ({"rows": 4096, "cols": 4096}, {"rows": 2048, "cols": 6144}, {"rows": 333, "cols": 517}),
    "stencil2d": ({"h": 4096, "w": 4096}, {"h": 2048, "w": 6144}, {"h": 333, "w": 517}),
    "matvec": ({"m": 8192, "n": 4096}, {"m": 16384, "n": 1024}, {"m": 333, "n": 517}),
    "dequantise": ({"n": 32 * M, "group": 128}, {"n": 8 * M, "group": 32}, {"n": 100_003, "group": 7}),
    "depthwise": ({"c": 1024, "n": 16384}, {"c": 4096, "n": 1024}, {"c": 33, "n": 517}),
    "matmul": ({"M": 1024, "N": 1024, "K": 1024}, {"M": 2048, "N": 1024, "K": 512}, {"M": 133, "N": 217, "K": 95}),
}
"""Two tuned sizes of tens of megabytes, and a held-out size that nothing divides."""
INDICES = {"gather": ("index", 50_000), "scatter": ("index", 50_000), "histogram": ("data", 50)}
"""Arrays of indices, which lie below twice this number: places that exist at every size."""


def write_tasks(folder: Path) -> None:
    """Writes a task of each kernel at sizes of `LARGE`, compared with the plain kernel itself."""
    for name in KERNELS:
        files = answered(name)
        del files["reference.py"]
        text = re.sub(r"(?m)^reference = .*", 'reference = "baseline"', files["task.toml"])
        text = text.partition("\n[[workloads]]\n")[0] + "\n"
        if name in INDICES:
            array, middle = INDICES[name]
            fill = f'fill = {{ kind = "uniform", mean = {middle - 1}, scale = {middle - 1} }}'
            text = re.sub(rf'(name = "{array}", .*)fill = \{{[^}}]*\}}', rf"\1{fill}", text)
        for at, sizes in enumerate(LARGE[name]):
            held_out = "held_out = true\n" if at == 2 else ""
            text += f'[[workloads]]\n{_toml(sizes)}\ndevices = ["gpu"]\n{held_out}'
        (folder / name).mkdir(parents=True)
        _written(files | {"task.toml": text}, folder / name)


if __name__ == "__main__":
    write_tasks(Path(sys.argv[1]))
