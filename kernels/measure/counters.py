"""Hardware counters of one launch, by NVIDIA's Nsight Compute (`ncu`), where it is installed and permitted.

A dozen counters that tell what holds a kernel back. The launch is the one of `kernels.check.sanitize`, in a process
of its own under the tool. Metric names are those of the Nsight Compute documentation ("Metrics Decoder").
"""

from __future__ import annotations

import csv
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.sanitize import launch_once
from tunesmith.kernels.spec.task import Task, Workload

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
    if limits.backend != "cuda":
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
            "tunesmith.kernels.measure.counters",
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
