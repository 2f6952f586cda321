"""Instruction counts of PTX, and counters as ncu writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.guard import HEADERS
from tunesmith.kernels.build.machine_code import Profile
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.check.sanitizer import count_events, parse_counters
from tunesmith.kernels.spec.taskfile import load_task

SORTS = """
extern "C" __global__ void k(const uint4* x, float2* y, unsigned* count) {
    __shared__ float tile[32];
    uint4 one = x[threadIdx.x];
    tile[threadIdx.x] = __expf(one.x);
    __syncthreads();
    if (one.y) atomicAdd(count, __shfl_xor_sync(~0u, one.z, 16));
    y[threadIdx.x] = make_float2(fmaf(tile[31 - threadIdx.x], 2.0f, one.w), one.x);
}
"""


def test_instructions_are_counted_by_what_they_do(nvrtc: Any) -> None:
    once = {"ld.global 16 B", "st.shared 4 B", "ld.shared 4 B", "st.global 8 B", "atom.global 4 B", "bar", "shfl"}
    once |= {"branch", "fma, float", "special function or division, float", "compare or select"}
    found = nvrtc.profile(Specialised("cuda", "k", SORTS)).sorts
    assert {name for name, count in found.items() if count == 1} >= once and found["cvt"] > 1


def test_a_compiler_s_own_ptx_shows_the_width_of_accesses(nvrtc: Any) -> None:
    task = load_task("silu_and_mul")
    (template,) = task.sources("cuda").templates
    for vec, width in ((2, 4), (4, 8), (8, 16)):
        config = template.default_config | {"VEC": vec}
        mix = nvrtc.profile(specialise(template, config, task.workloads[0].types)).sorts
        assert mix[f"ld.global {width} B"] == 2 and mix[f"st.global {width} B"] == 1
        assert mix["cvt"] >= 2 * vec  # in the assembly of a header
    assert nvrtc.profile(Specialised("cuda", "k", "no C++")) == Profile()


LOOPS = """
extern "C" __global__ void k(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        for (int j = 0; j < i; ++j)
            sum += sinf(x[i]) / x[j];
        sum += x[i];
    }
    y[threadIdx.x] = sum;
}
"""


def test_lines_are_ranked_by_their_instructions_and_the_loops_around_them(nvrtc: Any) -> None:
    from tunesmith.graph.prompts.facts import hot_lines

    profile = nvrtc.profile(Specialised("cuda", "k", f'#line 1 "loops"\n{LOOPS}'))
    first = profile.lines[0]
    assert first.line == 6 and first.depth == 2 and first.instructions > 10
    assert [one.depth for one in profile.lines if one.line == 7] == [1]
    assert all(one.depth == 0 for one in profile.lines if one.line == 9)
    assert hot_lines(LOOPS, profile)[0] == f"6: {first.instructions} in 2 loops: sum += sinf(x[i]) / x[j];"


CSV = """==PROF== Connected to process 77 (/usr/bin/python3.11)
==PROF== Profiling "rope" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 77
"ID","Kernel Name","dram__bytes_read.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct"
"","","byte","%","%"
"0","rope","33,554,432","87.25","n/a"
"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "no counters: ==ERROR== ERR_NVGPUCTRPERM"),
        ('"ID","a"\n"",""\n"0","1"', "knows none of them"),
    ],
)
def test_where_there_are_no_counters_there_is_a_reason(text: str, note: str) -> None:
    assert note in parse_counters(text)


def events_of_rope() -> Any:
    task = load_task(str(Path(__file__).resolve().parent.parent / "raw" / "rope"))
    candidate = Candidate(task.sources("cuda").baseline.template, {}, {})
    return count_events(candidate, task, 0, task.workloads[0], 0)


def test_a_tool_that_works_gives_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is what ncu takes; a stand-in answers with a table."""
    with monkeypatch.context() as absent:
        absent.setattr("shutil.which", lambda *_, **__: None)
        assert "not installed" in events_of_rope()
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat <<'END'\n{CSV}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert events_of_rope() == {"bytes read from DRAM": 33554432.0, "DRAM throughput, % of peak": 87.25}
    given = (tmp_path / "arguments").read_text()
    assert "--csv --page raw" in given and "--clock-control none" in given and "--kernel-name rope" in given
    assert "-m tunesmith.kernels.check.sanitizer" in given


@pytest.mark.slow
def test_every_header_that_a_source_may_include_compiles(nvrtc: Any) -> None:
    includes = "".join(f"#include <{name}>\n" for name in sorted(HEADERS))
    source = Specialised("cuda", "k", f'{includes}extern "C" __global__ void k() {{}}')
    assert isinstance(nvrtc.compile(source), Artifact)
