"""The folder of candidates: every bad one is rejected for the right reason, every good one accepted.

What PoCL or a compiler can judge is judged everywhere; the rest needs a GPU.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith.hw.probe import DeviceInfo, probe_cuda
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.machine_code import constant_variables, global_variables, used_variables
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.check.sanitizer import find_tool
from tunesmith.kernels.spec.taskfile import load_task

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "candidates"))
from judging import FOLDER, Fixture, compiler_verdict, edited, fixtures, verdict_of

from tunesmith.actors.workers import Deadlines

LIBRARY = FOLDER.parent.parent / "kernels" / "library"
DEADLINES = Deadlines(compile=8.0, run=8.0)
FILES = fixtures()
ALL = FILES + edited()
QUICK = {"residual_not_written", "writes_past_end", "skips_when_written", "include_by_macro"}
QUICK |= {"silu_probes_sixteen", "softmax_reads_before"}
"""One candidate of each kind of judging, for every test run: the verdict on these comes early. Right candidates go
through all steps, and are judged with the slow tests."""


def parameters(backend: str, judges: set[str]) -> list[object]:
    chosen = [one for one in ALL if one.backend == backend and one.judge in judges]
    return [
        pytest.param(one, id=one.file, marks=[] if Path(one.file).stem in QUICK else pytest.mark.slow) for one in chosen
    ]


def test_the_index_names_every_file_and_known_reasons() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.c[ul]") if path.parent.name in ("bad", "good")}
    assert files == {one.file for one in FILES if (FOLDER / one.file).exists()}
    assert all(reason in REASONS for one in ALL for reason in one.reasons)


@pytest.mark.parametrize("backend", ["opencl", "cuda"])
def test_candidates_are_of_all_classes_and_tasks(backend: str) -> None:
    of_backend = [one for one in edited() if one.backend == backend]
    assert len([one for one in of_backend if one.reasons]) >= 120
    assert len([one for one in of_backend if not one.reasons]) >= 25
    assert len({one.file for one in of_backend}) == len(of_backend)
    assert len({one.kind for one in of_backend if one.reasons}) == 12
    tasks = [path.parent.name for path in LIBRARY.glob("*/task.toml")]
    assert {one.task for one in of_backend} >= {name for name in tasks if backend in load_task(name).backends}


@pytest.mark.parametrize("fixture", parameters("opencl", {"pocl", "sanitizer"}))
def test_verdicts_with_opencl(fixture: Fixture, device: DeviceInfo) -> None:
    if fixture.judge == "sanitizer" and find_tool("oclgrind") is None:
        pytest.skip("oclgrind is not installed")
    # Nothing of these is about deadlines.
    deadlines = Deadlines(compile=60.0, run=60.0) if fixture.kind or "edited" in fixture.file else DEADLINES
    # Where the verdict comes early, a second process takes longer to start than it saves.
    processes = 1 if Path(fixture.file).stem in QUICK else None
    verdict = verdict_of(fixture, device.limits, device.index, deadlines, processes=processes)
    assert fixture.agrees(verdict), f"{verdict.reason}: {verdict.detail}"


@pytest.mark.parametrize("fixture", parameters("cuda", {"compiler", "gpu", "sanitizer"}))
def test_verdicts_of_the_cuda_compiler(fixture: Fixture) -> None:
    pytest.importorskip("cuda.bindings")
    verdict = compiler_verdict(fixture, resolve_target("h200"), DEADLINES)
    if fixture.judge == "compiler":
        assert verdict is not None and fixture.agrees(verdict), verdict
    else:
        # A candidate that a device must judge may be refused before, if it is wrong.
        assert verdict is None or (fixture.reasons and fixture.agrees(verdict)), verdict


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fixture", [pytest.param(one, id=one.file) for one in ALL if one.backend == "cuda"])
def test_verdicts_on_a_gpu(fixture: Fixture) -> None:
    if fixture.judge == "sanitizer" and find_tool("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    cuda = probe_cuda().devices[0]
    verdict = verdict_of(fixture, cuda.limits, cuda.index, Deadlines(compile=20.0, run=30.0))
    assert fixture.agrees(verdict), f"{verdict.reason}: {verdict.detail}"


def test_constants_that_the_compiler_folded_are_no_state() -> None:
    ptx = ".global .align 4 .u32 FOLDED = 4;\n.global .align 4 .u32 state;\nld.global.u32 %r1, [state];"
    assert used_variables(("FOLDED", "state", "$__renamed$1"), ptx, "") == ("state", "$__renamed$1")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("void wave(double* x) { x[0] = sin(x[1]); }", False),
        ("void wave(double* x) { static double __cudart_i2opi_d; x[0] = __cudart_i2opi_d += sin(x[1]); }", True),
        (
            "void wave(double* x) { static double NAME(__cuda, rt_i2opi_d); x[0] = NAME(__cuda, rt_i2opi_d) += 1; }",
            True,
        ),
    ],
)
def test_the_tables_of_the_compilers_sine_are_no_state(nvrtc: Any, text: str, state: bool) -> None:
    """Unless the source might have variables of their names."""
    macro = "#define NAME(a, b) a##b\n" if "NAME" in text else ""
    artifact = nvrtc.compile(Specialised("cuda", "wave", f'{macro}extern "C" __global__ {text}'))
    assert isinstance(artifact, Artifact) and bool(artifact.globals) == state


def test_variables_in_constant_memory_are_found(nvrtc: Any) -> None:
    text = "__constant__ int table[4]; static __constant__ float other[2];\n"
    kernel = 'extern "C" __global__ void k(float* x, int i) { x[i] = table[i] + other[i]; }'
    artifact = nvrtc.compile(Specialised("cuda", "k", text + kernel))
    assert isinstance(artifact, Artifact) and set(constant_variables(artifact.code)) == {"table", "other"}


def test_what_is_no_cubin_is_said_to_be_none() -> None:
    for code in (b"", b"\x7fELF" + bytes(60), b"text" * 40):
        with pytest.raises(ValueError):
            global_variables(code)


def test_every_reason_is_documented() -> None:
    text = (FOLDER.parent.parent / "docs" / "trust.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(REASONS)
