"""compute-sanitizer on launches of a candidate: invalid accesses (memcheck), races in shared memory (racecheck), reads
of memory that nobody wrote (initcheck), and barriers that not all threads reach (synccheck).

The launches happen in a process of its own under each tool, with every array in an allocation of exactly its size, as
tools know allocations and not arrays: in the bench's buffers a read one past the end would be inside. Outputs are left
as they were allocated, so that reading one is reading what nobody wrote.

Hardware counters of one launch, by NVIDIA's Nsight Compute (`ncu`), where it is installed and permitted.
"""

from __future__ import annotations

import contextlib
import csv
import io
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.artifact import Candidate, types_key
from tunesmith.kernels.check.verify import infeasible_on
from tunesmith.kernels.launch.contents import Contents, draw, spread
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86
"""Exit code of compute-sanitizer when it found something."""
TOOL_SECONDS = 60.0
"""For a tool to end."""
LAUNCHING_SECONDS = 10.0
"""For all launches of a tool's process: it begins none that would end later, as under a tool one on a large workload
takes minutes."""
WORKLOADS = 64
"""Made-up ones that each candidate is launched on at most, of all sizes; the task's own are not counted. Tools see what
a launch does whatever the contents are, so that they need fewer than a verdict has steps."""
LARGEST_BYTES = 1e9
"""Of the workloads that are launched."""
SANITIZER_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """found: what a tool says is wrong, empty if nothing; note: what was not looked at and why, empty if everything
    was."""

    found: str = ""
    note: str = ""


Suspect = tuple[Candidate, Sequence[Workload]]


def executable() -> str | None:
    """Where compute-sanitizer is."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(SANITIZER_FOLDERS)
    )


def sanitize(
    suspects: Sequence[Suspect],
    task: Task,
    limits: DeviceLimits,
    index: int,
    seed: int,
) -> list[Sanitized]:
    """Runs one launch of each candidate, on each of its workloads that the template is meant for, the smallest first
    and as many as there is time for, under each tool, on the CUDA device `index`. The caller sees to it that no other
    process uses the device."""
    if not suspects:
        return []
    # Starting a tool takes seconds, launching a kernel milliseconds: all go together, and where something is found,
    # each goes alone, to tell which.
    with contextlib.closing(Inspection(suspects, task, limits, index, seed)) as inspection:
        together = inspection.found()
    if not together.found or len(suspects) == 1:
        return [together] * len(suspects)
    found = []
    for one in suspects:
        with contextlib.closing(Inspection([one], task, limits, index, seed)) as alone:
            found.append(alone.found())
    return found


class Inspection:
    """All tools at work on some candidates, from its making to its `close`, on the CUDA device `index`."""

    def __init__(self, suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, seed: int) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._why = ""
        self._jobs = [
            (candidate, workload)
            for candidate, workloads in suspects
            for workload in chosen_workloads(task, workloads)
            if infeasible_on(candidate.template, candidate.config, workload, limits) is None
        ]
        self._jobs.sort(key=lambda job: task.bytes_of(job[1]))
        if not BACKENDS[limits.backend].nvidia_tools:
            # It knows no other device, so that it did not run says nothing.
            return
        tool = executable()
        if tool is None:
            self._why = "compute-sanitizer was not run: it is not installed here (it comes with the CUDA toolkit)"
        else:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tunesmith-")))
            job = Path(self._folder, "job.pickle")
            job.write_bytes(pickle.dumps((self._jobs, task, index, seed)))
            for name in SANITIZER_TOOLS:
                self._begin(tool, name, job)

    def _begin(self, tool: str, name: str, job: Path) -> None:
        command = [
            tool,
            f"--tool={name}",
            f"--error-exitcode={FOUND}",
            "--print-limit=3",
            "--target-processes=all",
            sys.executable,
            "-m",
            "tunesmith.kernels.check.sanitizer",
            str(Path(self._folder, name)),
            str(job),
        ]
        # Into a file: nobody reads a pipe while steps go on.
        with Path(self._folder, f"{name}.txt").open("w", encoding="utf-8") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        self._running[name] = self._stack.enter_context(process)
        self._stack.callback(_end, process.pid)

    def found(self) -> Sanitized:
        """What the tools find, once all have ended."""
        if self._why:
            return Sanitized(note=self._why)
        notes, deadline = [], time.monotonic() + TOOL_SECONDS
        for name, process in self._running.items():
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                notes.append(f"{name} did not end within {TOOL_SECONDS:g} s")
                continue
            output = Path(self._folder, f"{name}.txt").read_text("utf-8", errors="replace")
            if code == FOUND:
                return Sanitized(found=f"{name}: {_first_finding(output)}")
            if code != 0:
                notes.append(f"{name} could not be run: {_last_line(output)}")
            elif (left := _left(Path(self._folder, name), self._jobs)) != "":
                notes.append(f"{name} had no time for {left}")
        return Sanitized(note=f"compute-sanitizer: {'; '.join(notes)}" if notes else "")

    def close(self) -> None:
        """Ends the tools, together with the processes that they watch."""
        self._stack.close()


def chosen_workloads(task: Task, workloads: Sequence[Workload]) -> list[Workload]:
    """The task's own workloads that are not too large, and of the others some of all sizes and types."""
    different = {(one.name, types_key(one)): one for one in workloads if task.bytes_of(one) <= LARGEST_BYTES}.values()
    names = {one.name for one in task.workloads}
    made_up = sorted((one for one in different if one.name not in names), key=task.bytes_of)
    step = max(1.0, len(made_up) / WORKLOADS)
    return [one for one in different if one.name in names] + [
        made_up[round(at * step)] for at in range(min(WORKLOADS, len(made_up)))
    ]


def _left(done: Path, jobs: Sequence[tuple[Candidate, Workload]]) -> str:
    """The workloads that a tool's process had no time for. done: where it says how many launches it made."""
    count = int(done.read_text("ascii")) if done.exists() else len(jobs)
    names = dict.fromkeys(workload.name for _, workload in jobs[count:])
    return ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
        # Directly from the driver: CuPy's pool would round the size up.
        memory = cupy.cuda.Memory(math.prod(shape_of) * DTYPES[dtype].size)
        held.append(memory)
        if argument.role != "out":
            block = draw(contents, argument.fill, shape_of, dtype, rng)
            host = spread(np, block, math.prod(shape_of), rng).view(np.uint8)
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


def main(done: str, path: str) -> None:
    """What runs under a tool. done: the file that is told how many launches were made."""
    jobs, task, index, seed = pickle.loads(Path(path).read_bytes())
    begun = time.monotonic()
    taken: list[tuple[float, float]] = []
    for candidate, workload in jobs:
        before, moved = time.monotonic(), task.bytes_of(workload)
        if before - begun + expected_seconds(taken, moved) > LAUNCHING_SECONDS:
            break
        launch_once(candidate, task, workload, index, seed)
        taken.append((moved, time.monotonic() - before))
    Path(done).write_text(str(len(taken)), "ascii")


def expected_seconds(taken: Sequence[tuple[float, float]], moved: float) -> float:
    """What a launch that moves `moved` bytes will take, in proportion to the last one. taken: bytes and seconds of the
    launches before, of which the shortest tells what any launch takes."""
    if not taken:
        return 0.0
    least = min(seconds for _, seconds in taken)
    last_moved, last = taken[-1]
    return least + (last - least) * moved / max(1.0, last_moved)


if __name__ == "__main__":
    main(*sys.argv[1:])


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
"""Metric of ncu -> what it says."""
PROFILE_SECONDS = 120.0
PROFILER_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/opt/nvidia/nsight-compute")


@dataclass(frozen=True, slots=True)
class Counters:
    """values: by the words of `METRICS`, as far as the device has them; note: why there are none."""

    values: dict[str, float] = field(default_factory=dict)
    note: str = ""


def count_events(
    candidate: Candidate, task: Task, limits: DeviceLimits, index: int, workload: Workload, seed: int
) -> Counters:
    """Runs one launch of `candidate` on `workload` under ncu, on the CUDA device `index`."""
    if not BACKENDS[limits.backend].nvidia_tools:
        return Counters(note="hardware counters are read on CUDA devices only")
    tool = shutil.which("ncu") or shutil.which("ncu", path=os.pathsep.join(PROFILER_FOLDERS))
    if tool is None:
        return Counters(note="ncu is not installed here (it comes with the CUDA toolkit)")
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder:
        job = Path(folder, "job.pickle")
        job.write_bytes(pickle.dumps((candidate, task, workload, index, seed)))
        # The clocks stay as they are: the harness owns them, and times are taken elsewhere.
        command = [
            tool,
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--clock-control",
            "none",
            "--target-processes",
            "all",
            "--kernel-name",
            candidate.template.entry,
            "--launch-count",
            "1",
            "--metrics",
            ",".join(METRICS),
            sys.executable,
            "-m",
            "tunesmith.kernels.check.sanitizer",
            str(job),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROFILE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Counters(note=f"ncu did not end within {PROFILE_SECONDS:g} s")
    return parse_counters(done.stdout + "\n" + done.stderr)


def parse_counters(text: str) -> Counters:
    """Counters out of what ncu writes with --csv --page raw: a row of names, a row of units, a row for each launch."""
    if "ERR_NVGPUCTRPERM" in text:
        return Counters(note="the driver does not permit hardware counters to this user (ERR_NVGPUCTRPERM)")
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 3:
        told = [line.strip() for line in text.splitlines() if re.match(r"==(ERROR|WARNING)==", line)]
        return Counters(note=f"ncu could not be run: {told[0][:200] if told else 'it gave no counters'}")
    values = {}
    for name, value in zip(rows[0], rows[2], strict=False):
        if name in METRICS:
            try:
                values[METRICS[name]] = float(value.replace(",", ""))
            except ValueError:  # "n/a", where the device has no such counter
                continue
    return Counters(values) if values else Counters(note="ncu knows none of the counters on this device")


if __name__ == "__main__":
    # What runs under the tool.
    launch_once(*pickle.loads(Path(sys.argv[1]).read_bytes()))
