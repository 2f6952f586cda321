"""Runs this folder's kernel with CuPy alone: python launch.py [WORKLOAD]. bfloat16 and float8 also need ml_dtypes."""

import json
import runpy
import sys
from pathlib import Path

import cupy
import numpy as np

HERE = Path(__file__).resolve().parent


def dtype(name: str) -> np.dtype:
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return found


def main() -> int:
    about = json.loads((HERE / "launch.json").read_text())
    name = sys.argv[1] if len(sys.argv) > 1 else next(iter(about["workloads"]))
    if name not in about["workloads"]:
        sys.exit(f"There is no workload '{name}'; choose one of {', '.join(about['workloads'])}.")
    launch = about["workloads"][name]
    options = ["--std=c++17"] + (["--use_fast_math"] if launch["fast_math"] else [])
    if launch["max_registers"]:
        options.append(f"--maxrregcount={launch['max_registers']}")
    kernel = cupy.RawModule(code=(HERE / launch["source"]).read_text(), options=tuple(options)).get_function(
        about["entry"]
    )
    kernel.max_dynamic_shared_size_bytes = launch["shared_bytes"]
    rng, values, arguments, read = np.random.default_rng(0), {}, [], {}
    for argument in launch["arguments"]:
        kind = dtype(argument["numpy"])
        if argument["role"] == "scalar":
            values[argument["name"]] = kind.type(argument["value"])
            read[argument["name"]] = argument["value"]
        else:
            host = rng.standard_normal(argument["shape"], dtype=np.float32).astype(kind)
            if argument["role"] != "out":
                read[argument["name"]] = host.astype(np.float64)
            values[argument["name"]] = cupy.asarray(host.view(np.uint8))
        arguments.append(values[argument["name"]])
    expected = runpy.run_path(str(HERE.parent / "reference.py"))[about["reference"]](**read)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    kernel(tuple(launch["grid"]), tuple(launch["block"]), tuple(arguments), shared_mem=launch["shared_bytes"])
    end.record()
    end.synchronize()
    right = True
    for argument in launch["arguments"]:
        if argument["role"] in ("out", "inout"):
            got = values[argument["name"]].get().view(dtype(argument["numpy"])).astype(np.float64)
            want = expected[argument["name"]]
            right &= np.allclose(got.reshape(want.shape), want, **argument["tolerance"], equal_nan=True)
    milliseconds = cupy.cuda.get_elapsed_time(start, end)
    print(f"{about['task']} on {name}: {'right' if right else 'WRONG'}, first launch {milliseconds:.3f} ms")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
