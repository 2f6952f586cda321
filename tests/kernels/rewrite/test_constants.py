"""Parameters that become constants: code of its own for the values of the workloads computes what the kernel did."""

import pytest
from emulation import contents
from rewrite_cases import require_refused, require_right, task_of

from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BackendName, Config, LaunchGeometry

LAUNCH = LaunchGeometry(grid=("ceil_div(n, 64)",), block=("64",))
AT = {
    "cuda": "const int i = blockIdx.x * blockDim.x + threadIdx.x;",
    "opencl": "const int i = get_global_id(0);",
}
FILTER = "if (i >= n) return; float s = 0; for (int j = 0; j < width; ++j) s += x[(i / step + j) % n]; y[i] = s;"
FILTERED = f"{AT['cuda']} {FILTER}"
TOGETHER = """__shared__ float part[64]; const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    part[t] = i < n ? x[i] : 0; __syncthreads();
    if (i >= n) return;
    float s = 0; for (int j = 0; j < width; ++j) s += part[(t + j) % 64] / step;
    y[i] = s;"""
STATIC = "__local float part[64]; part[get_local_id(0)] = i; for (int j = 0; j < width; ++j) y[i] = part[0];"


def task(body: str, backend: BackendName = "cuda", sizes: tuple[tuple[int, int], ...] = ((5, 3), (2, 7))) -> Task:
    """The task of a kernel with sizes n, width and step; its workloads have the given widths and steps."""
    head = {"cuda": ('extern "C" __global__', ""), "opencl": ("__kernel", "__global ")}[backend]
    code = f"{head[0]} void k({head[1]}const float* x, {head[1]}float* y, int n, int width, int step) {{ {body} }}"
    arrays = {"x": ("in", "float32", "n"), "y": ("inout", "float32", "n")}
    made = task_of("k", code, arrays, LAUNCH, dict.fromkeys(("n", "width", "step"), "int32"), backend)
    return made.model_copy(update={"workloads": tuple(workload(200 + one[0], *one) for one in sizes)})


def workload(n: int, width: int, step: int) -> Workload:
    return Workload(name=f"{n}x{width}x{step}", sizes={"n": n, "width": width, "step": step}, types={})


CONFIGS: list[Config] = [{"SPECIALISED": 1}, {"SPECIALISED": 1, "UNROLL": 2}]


@pytest.mark.parametrize(
    ("of", "configs"),
    [
        (task(FILTERED), [*CONFIGS, {"SPECIALISED": 1, "ITEMS": 4}, {"SPECIALISED": 1, "BLOCK": 128}]),
        (task(TOGETHER), CONFIGS),
        (task(f"{AT['opencl']} {FILTER}", "opencl"), [*CONFIGS, {"SPECIALISED": 1, "ITEMS": 4}]),
    ],
)
def test_all_values_give_what_the_kernel_gave(of: Task, configs: list[Config]) -> None:
    for one in (*of.workloads, workload(131, 5, 7), workload(131, 9, 1)):
        require_right(of, configs, one, contents(of, one, 3))


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (task(f"{AT['cuda']} if (i < n) y[i] = x[i] * width;"), "each loop has a length"),
        (task(FILTERED, sizes=((90, 70), (99, 80))), "none is small, or the same in all workloads"),
        (task(FILTERED, sizes=((1, 1), (2, 1), (3, 1), (4, 1), (5, 1))), "5 sets of values, more than 4"),
        (task(f"{AT['cuda']} if (n > 2) {{ width += 1; step += width; n -= 1; }} {FILTER}"), "none is small"),
        (task(f"{AT['opencl']} {STATIC}", "opencl"), "the code cannot be there twice"),
    ],
)
def test_parameters_stay_where_no_constant_helps(of: Task, why: str) -> None:
    require_refused(of, {"SPECIALISED"}, why)
