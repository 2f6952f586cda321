"""Which launches sanitizers see, and what Oclgrind says of kernels; what compute-sanitizer says needs a GPU."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.check.plan import Step, plan
from tunesmith.kernels.check.sanitizer import (
    ERROR_EXIT_CODE,
    MAX_WORKLOAD_BYTES,
    SANITIZER_TOOLS,
    chosen_steps,
    find_tool,
    parse_reports,
    sanitize,
)
from tunesmith.kernels.launch.contents import PLAIN, Contents
from tunesmith.kernels.outcome import WrongResult
from tunesmith.kernels.spec.taskfile import load_task

SOURCES = Path(__file__).with_name("sources")


def test_all_own_workloads_and_made_up_ones_of_all_kinds_and_types() -> None:
    task = load_task("softmax")
    every = plan(task, resolve_target("h200"), seed=0)
    own = [one for one in every if not one.derived and task.bytes_of(one.workload) <= MAX_WORKLOAD_BYTES]
    chosen = chosen_steps(task, every, 64)
    assert chosen[-len(own) :] == sorted(own, key=lambda one: task.bytes_of(one.workload))
    assert len(own) + 32 < len(chosen) <= len(own) + 64
    made_up = [one for one in chosen if one.derived]
    assert {types_key(one.workload) for one in made_up} == {types_key(one.workload) for one in every}
    assert {one.contents.kind for one in made_up} >= {one.contents.kind for one in every} - {*PLAIN}
    sizes = [task.bytes_of(one.workload) for one in made_up]
    assert min(sizes) <= 1000 and max(sizes) > 1e6
    assert len(chosen_steps(task, every[:10], 64)) == 10


LIMITS = resolve_target("h200")
TASK = load_task("softmax")
STEPS = [Step(workload, Contents("infinities")) for workload in TASK.workloads]
PLAIN_KERNEL = Candidate(TASK.sources("cuda").baseline.template, {}, {})
SUSPECT = Candidate(TASK.sources("cuda").baseline.template, {"suspect": 1}, {})
SUSPECTS = [(SUSPECT, PLAIN_KERNEL, STEPS[at : at + 1]) for at in (0, 1)]


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A shell script in the place of compute-sanitizer: `$done` is where it says which launches were not made, `$job`
    what it is given."""
    tool = folder / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\nfor last; do done="$job"; job="$last"; done\n{script}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_it_is_run_on_the_device_for_all_or_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each tool, on the smallest workloads first."""
    pretend(tmp_path, monkeypatch, f'cp "$job" {tmp_path}/ran.${{1#--tool=}}; : > "$done"')
    assert sanitize([(SUSPECT, PLAIN_KERNEL, STEPS[:3])], TASK, LIMITS, 3) == [""]
    ran = {path.suffix[1:]: path.read_bytes() for path in tmp_path.glob("ran.*")}
    jobs, task, index = pickle.loads(ran["memcheck"])
    assert index == 3 and set(ran) == set(SANITIZER_TOOLS)
    sizes = [task.bytes_of(step.workload) for _, step in jobs]
    assert len(sizes) == 3 and sizes == sorted(sizes)
    # A job of two launches is that of both, and the smaller one is guilty.
    name = STEPS[0].workload.name
    guilty = f'grep -q "{name}" "$job" && grep -q suspect "$job"'
    pretend(tmp_path, monkeypatch, f'{guilty} && echo "========= Oh" && exit {ERROR_EXIT_CODE}; : > "$done"')
    monkeypatch.setattr("tunesmith.kernels.check.sanitizer.pickle.dumps", lambda job: repr(job[0]).encode())
    assert [one != "" for one in sanitize(SUSPECTS, TASK, LIMITS, 0)] == [True, False]


FOUND = f'grep -q suspect "$job" && echo \'========= Oh\' && exit {ERROR_EXIT_CODE}; : > "$done"'
DIFFERENT = f"grep -q suspect \"$job\" && echo '========= Oh' || echo '========= Ah'; exit {ERROR_EXIT_CODE}"
ALWAYS = f"echo '========= Oh at 0x12' && exit {ERROR_EXIT_CODE}; : > \"$done\""
LATE = 'printf "1 2" > "$done" || : > "$done"'
BROKEN = 'echo "no such tool" && exit 1; : > "$done"'


@pytest.mark.parametrize(
    ("tool", "script", "expected"),
    [
        *((tool, FOUND, f"{tool}: Oh") for tool in SANITIZER_TOOLS),
        ("synccheck", DIFFERENT, "synccheck: Oh"),
        (
            "initcheck",
            ALWAYS,
            "compute-sanitizer: initcheck: Oh at 0x12, which decides nothing, as it says the same of the plain kernel",
        ),
        ("racecheck", LATE, "compute-sanitizer: racecheck had no time for "),
        ("initcheck", BROKEN, "compute-sanitizer: initcheck could not be run: no such tool"),
    ],
)
def test_each_tool_s_result_is_told(tool: str, script: str, expected: str, tmp_path: Path, monkeypatch: Any) -> None:
    pretend(tmp_path, monkeypatch, f"[ $1 = --tool={tool} ] && {script}")
    (found,) = sanitize([(SUSPECT, PLAIN_KERNEL, STEPS[:3])], TASK, LIMITS, 0)
    assert isinstance(found, WrongResult) == (script in (FOUND, DIFFERENT))
    assert (found.detail if isinstance(found, WrongResult) else found).startswith(expected)
    assert script != LATE or str(found).count(",") == 1


@pytest.mark.parametrize(
    ("tool", "waits", "decides"),
    [
        ("racecheck", ("mbarriers", "bulk copies"), False),
        ("synccheck", ("mbarriers", "named barriers"), False),
        ("synccheck", ("mbarriers",), True),
        ("memcheck", ("mbarriers", "named barriers"), True),
    ],
)
def test_errors_at_barriers_not_followed_decide_nothing(
    tool: str, waits: tuple[str, ...], decides: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    pretend(tmp_path, monkeypatch, f'[ $1 = --tool={tool} ] && {FOUND}; : > "$done"')
    monkeypatch.setattr("tunesmith.kernels.check.sanitizer.pickle.dumps", lambda job: repr(job[0]).encode())
    artifacts = {(): Artifact("cuda", "sm_90", "softmax", b"", "", unfollowed=waits)}
    hides = Candidate(TASK.sources("cuda").baseline.template, {"suspect": 1}, artifacts)
    (found,) = sanitize([(hides, PLAIN_KERNEL, STEPS[:3])], TASK, LIMITS, 0)
    assert isinstance(found, WrongResult) == decides
    assert decides or f"as it does not follow {'named' if tool == 'synccheck' else 'bulk'}" in str(found)


def test_once_a_tool_has_found_an_error_no_other_runs_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = tmp_path / "began"
    all_began = f"until [ $(wc -l < {began}) = {len(SANITIZER_TOOLS)} ]; do sleep 0.01; done"
    suspect = f"grep -q suspect $job || exit 0; echo $$ >> {began}"
    script = f"{suspect}; [ $1 = --tool=memcheck ] && {all_began} && exit {ERROR_EXIT_CODE}; exec sleep 600"
    pretend(tmp_path, monkeypatch, script)
    (found,) = sanitize(SUSPECTS[:1], TASK, LIMITS, 0)
    assert isinstance(found, WrongResult) and found.detail.startswith("memcheck")
    for number in began.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_the_process_that_a_tool_watches_makes_its_launches_and_ends(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(pickle.dumps(([], TASK, 0)))
    program = [sys.executable, "-m", "tunesmith.kernels.check.sanitizer", str(tmp_path / "done"), str(tmp_path / "job")]
    subprocess.run(program, check=True)
    assert (tmp_path / "done").read_text() == ""


RACE = (SOURCES / "race.txt").read_text()
"""A report of Oclgrind; {first}: the instruction of the first entity."""
STORE = "store float %add28, float addrspace(3)* %arrayidx27, align 4, !dbg !111"
SWAP = "%c = call spir_func i32 @_Z14atomic_cmpxchgPU3AS3Vjjj(i32 addrspace(3)* noundef @k.total, i32 noundef %21)"
INDEX = "\nIndex (8) exceeds static array size (4)\n\tKernel: k\n\tAt line 1 (column 11) of candidate:\n"
FATAL = "\nOCLGRIND FATAL ERROR (./src/plugins/Uninitialized.cpp:1805)\nUnsupported instruction: freeze\n"


def test_reports_are_clauses_and_a_missing_oclgrind_is_said(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "Read-write data race at local memory"
    clause = f"{kind}: work-item (1,0,0), line 69 and work-item (0,0,0), line 68"
    assert parse_reports(INDEX + 2 * RACE.format(first=STORE)) == {kind: clause}
    assert parse_reports(RACE.format(first=SWAP)) == parse_reports("") == {}
    with pytest.raises(ValueError, match="FATAL ERROR"):
        parse_reports(FATAL)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    plain = Candidate(TASK.sources("opencl").baseline.template, {}, {})
    (found,) = sanitize([(plain, plain, STEPS[:1])], TASK, device.limits, device.index)
    assert str(found).startswith("oclgrind was not run: it is not installed here")


ROW = (SOURCES / "softmax_row.cl").read_text()
BARRIER = "    barrier(CLK_LOCAL_MEM_FENCE);\n"


@pytest.mark.skipif(find_tool("oclgrind") is None, reason="oclgrind is not installed")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", ""),
        (f"{BARRIER}    for", "    for", "Read-write data race at local memory: work-item"),
        ("me == 0) for", "me == 0 && d < 0) for", ""),
        ("    sums[me] = sum;", "    if (me % 2) sums[me] = sum;", "Uninitialized value written to global"),
        # Here it errs, and where a kernel reads what it wrote into a buffer in the place of one that was given back.
        ("] / sums[0];", "] / sums[0];\n    for (int col = me; col < d; col += 64) out[row * d + col] *= 1.0f;", ""),
        ("    sums[me] = sum;", "    float16 all = sum; all.s3 = all.hi.s3; sums[me] = all.s3;", ""),
        ("out[row * d + col]", "out[row * d + col + 1]", "Invalid write of size 4 at global memory"),
        (BARRIER, "    if (me < 32) barrier(CLK_LOCAL_MEM_FENCE);\n", "divergence detected (barrier): work-item"),
    ],
)
def test_oclgrind_names_races_and_what_nobody_wrote(device: Any, old: str, new: str, expected: str) -> None:
    """What is only a wrong result is for other checks."""
    wrong = TASK.sources("opencl").baseline.template.model_copy(update={"source": ROW.replace(old, new, 1)})
    types = {**TASK.workloads[0].types, "T": "float32"}
    small = [TASK.workloads[0].model_copy(update={"sizes": {"n": 2, "d": d}, "types": types}) for d in (3, 70)]
    steps = [Step(one, Contents("normal"), derived=True) for one in small]
    (found,) = sanitize([(Candidate(wrong, {}, {}), PLAIN_KERNEL, steps)], TASK, device.limits, device.index)
    assert isinstance(found, WrongResult) == bool(expected), found
    assert not expected or expected in str(found)
