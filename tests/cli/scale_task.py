"""A task of ten lines for OpenCL, and how it is edited: what several tests of the command line share."""

from pathlib import Path

TASK = """
name = "scale"
entry = "scale"
reference = "reference.py:scale"
bytes = "8 * n"
flops = "n"
arithmetic = "float32"
arguments = [
    { name = "x", role = "in", dtype = "float32", shape = ["n"] },
    { name = "out", role = "out", dtype = "float32", shape = ["n"] },
    { name = "factor", role = "scalar", dtype = "float32", value = "1.5" },
    { name = "n", role = "scalar", dtype = "int32", value = "n" },
]

[tolerance]
float32 = { rtol = 1e-5, atol = 1e-5 }

[backends.opencl]
baseline = { source_file = "baseline.cl", launch = { grid = ["ceil_div(n, 64)"], block = [64] } }
templates = ["template.toml"]

[[workloads]]
sizes = { n = 4096 }

[[workloads]]
sizes = { n = 1001 }
held_out = true
"""
TEMPLATE = """
source_file = "template.cl"
parameters = [{ name = "GROUP", values = [16, 64] }, { name = "ITEMS", values = [1, 4] }]
constraints = ["GROUP * ITEMS <= 256"]

[launch]
grid = ["ceil_div(n, GROUP * ITEMS)"]
block = ["GROUP"]
"""
HEAD = "__kernel void scale(__global const float* x, __global float* out, float factor, int n) "
BASELINE = HEAD + "{ int i = get_global_id(0); if (i < n) out[i] = factor * x[i]; }\n"
KERNEL = (
    HEAD
    + "{ int at = get_global_id(0) * ITEMS; for (int k = at; k < at + ITEMS; ++k) if (k < n) out[k] = factor * x[k]; }"
)
REFERENCE = "import os, sys, time\nimport numpy as np\n\ndef scale(x, factor, n):\n    {body}\n"


def write(folder: Path, body: str = "return {'out': factor * x}") -> None:
    files = {"task.toml": TASK, "template.toml": TEMPLATE, "baseline.cl": BASELINE, "template.cl": KERNEL}
    for name, text in (files | {"reference.py": REFERENCE.format(body=body)}).items():
        (folder / name).write_text(text)
