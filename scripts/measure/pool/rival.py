"""Kernel Tuner on the same points, for the ratio in one run: brute force with its CuPy backend.

`python scripts/measure/pool/rival.py` measures it in this process and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from tunesmith.cli.measure.pool.planted import small
from tunesmith.cli.measure.pool.pool_runs import Place, find_place
from tunesmith.kernels.build.specialise import specialise


def rival(seed: int) -> dict[str, Any]:
    """Kernel Tuner in a process of its own, so that neither disturbs the other."""
    command = [sys.executable, __file__, str(seed)]
    with tempfile.TemporaryDirectory() as folder:
        # CuPy keeps what it compiled for the next process: on the second run of this script nothing would be compiled.
        cold = os.environ | {"CUPY_CACHE_DIR": folder}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=cold)
        except subprocess.TimeoutExpired:
            return {"error": "Kernel Tuner did not end within 150 s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": (done.stderr or done.stdout)[-2000:]}
    return found


def kernel_tuner(place: Place) -> dict[str, Any]:
    """Brute force of the same points: CuPy backend, its usual seven runs, without a check of results."""
    try:
        import kernel_tuner
        import numpy as np
    except ImportError as error:
        return {"error": f"Kernel Tuner is not installed here ({error}); it was not measured."}
    if place.device.backend != "cuda":
        return {"error": "Kernel Tuner's CuPy backend needs a CUDA device; it was not measured."}
    from cuda.pathfinder import find_nvidia_header_directory

    template, workload = small(place.template), place.task.workload(place.workload)
    n, d = workload.sizes["n"], workload.sizes["d"]
    rng = np.random.default_rng(0)
    arguments = [
        rng.standard_normal((n, 2 * d)).astype(np.float16),
        np.zeros((n, d), np.float16),
        np.int32(n),
        np.int32(d),
    ]
    source = specialise(template.model_copy(update={"parameters": ()}), {}, workload.types).source

    def grid(config: dict[str, int]) -> int:
        tiles = -(-d // (config["BLOCK_X"] * config["VEC"] * config["UNROLL"])) * -(-n // config["BLOCK_Y"])
        return min(tiles, config["GRID_CAP"] if config["WALK"] else tiles)

    _mend_uuid()
    started = time.monotonic()
    results, _ = kernel_tuner.tune_kernel(
        template.entry,
        source,
        grid,
        arguments,
        {p.name: list(p.values) for p in template.parameters},
        lang="cupy",
        block_size_names=["BLOCK_X", "BLOCK_Y"],
        grid_div_x=[],
        strategy="brute_force",
        quiet=True,
        restrictions=[one.expression for one in template.constraints],
        compiler_options=["-std=c++17", f"-I{find_nvidia_header_directory('cudart')}"],
    )
    seconds = time.monotonic() - started
    times = [one["time"] for one in results if isinstance(one["time"], float)]
    return {
        "version": kernel_tuner.__version__ if hasattr(kernel_tuner, "__version__") else "unknown",
        "points": len(results),
        "measured": len(times),
        "seconds": round(seconds, 3),
        "rate": round(len(results) / seconds, 2),
        "best_us": round(1e3 * min(times), 3) if times else None,
    }


def _mend_uuid() -> None:
    """CuPy cuts a GPU's UUID off at its first zero byte, and Kernel Tuner ends with an error over the rest."""
    from cupy.cuda import runtime

    told = runtime.getDeviceProperties

    def whole(device: int) -> dict[str, Any]:
        properties = told(device)
        return {**properties, "uuid": properties["uuid"].ljust(16, b"\0")}

    runtime.getDeviceProperties = whole


if __name__ == "__main__":
    print(json.dumps(kernel_tuner(find_place(0, int(sys.argv[1]) if len(sys.argv) > 1 else 0))))
