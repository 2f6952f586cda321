"""Runs this folder's kernel with pyopencl alone: python launch.py [WORKLOAD]. bfloat16 also needs ml_dtypes."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pyopencl

HERE = Path(__file__).resolve().parent


def dtype(name: str) -> np.dtype:
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return found


def open_device(name: str) -> pyopencl.Device:
    devices = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
    device = next((device for device in devices if device.name.strip() == name), devices[0])
    try:
        # The embedded CPU driver needs help on processors newer than itself; other drivers do not.
        from tunesmith.kernels.backends.opencl import name_processor

        name_processor(device)
    except ImportError:
        pass
    return device


def main() -> int:
    about = json.loads((HERE / "launch.json").read_text())
    name = sys.argv[1] if len(sys.argv) > 1 else next(iter(about["workloads"]))
    if name not in about["workloads"]:
        sys.exit(f"There is no workload '{name}'; choose one of {', '.join(about['workloads'])}.")
    launch = about["workloads"][name]
    context = pyopencl.Context([open_device(about["device"])])
    queue = pyopencl.CommandQueue(context, properties=pyopencl.command_queue_properties.PROFILING_ENABLE)
    options = ["-cl-std=CL1.2"] + (["-cl-fast-relaxed-math"] if launch["fast_math"] else [])
    program = pyopencl.Program(context, (HERE / launch["source"]).read_text()).build(options=options)
    kernel = pyopencl.Kernel(program, about["entry"])
    rng, hosts, buffers, read = np.random.default_rng(0), {}, {}, {}
    for position, argument in enumerate(launch["arguments"]):
        kind = dtype(argument["numpy"])
        if argument["role"] == "scalar":
            read[argument["name"]] = argument["value"]
            kernel.set_arg(position, kind.type(argument["value"]))
            continue
        host = hosts[argument["name"]] = rng.standard_normal(argument["shape"], dtype=np.float32).astype(kind)
        if argument["role"] != "out":
            read[argument["name"]] = host.astype(np.float64)
        flags = pyopencl.mem_flags.READ_WRITE | pyopencl.mem_flags.COPY_HOST_PTR
        buffers[argument["name"]] = pyopencl.Buffer(context, flags, hostbuf=host.view(np.uint8))
        kernel.set_arg(position, buffers[argument["name"]])
    if launch["shared_bytes"]:
        kernel.set_arg(len(launch["arguments"]), pyopencl.LocalMemory(launch["shared_bytes"]))
    expected = runpy.run_path(str(HERE.parent / "reference.py"))[about["reference"]](**read)
    total = tuple(grid * block for grid, block in zip(launch["grid"], launch["block"], strict=True))
    event = pyopencl.enqueue_nd_range_kernel(queue, kernel, total, tuple(launch["block"]))
    event.wait()
    right = True
    for argument in launch["arguments"]:
        if argument["role"] in ("out", "inout"):
            host = hosts[argument["name"]]
            pyopencl.enqueue_copy(queue, host.view(np.uint8), buffers[argument["name"]]).wait()
            got = host.astype(np.float64)
            right &= np.allclose(got, expected[argument["name"]], **argument["tolerance"], equal_nan=True)
    milliseconds = (event.profile.end - event.profile.start) * 1e-6
    print(f"{about['task']} on {name}: {'right' if right else 'WRONG'}, first launch {milliseconds:.3f} ms")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
