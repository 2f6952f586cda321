"""Runs this folder's kernel once and compares it with the reference: python launch.py [WORKLOAD].

CUDA needs CuPy, OpenCL pyopencl; bfloat16 and float8 need ml_dtypes. On a GPU of the architecture in launch.json the
machine code that was measured is loaded; on another the source is compiled, which gives other times.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from runtime import run_workload  # type: ignore[import-not-found]  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_workload(HERE, sys.argv[1:]))
