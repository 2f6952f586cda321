"""Launches of a candidate under tools: NVIDIA's compute-sanitizer, and with OpenCL Oclgrind, for invalid accesses,
races, reads of memory that nobody wrote and barriers that not all threads reach; and Nsight Compute, which counts
events.

Each tool runs a process of its own (`main`), in which every array is an allocation of exactly its size: tools know
allocations, not arrays. Outputs are left as they were allocated, so that reading one is reading unwritten memory.
Oclgrind (Price and McIntosh-Smith, "Oclgrind: an extensible OpenCL device simulator", IWOCL 2015) takes the place of
the OpenCL driver in its process, compiles the source itself, and interprets it.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.hw.drivers.opencl import read_devices
from tunesmith.hw.errors import Unavailable
from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.guard import without_comments
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.launch.contents import PLAIN, Contents, draw_variants
from tunesmith.kernels.launch.reference import passed_scalars
from tunesmith.kernels.outcome import WrongResult, describe
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, Config, Template

TOOL_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/opt/nvidia/nsight-compute")
"""Where tools are looked for besides PATH."""
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
NOT_FOLLOWED = {
    "racecheck": frozenset(("named barriers", "mbarriers", "bulk copies")),
    "synccheck": frozenset(("named barriers",)),
}
"""What a tool takes for errors that are none (see `tunesmith.kernels.build.machine_code.unfollowed`); of named barriers
synccheck does, where warps of several roles meet at one from different places."""
ERROR_EXIT_CODE = 86
"""Exit code of a process under a sanitizer that found an error."""
SANITIZER_SECONDS, PROFILER_SECONDS = 60.0, 120.0
"""Timeouts of a tool, its launches included."""
LAUNCHING_SECONDS, INTERPRETING_SECONDS = 5.0, 5.0
"""Time for all launches of a tool's process, which begins none that would end later: large workloads take minutes. Of
an interpreter it is processor time."""
MAX_DERIVED_STEPS = {"compute-sanitizer": 64, "oclgrind": 128}
"""Steps on made-up workloads that each candidate is launched in; those on the task's own are not counted."""
FEW_JOBS = 4
"""Launches of the plain kernel that mostly tell whether a tool has the same against it."""
MAX_WORKLOAD_BYTES = 1e9
MAX_GROUPS = 32
"""Groups of a launch that Oclgrind interprets; of more, two."""
MAX_INTERPRETER_BYTES = 4 << 30
MAX_REPORTS = 20_000
"""Of Oclgrind, including the reports that `parse_reports` leaves out."""
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
Suspect = tuple[Candidate, Candidate, Sequence[Step]]
"""A candidate, the plain kernel, and steps in which both ran."""
Job = tuple[Candidate, Step]


def find_tool(name: str) -> str | None:
    """Path of a tool, or None where it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(TOOL_FOLDERS))


def run_under(
    tools: Mapping[str, Sequence[str]], jobs: Sequence[Job], task: Task, index: int, timeout_seconds: float
) -> Generator[tuple[str, int | None, str, list[Job]], None, None]:
    """Launches `jobs` on the device `index` under each of `tools` (command lines by name), which run side by side.
    For each its name, its exit code, None after the timeout, its output, and the jobs that it had no time for. Closing
    the generator ends the tools, together with the processes that they watch."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as name_of_folder, contextlib.ExitStack() as stack:
        folder, running = Path(name_of_folder), {}
        (folder / "job.pickle").write_bytes(pickle.dumps((jobs, task, index)))
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
            text, left = (folder / f"{name}.txt").read_text("utf-8", errors="replace"), folder / name
            places = left.read_text("ascii").split() if left.exists() else ()
            yield name, code, text, [jobs[int(place)] for place in places]


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def sanitize(
    suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, end: float = math.inf
) -> list[Sanitized]:
    """Runs one launch of each candidate in some of its steps (`chosen_steps`), as time allows, under each tool; with
    CUDA on the device `index`, which no other process may use. end: the monotonic time after which no tool runs."""
    # Starting a tool takes seconds, launching a kernel milliseconds: all go together, and where an error is found, each
    # goes alone, to tell which has it.
    together = _sanitize_together(suspects, task, limits, index, end)
    if isinstance(together, str) or len(suspects) == 1:
        return [together] * len(suspects)
    return [_sanitize_together([one], task, limits, index, end) for one in suspects]


def _sanitize_together(
    suspects: Sequence[Suspect], task: Task, limits: DeviceLimits, index: int, end: float
) -> Sanitized:
    name = "compute-sanitizer" if BACKENDS[limits.backend].nvidia_tools else "oclgrind"
    if not suspects:
        return ""
    if (tool := find_tool(name)) is None:
        where = "it comes with the CUDA toolkit" if name == "compute-sanitizer" else "on Debian: apt install oclgrind"
        return f"{name} was not run: it is not installed here ({where})"
    tools = _nvidia_tools(tool) if name == "compute-sanitizer" else {name: _oclgrind(tool, limits)}
    most = MAX_DERIVED_STEPS[name]
    each = [[(made, plain, step) for step in chosen_steps(task, steps, most)] for made, plain, steps in suspects]
    both = [job for turn in itertools.zip_longest(*each) for job in turn if job is not None]
    # A candidate for one workload alone has no small steps, and would keep the others waiting.
    both.sort(key=lambda job: 0.0 if job[2].derived else task.bytes_of(job[2].workload))
    jobs, plain_jobs = [(made, step) for made, _, step in both], [(plain, step) for _, plain, step in both]
    hidden = [{name for one in made.artifacts.values() for name in one.unfollowed} for made, _, _ in suspects]
    notes, seconds = [], max(0.0, min(SANITIZER_SECONDS, end - time.monotonic()))
    with contextlib.closing(run_under(tools, jobs, task, index, seconds)) as runs:
        for one, code, output, left in runs:
            if code == ERROR_EXIT_CODE:
                found = f"{one}: {_first_error(output)}"
                blind = [sorted(names & NOT_FOLLOWED.get(one, frozenset())) for names in hidden]
                if all(blind):
                    why = f"as it does not follow {' and '.join(blind[0])}"
                elif name != "oclgrind" and _plain_fails(one, tools[one], plain_jobs, task, index, output, seconds):
                    why = "as it says the same of the plain kernel"
                else:
                    return WrongResult("sanitizer", "", found)
                notes.append(f"{found}, which decides nothing, {why}")
            elif code is None:
                notes.append(f"{one} did not end within {seconds:.0f} s")
            elif code != 0:
                last = (output.strip() or "it says nothing").splitlines()[-1]
                notes.append(f"{one} could not be run: {last[:300]}")
            elif names := list(dict.fromkeys(step.workload.name for _, step in left)):
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                notes.append(f"{one} had no time for {', '.join(names[:3])}{more}")
    return ("" if name in tools else f"{name}: ") + "; ".join(notes) if notes else ""


def _plain_fails(
    name: str, tool: Sequence[str], jobs: Sequence[Job], task: Task, index: int, output: str, seconds: float
) -> bool:
    """Whether a tool has the same kind of error against launches of the plain kernel as its `output` says."""
    for some in filter(None, (jobs[:FEW_JOBS], jobs[FEW_JOBS:])):
        with contextlib.closing(run_under({name: tool}, some, task, index, seconds)) as runs:
            ((_, code, said, _),) = runs
        kinds = [_ADDRESS.sub("", _first_error(text).partition(";")[0]) for text in (output, said)]
        if code == ERROR_EXIT_CODE and kinds[0] == kinds[1]:
            return True
    return False


def _nvidia_tools(tool: str) -> dict[str, list[str]]:
    options = [f"--error-exitcode={ERROR_EXIT_CODE}", "--print-limit=3", "--target-processes=all"]
    tools = {name: [tool, f"--tool={name}", *options] for name in SANITIZER_TOOLS}
    # Libraries ask the driver for functions that it may not have, which is not the kernel's fault.
    tools["memcheck"].append("--report-api-errors=no")
    return tools


def _oclgrind(tool: str, limits: DeviceLimits) -> list[str]:
    # What its compiler makes of a source otherwise has instructions that it does not know.
    options = ["--data-races", "--uninitialized", "--build-options", "-O0"]
    sizes = {"max-errors": MAX_REPORTS, "max-wgsize": limits.max_threads_per_block}
    sizes["local-mem-size"] = limits.shared_per_block or 32 << 10
    return [tool, *options, *(word for name, size in sizes.items() for word in (f"--{name}", str(size)))]


def chosen_steps(task: Task, steps: Sequence[Step], most: int) -> list[Step]:
    """About `most` of the steps on made-up workloads, of all kinds of contents and of all sizes, beginning with the
    smallest of each kind; and then those on the task's own workloads that are not too large, the smallest first."""
    by_size = sorted(steps, key=lambda step: task.bytes_of(step.workload))
    kinds, own = dict[str, list[Step]](), list[Step]()
    for step in by_size:
        if task.bytes_of(step.workload) <= MAX_WORKLOAD_BYTES:
            rarest = min(step.contents.kinds - {*PLAIN}, default="plain")
            (kinds.setdefault(rarest, []) if step.derived else own).append(step)
    each = max(1, most // max(1, len(kinds)))
    chosen = [of_kind[:: -(-len(of_kind) // each)] for of_kind in kinds.values()]
    return [step for turn in itertools.zip_longest(*chosen) for step in turn if step is not None] + own


_ADDRESS = re.compile(r"(?: at \S+| in block.*|0x[0-9a-f]+|\d+)")


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
    jobs = [(candidate, Step(workload, Contents(seed=seed)))]
    ((_, code, output, _),) = run_under({"ncu": command}, jobs, task, index, PROFILER_SECONDS)
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


def _arguments(task: Task, step: Step, place: Callable[[int, Any], Any]) -> Iterator[Any]:
    """A launch's arguments. place: makes one of an array's bytes, and its contents, None where it is an output."""
    (inputs,) = draw_variants(np, task, step.workload, step.contents, 1)
    scalars = passed_scalars(task, step.workload, dict(step.contents.scalars))
    for argument in task.arguments:
        if argument.role == "scalar":
            yield scalars[argument.name]
        else:
            size = DTYPES[task.dtype_of(argument, step.workload)].size
            yield place(math.prod(task.shape_of(argument, step.workload)) * size, inputs.get(argument.name))


def launch_on_cuda(task: Task, index: int, candidate: Candidate, step: Step) -> None:
    """One launch on the CUDA device `index`, with every array in an allocation of its own, of exactly its size."""
    import cupy

    from tunesmith.kernels.backends.cuda import callable_kernel

    cupy.cuda.Device(index).use()
    held = []

    def place(size: int, host: Any) -> np.uint64:
        # Directly from the driver: CuPy's pool would round the size up.
        held.append(memory := cupy.cuda.Memory(size))
        if host is not None:
            cupy.cuda.runtime.memcpy(memory.ptr, host.ctypes.data, host.nbytes, cupy.cuda.runtime.memcpyHostToDevice)
        return np.uint64(memory.ptr)

    arguments = tuple(_arguments(task, step, place))
    artifact = candidate.artifacts[code_key(task, candidate.template, step.workload)]
    module = cupy.cuda.function.Module()
    module.load(artifact.code)
    shape = geometry(candidate.template, candidate.config, step.workload)
    kernel = callable_kernel(module, artifact)
    if shape.shared_bytes:
        cupy.cuda.driver.funcSetAttribute(
            kernel.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shape.shared_bytes
        )
    stream = cupy.cuda.get_current_stream()
    kernel(shape.grid, shape.block, arguments, shared_mem=shape.shared_bytes, stream=stream)
    cupy.cuda.runtime.deviceSynchronize()


_REPORT = re.compile(r"\n(?=\S)")
_KIND = re.compile(r" (?:address )?0x[0-9a-f]+")
_PLACE = re.compile(r"(?:Global(\([\d,]+\)).*?)?At (line \d+)", re.DOTALL)
_HARMLESS = ("Index (", "Uninitialized value written to local memory", f"Oclgrind: {MAX_REPORTS} errors generated")
"""An index beyond a row may be within the array, and not everything in local memory is used: what comes of a wrong
index, or of using such a value, has a report of its own. The last says that the rest is left out."""
_WIDE = re.compile(r"[a-z](?:8|16)\b|##")
"""A pattern of sources with vectors of 8 elements or more: whoever takes the twelfth of two vectors' elements reads
unwritten memory, in the eyes of Oclgrind 21.10."""


def parse_reports(text: str) -> dict[str, str]:
    """Oclgrind's complaints about a launch: each kind of fault once, and a clause on the first of it. Raises
    `ValueError` where it gave up."""
    found = dict[str, str]()
    for report in filter(None, map(str.strip, _REPORT.split(text))):
        kind = _KIND.sub("", report.splitlines()[0])
        if kind.startswith("OCLGRIND FATAL ERROR"):
            raise ValueError(" ".join(report.split())[:200])
        # A loop around a compare-and-swap reads what it compares with as it likes.
        if not kind.startswith(_HARMLESS) and not ("cmpxchg" in report and "= load" in report):
            places = [f"work-item {item}, {line}" if item else line for item, line in _PLACE.findall(report)]
            found.setdefault(kind, ": ".join(filter(None, (kind, " and ".join(places)))))
    return found


def _interpreted(template: Template, config: Config, workload: Workload) -> float:
    """The share of a launch that Oclgrind interprets: groups differ little, but for the first and the last."""
    groups = math.prod(geometry(template, config, workload).grid)
    return 2 / groups if groups > MAX_GROUPS else 1.0


def _interpreter(task: Task, log: Path) -> Callable[[Candidate, Step], None]:
    """A launch under Oclgrind, in a process in which it is the OpenCL driver. It ends the process with a fault of the
    candidate that the plain kernel does not show too. log: the file that Oclgrind writes its reports into."""
    # It keeps each access until the next barrier.
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_INTERPRETER_BYTES, MAX_INTERPRETER_BYTES))
    os.environ["OCLGRIND_LOG"] = str(log)
    import pyopencl

    found = read_devices(pyopencl)
    if isinstance(found, Unavailable):
        raise SystemExit(found.reason)
    limits = found.devices[0].limits
    compiled, device = cache(open_compiler(limits).compile), open_device(limits)
    reports = log.open(encoding="utf-8", errors="replace")
    held = []

    def place(size: int, host: Any) -> Any:
        # In the place of a buffer that was given back Oclgrind takes what a kernel writes for unwritten.
        held.append(buffer := device.allocate(size))
        if host is not None:
            device.write(buffer, host.view(np.uint8))
        return buffer

    def faults(template: Template, config: Config, step: Step) -> dict[str, str]:
        source = specialise(template, config, dict(code_key(task, template, step.workload)))
        artifact, shape = compiled(source), geometry(template, config, step.workload)
        if not isinstance(artifact, Artifact):
            raise SystemExit(describe(artifact))
        os.environ["OCLGRIND_QUICK"] = str(int(_interpreted(template, config, step.workload) < 1))
        device.once(BoundLaunch(device.load(artifact), shape, tuple(_arguments(task, step, place))))
        try:
            said = parse_reports(reports.read())
        except ValueError as error:
            raise SystemExit(str(error)) from error
        may_be_wide = _WIDE.search(without_comments(source.source)) is not None
        return {kind: clause for kind, clause in said.items() if "ninitialized" not in kind or not may_be_wide}

    def launch(candidate: Candidate, step: Step) -> None:
        found = faults(candidate.template, candidate.config, step)
        plain = faults(task.sources("opencl").baseline.template, {}, step) if found else {}
        if new := [clause for kind, clause in found.items() if kind not in plain]:
            print(f"========= on {step.name}: {new[0]}")
            raise SystemExit(ERROR_EXIT_CODE)

    return launch


def main(left: str, path: str) -> None:
    """The process under a tool. path: file of the pickled jobs; left: file for the places of the jobs that it has no
    time for."""
    jobs, task, index = pickle.loads(Path(path).read_bytes())
    is_opencl = any(candidate.template.backend == "opencl" for candidate, _ in jobs)
    launch = _interpreter(task, Path(left).with_suffix(".log")) if is_opencl else partial(launch_on_cuda, task, index)
    # An interpreter's launches are work of processors, which others may share.
    clock, most = (time.process_time, INTERPRETING_SECONDS) if is_opencl else (time.monotonic, LAUNCHING_SECONDS)
    if jobs and not is_opencl:
        import cupy

        # Under a tool the driver takes seconds to start, which do not count as a launch.
        cupy.cuda.Device(index).use()
        cupy.cuda.runtime.free(0)
    begun = before = clock()
    shortest, per_work, too_long = 0.0, 0.0, list[int]()
    for place, (candidate, step) in enumerate(jobs):
        # The shortest launch so far is the fixed cost of one; the rest is in proportion to the work of the last.
        share = _interpreted(candidate.template, candidate.config, step.workload) if is_opencl else 1.0
        work = max(1.0, share * (task.bytes_of(step.workload) + task.flops_of(step.workload)))
        if before - begun + shortest + per_work * work > most:
            too_long.append(place)
            continue
        launch(candidate, step)
        seconds, before = clock() - before, clock()
        shortest = min(shortest or seconds, seconds)
        per_work = (seconds - shortest) / work
    Path(left).write_text(" ".join(map(str, too_long)), "ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
