"""Launches of a candidate under NVIDIA's tools: compute-sanitizer for invalid accesses, races in shared memory,
reads of memory that nobody wrote and barriers that not all threads reach; and Nsight Compute, which counts events.

Each tool runs a process of its own (`main`), in which every array is an allocation of exactly its size: tools know
allocations, not arrays. Outputs are left as they were allocated, so that reading one is reading what nobody wrote.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Candidate, types_key
from tunesmith.kernels.build.source import code_key
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.launch.contents import Contents, draw_variants
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS

TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/opt/nvidia/nsight-compute")
"""Where tools are looked for besides PATH."""
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR_EXIT_CODE = 86
"""Exit code of compute-sanitizer when it found an error."""
SANITIZER_SECONDS, PROFILER_SECONDS = 60.0, 120.0
"""Timeouts of a tool, its launches included."""
LAUNCHING_SECONDS = 10.0
"""Time for all launches of a tool's process, which begins none that would end later: large workloads take minutes."""
MAX_DERIVED_WORKLOADS = 64
"""Derived workloads that each candidate is launched on, of all sizes; the task's own are not counted. A tool sees the
same accesses whatever the contents are, so that it needs fewer workloads than a verdict has steps."""
MAX_WORKLOAD_BYTES = 1e9
METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput, % of peak",
    "dram__bytes_read.sum": "bytes read from DRAM",
    "dram__bytes_write.sum": "bytes written to DRAM",
    "l1tex__t_sector_hit_rate.pct": "L1 hit rate, %",
    "lts__t_sector_hit_rate.pct": "L2 hit rate, %",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": "bytes used of each sector loaded, %",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": "bytes used of each sector stored, %",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "bank conflicts of shared memory",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput, % of peak",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy, %",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "cycles with an instruction issued, %",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "warps waiting for memory, per issue",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "warps stalled at barriers, per issue",
    "smsp__inst_executed.sum": "instructions executed (warps)",
}
"""Metric of ncu -> its name for a reader."""
Sanitized = WrongResult | str
"""The error that a tool reports, or a clause on which checks were not made and why, empty if all were."""
Suspect = tuple[Candidate, Sequence[Workload]]
Job = tuple[Candidate, Workload]


def find_tool(name: str) -> str | None:
    """Path of an NVIDIA tool, or None where it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(TOOL_FOLDERS))


def run_under(
    tools: Mapping[str, Sequence[str]], jobs: Sequence[Job], task: Task, index: int, seed: int, timeout_seconds: float
) -> Generator[tuple[str, int | None, str, int], None, None]:
    """Launches `jobs` on the CUDA device `index` under each of `tools` (command lines by name), which run side by side.
    For each its name, its exit code, None after the timeout, its output, and how many launches were made, all unless
    its process says otherwise. Closing the generator ends the tools, together with the processes that they watch."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as name_of_folder, contextlib.ExitStack() as stack:
        folder, running = Path(name_of_folder), {}
        (folder / "job.pickle").write_bytes(pickle.dumps((jobs, task, index, seed)))
        for name, tool in tools.items():
            files = str(folder / name), str(folder / "job.pickle")
            program = [sys.executable, "-m", "tunesmith.kernels.check.sanitizer", *files]
            # Into a file: nobody reads the pipe of a tool while another is waited for.
            with (folder / f"{name}.txt").open("wb") as output:
                process = subprocess.Popen(
                    [*tool, *program], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            running[name] = stack.enter_context(process)
            stack.callback(_end, process.pid)
        deadline = time.monotonic() + timeout_seconds
        for name, process in running.items():
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(max(0.0, deadline - time.monotonic()))
            text, done = (folder / f"{name}.txt").read_text("utf-8", errors="replace"), folder / name
            yield name, code, text, int(done.read_text("ascii")) if done.exists() else len(jobs)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def sanitize(suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, seed: int) -> list[Sanitized]:
    """Runs one launch of each candidate on each of its workloads that the template is meant for, the smallest first, as
    time allows, under each tool, on the CUDA device `index`, which no other process may use."""
    # Starting a tool takes seconds, launching a kernel milliseconds: all go together, and where an error is found, each
    # goes alone, to tell which has it.
    together = _sanitize_together(suspects, task, limits, index, seed)
    if isinstance(together, str) or len(suspects) == 1:
        return [together] * len(suspects)
    return [_sanitize_together([one], task, limits, index, seed) for one in suspects]


def _sanitize_together(
    suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, seed: int
) -> Sanitized:
    if not suspects or not BACKENDS[limits.backend].nvidia_tools:
        # It knows no other device, so that it did not run says nothing.
        return ""
    if (tool := find_tool("compute-sanitizer")) is None:
        return "compute-sanitizer was not run: it is not installed here (it comes with the CUDA toolkit)"
    jobs = [
        (candidate, workload)
        for candidate, workloads in suspects
        for workload in chosen_workloads(task, workloads)
        if infeasible_on(candidate.template, candidate.config, workload, limits) is None
    ]
    jobs.sort(key=lambda job: task.bytes_of(job[1]))
    options = (f"--error-exitcode={ERROR_EXIT_CODE}", "--print-limit=3", "--target-processes=all")
    tools = {name: (tool, f"--tool={name}", *options) for name in SANITIZER_TOOLS}
    notes = []
    with contextlib.closing(run_under(tools, jobs, task, index, seed, SANITIZER_SECONDS)) as runs:
        for name, code, output, launches in runs:
            if code == ERROR_EXIT_CODE:
                return WrongResult("sanitizer", "", f"{name}: {_first_error(output)}")
            if code is None:
                notes.append(f"{name} did not end within {SANITIZER_SECONDS:g} s")
            elif code != 0:
                last = (output.strip() or "it says nothing").splitlines()[-1]
                notes.append(f"{name} could not be run: {last[:300]}")
            elif left := list(dict.fromkeys(workload.name for _, workload in jobs[launches:])):
                more = f" and {len(left) - 3} more" if len(left) > 3 else ""
                notes.append(f"{name} had no time for {', '.join(left[:3])}{more}")
    return f"compute-sanitizer: {'; '.join(notes)}" if notes else ""


def chosen_workloads(task: Task, workloads: Sequence[Workload]) -> list[Workload]:
    """The task's own workloads that are not too large, and of the others some of all sizes and types."""
    small = (one for one in workloads if task.bytes_of(one) <= MAX_WORKLOAD_BYTES)
    different = {(one.name, types_key(one)): one for one in small}.values()
    names = {one.name for one in task.workloads}
    derived = sorted((one for one in different if one.name not in names), key=task.bytes_of)
    step = max(1.0, len(derived) / MAX_DERIVED_WORKLOADS)
    spread_out = [derived[round(at * step)] for at in range(min(MAX_DERIVED_WORKLOADS, len(derived)))]
    return [one for one in different if one.name in names] + spread_out


def _first_error(text: str) -> str:
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")]
    errors = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    return "; ".join(errors[:3])[:400] or "an error that it does not describe"


def count_events(candidate: Candidate, task: Task, index: int, workload: Workload, seed: int) -> dict[str, float] | str:
    """Hardware counters of one launch of `candidate` on `workload` under ncu, on the CUDA device `index`, by the names
    of `METRICS`, as far as the device has them; or why there are none, as a clause."""
    if (tool := find_tool("ncu")) is None:
        return "ncu is not installed here (it comes with the CUDA toolkit)"
    # The clocks stay as they are: the harness owns them, and times are taken elsewhere.
    options = "--csv --page raw --print-units base --clock-control none --target-processes all --launch-count 1"
    command = [tool, *options.split(), "--kernel-name", candidate.template.entry, "--metrics", ",".join(METRICS)]
    ((_, code, output, _),) = run_under({"ncu": command}, [(candidate, workload)], task, index, seed, PROFILER_SECONDS)
    return parse_counters(output) if code is not None else f"ncu did not end within {PROFILER_SECONDS:g} s"


def parse_counters(text: str) -> dict[str, float] | str:
    """Counters out of what ncu writes with --csv --page raw: a row of names, a row of units, a row for each launch."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    values = {}
    for name, value in zip(rows[0], rows[2], strict=False) if len(rows) > 2 else ():
        # "n/a", where the device has no such counter.
        with contextlib.suppress(ValueError):
            values[METRICS.get(name, "")] = float(value.replace(",", ""))
    values.pop("", None)
    errors = [line.strip() for line in text.splitlines() if re.match(r"==(ERROR|WARNING)==", line)]
    return values or f"ncu gave no counters: {errors[0][:200] if errors else 'it knows none of them on this device'}"


def launch_once(candidate: Candidate, task: Task, workload: Workload, index: int, seed: int) -> None:
    """One launch on the CUDA device `index`, with every array in an allocation of its own, of exactly its size."""
    import cupy

    from tunesmith.kernels.backends.cuda import callable_kernel

    cupy.cuda.Device(index).use()
    (inputs,) = draw_variants(np, task, workload, Contents(seed=seed), 1)
    arguments, held = list[Any](), []
    for argument in task.arguments:
        kind = DTYPES[task.dtype_of(argument, workload)]
        if argument.role == "scalar":
            arguments.append(kind.scalar(task.scalar_of(argument, workload)))
            continue
        # Directly from the driver: CuPy's pool would round the size up.
        memory = cupy.cuda.Memory(math.prod(task.shape_of(argument, workload)) * kind.size)
        held.append(memory)
        if argument.name in inputs:
            host = inputs[argument.name]
            cupy.cuda.runtime.memcpy(memory.ptr, host.ctypes.data, host.nbytes, cupy.cuda.runtime.memcpyHostToDevice)
        arguments.append(np.uint64(memory.ptr))
    artifact = candidate.artifacts[code_key(task, candidate.template, workload)]
    module = cupy.cuda.function.Module()
    module.load(artifact.code)
    shape = geometry(candidate.template, candidate.config, workload)
    kernel = callable_kernel(module, artifact)
    if shape.shared_bytes:
        cupy.cuda.driver.funcSetAttribute(
            kernel.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shape.shared_bytes
        )
    stream = cupy.cuda.get_current_stream()
    kernel(shape.grid, shape.block, tuple(arguments), shared_mem=shape.shared_bytes, stream=stream)
    cupy.cuda.runtime.deviceSynchronize()


def main(done: str, path: str) -> None:
    """The process under a tool. path: file of the pickled jobs; done: file for the number of launches made."""
    jobs, task, index, seed = pickle.loads(Path(path).read_bytes())
    begun = before = time.monotonic()
    launches, shortest, per_byte = 0, 0.0, 0.0
    for candidate, workload in jobs:
        # The shortest launch so far is the fixed cost of one; the rest is in proportion to the bytes of the last.
        moved = max(1.0, task.bytes_of(workload))
        if before - begun + shortest + per_byte * moved > LAUNCHING_SECONDS:
            break
        launch_once(candidate, task, workload, index, seed)
        seconds, before = time.monotonic() - before, time.monotonic()
        shortest = min(shortest or seconds, seconds)
        launches, per_byte = launches + 1, (seconds - shortest) / moved
    Path(done).write_text(str(launches), "ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
