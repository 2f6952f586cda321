"""Runs this folder's kernel with CuPy alone: python launch.py [WORKLOAD]. bfloat16 and float8 also need ml_dtypes.

On a GPU of the architecture in launch.json the machine code that was measured is loaded. On another the source is
compiled, which gives other times.
"""

import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
HEADER_FOLDERS = (".", "cccl", "crt", "cooperative_groups", "cooperative_groups/details")
"""Below the folders of CUDA's headers, which include each other by their bare names."""


def dtype(name: str) -> np.dtype:
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return found


def machine_code(kernel: dict[str, Any], arch: str) -> bytes | None:
    """The machine code beside the source, if it is for `arch` (such as "sm_90")."""
    about = kernel["machine_code"]
    if about["file"] is None or about["architecture"] != arch:
        return None
    code: bytes = (HERE / about["file"]).read_bytes()
    if hashlib.sha256(code).hexdigest() != about["sha256"]:
        sys.exit(f"{about['file']} is not the file that launch.json describes: its sha256 differs. Export it again.")
    return code


def compile_source(kernel: dict[str, Any], arch: str) -> bytes:
    """The source compiled for `arch` by NVRTC with the options that were used when it was measured.

    Raises ImportError where cuda-bindings (pip install cuda-bindings cuda-pathfinder) is missing.
    """
    from cuda.bindings import nvrtc
    from cuda.pathfinder import find_nvidia_header_directory

    def checked(answer: tuple[Any, ...]) -> Any:
        if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            sys.exit(f"NVRTC fails with {answer[0].name}.")
        return answer[1] if len(answer) > 1 else None

    # From 9.0 on an "a" allows the instructions that only this architecture has.
    target = f"{arch}a" if int("".join(filter(str.isdigit, arch))) >= 90 else arch
    options = [f"--gpu-architecture={target}", "--std=c++17", "--no-source-include"]
    roots = filter(None, map(find_nvidia_header_directory, ("cudart", "cccl", "nvcc")))
    folders = [os.path.join(root, name) for root in roots for name in HEADER_FOLDERS]
    options += [f"--include-path={folder}" for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
    if kernel["fast_math"]:
        options.append("--use_fast_math")
    if kernel["max_registers"]:
        options.append(f"--maxrregcount={kernel['max_registers']}")
    source = (HERE / kernel["source"]).read_bytes()
    program = checked(nvrtc.nvrtcCreateProgram(source, kernel["source"].encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        sys.exit(f"{kernel['source']} does not compile for {arch}:\n{log.decode(errors='replace')}")
    code: bytes = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


def load(kernel: dict[str, Any], entry: str) -> Any:
    """The kernel as a function of CuPy. `kernel`: an entry of `workloads` or `sources` in launch.json."""
    import cupy

    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    code = machine_code(kernel, arch)
    if code is None:
        print(f"The machine code here is not for {arch}: compiling {kernel['source']}.", file=sys.stderr)
        try:
            code = compile_source(kernel, arch)
        except ImportError:
            print("cuda-bindings is missing, so CuPy compiles; it adds -ftz=true: times will differ.", file=sys.stderr)
            options = ["--std=c++17"] + (["--use_fast_math"] if kernel["fast_math"] else [])
            if kernel["max_registers"]:
                options.append(f"--maxrregcount={kernel['max_registers']}")
            source = (HERE / kernel["source"]).read_text()
            return cupy.RawModule(code=source, options=tuple(options)).get_function(entry).kernel
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(entry)


def main() -> int:
    about = json.loads((HERE / "launch.json").read_text())
    name = sys.argv[1] if len(sys.argv) > 1 else next(iter(about["workloads"]))
    if name not in about["workloads"]:
        sys.exit(f"There is no workload '{name}'; choose one of {', '.join(about['workloads'])}.")
    import cupy

    launch = about["workloads"][name]
    kernel = load(launch, about["entry"])
    shared = launch["shared_bytes"]
    if shared:
        cupy.cuda.driver.funcSetAttribute(
            kernel.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared
        )
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
    kernel(tuple(launch["grid"]), tuple(launch["block"]), tuple(arguments), shared_mem=shared)
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
