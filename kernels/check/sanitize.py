"""compute-sanitizer on one launch of a candidate: invalid accesses (memcheck) and races in shared memory (racecheck).

The launch happens in a process of its own under the tool, with every array in an allocation of exactly its size, as the
tool knows allocations and not arrays: in the bench's buffers a read one past the end would be inside.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.launch.draw import draw, spread
from tunesmith.kernels.spec.contents import Contents
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.task import Task, Workload

TOOLS = ("memcheck", "racecheck")
FOUND = 86
"""Exit code of compute-sanitizer when it found something."""
SECONDS = 180.0
PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """found: what the tool says is wrong, empty if nothing; note: why it was not run, empty if it was."""

    found: str = ""
    note: str = ""


Suspect = tuple[Candidate, Sequence[Workload]]


def executable() -> str | None:
    """Where compute-sanitizer is."""
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(PLACES))


def sanitize(suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, seed: int) -> list[Sanitized]:
    """Runs one launch of each candidate, on each of its workloads that the template is meant for, under each tool, on
    the CUDA device `index`. The caller sees to it that no other process uses the device."""
    if not suspects:
        return []
    if limits.backend != "cuda":
        return [Sanitized(note="compute-sanitizer was not run: it is for CUDA")] * len(suspects)
    tool = executable()
    if tool is None:
        why = "compute-sanitizer was not run: it is not installed here (it comes with the CUDA toolkit)"
        return [Sanitized(note=why)] * len(suspects)
    # Starting a tool takes seconds, launching a kernel milliseconds: all go together, and where something is found,
    # each goes alone, to tell which.
    together = _run(tool, suspects, task, limits, index, seed)
    if together == Sanitized() or len(suspects) == 1:
        return [together] * len(suspects)
    return [_run(tool, [one], task, limits, index, seed) for one in suspects]


def _run(tool: str, suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, seed: int) -> Sanitized:
    jobs = [
        (candidate, [w for w in workloads if infeasible_on(candidate.template, candidate.config, w, limits) is None])
        for candidate, workloads in suspects
    ]
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder, contextlib.ExitStack() as stack:
        job = Path(folder, "job.pickle")
        job.write_bytes(pickle.dumps((jobs, task, index, seed)))
        running: dict[str, subprocess.Popen[str]] = {}
        for name in TOOLS:
            command = [
                tool,
                f"--tool={name}",
                f"--error-exitcode={FOUND}",
                "--print-limit=3",
                "--target-processes=all",
                sys.executable,
                "-m",
                "tunesmith.kernels.check.sanitize",
                str(job),
            ]
            running[name] = stack.enter_context(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
                )
            )
            stack.callback(_end, running[name].pid)
        for name, process in running.items():
            try:
                output, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return Sanitized(note=f"compute-sanitizer {name} did not end within {SECONDS:g} s")
            if process.returncode == FOUND:
                return Sanitized(found=f"{name}: {_first_finding(output)}")
            if process.returncode != 0:
                return Sanitized(note=f"compute-sanitizer {name} could not be run: {_last_line(output)}")
    return Sanitized()


def _end(group: int) -> None:
    """Ends the tool together with the process that it watches."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _first_finding(text: str) -> str:
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")]
    told = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    return "; ".join(told[:3])[:400] or "an error that it does not describe"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"


def launch_once(candidate: Candidate, task: Task, workload: Workload, index: int, seed: int) -> None:
    """One launch on the CUDA device `index`, with every array in an allocation of its own, of exactly its size."""
    import cupy

    cupy.cuda.Device(index).use()
    contents, rng = Contents(seed=seed), np.random.default_rng(seed)
    arguments: list[Any] = []
    held = []
    for argument in task.arguments:
        dtype = task.dtype_of(argument, workload)
        if argument.role == "scalar":
            arguments.append(DTYPES[dtype].scalar(task.scalar_of(argument, workload)))
            continue
        shape_of = task.shape_of(argument, workload)
        block = draw(contents, argument.fill, shape_of, dtype, rng)
        host = spread(np, block, math.prod(shape_of), rng).view(np.uint8)
        # Directly from the driver: CuPy's pool would round the size up.
        memory = cupy.cuda.Memory(host.nbytes)
        held.append(memory)
        cupy.cuda.runtime.memcpy(memory.ptr, host.ctypes.data, host.nbytes, cupy.cuda.runtime.memcpyHostToDevice)
        arguments.append(np.uint64(memory.ptr))
    artifact = candidate.artifacts[types_key(workload)]
    module = cupy.cuda.function.Module()
    module.load(artifact.code)
    shape = geometry(candidate.template, candidate.config, workload)
    kernel = module.get_function(artifact.entry)
    if shape.shared_bytes:
        cupy.cuda.driver.funcSetAttribute(
            kernel.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shape.shared_bytes
        )
    kernel(shape.grid, shape.block, tuple(arguments), shared_mem=shape.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()


def main(path: str) -> None:
    """What runs under the tool."""
    jobs, task, index, seed = pickle.loads(Path(path).read_bytes())
    for candidate, workloads in jobs:
        for workload in workloads:
            launch_once(candidate, task, workload, index, seed)


if __name__ == "__main__":
    main(sys.argv[1])
