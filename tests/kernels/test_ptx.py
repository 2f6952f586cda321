"""PTX: its basic blocks, and machine code that tells which of them ran; instruction counts; bulk copies that a block
may end before; what hides from racecheck. And ncu's counters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.actors.judging.judge import judge
from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.guard import HEADERS
from tunesmith.kernels.build.machine_code import MARKS, MarkedArtifact, Profile, mark_blocks, outlasting_store
from tunesmith.kernels.build.source import Specialised, rule_blocks, specialise
from tunesmith.kernels.check.coverage import Coverage
from tunesmith.kernels.check.sanitizer import count_events, parse_counters
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.spec.task import Geometry
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import Template

SOURCES = Path(__file__).with_name("sources")


def text_of(name: str) -> str:
    """A kernel beside these tests, whose messages name its lines as the file numbers them."""
    return f'#line 1 "{name}"\n' + (SOURCES / f"{name}.cu").read_text()


def test_blocks_are_marked_and_those_that_no_launch_entered_told() -> None:
    ptx = (SOURCES / "blocks.ptx").read_text()
    text, blocks = mark_blocks(ptx, "some", "k")
    assert blocks == ((3, 4), (5,), (7,), (7,), (8,), (8,))
    assert text.count(f"st.global.u32 [{MARKS}+") == 6 and f".global .align 4 .u32 {MARKS}[6];" in text
    # Blocks of the grid sleep where the kernel begins alone, warps at each other mark, and none before sm_70.
    assert text.count("%gridid") == 1 and text.count("mov.u32 tunesmith_r, %clock;") == 5
    older, _ = mark_blocks(ptx.replace("sm_90", "sm_60"), "some", "k")
    assert "nanosleep" not in older and older.count(f"st.global.u32 [{MARKS}+") == 6
    # Nothing in front of a declaration, and nothing where no jump leads.
    body = text[text.index("{", text.index("maxntid")) :]
    assert body.index(".reg .b32") < body.index("st.global")
    assert f"ret;st.global.u32 [{MARKS}" not in text.replace("\n", "").replace("\t", "")
    without, cut = ptx.replace(".address_size 64", ""), ptx[: ptx.index("ret;")]
    for text in ("", ".version 8.0\n.address_size 64\n", without, cut):
        with pytest.raises(ValueError):
            mark_blocks(text, "some", "k")
    template = load_task("softmax").sources("cuda").baseline.template
    blocks = ((3, 4), (4, 5), (7,), (5,))
    artifact: Any = None
    key = (("T", "float16"),)
    coverage = Coverage(Candidate(template, {}, {}), {key: MarkedArtifact(artifact, blocks)})
    assert coverage.wanted(key) and not coverage.wanted((("T", "float32"),))
    coverage.add(key, frozenset({0}))
    coverage.add(key, frozenset({0, 1}))
    (one,) = coverage.unexecuted()
    assert (one.count, one.blocks, one.lines) == (2, 4, (7,)) and str(one) == "T=float16: 2 of 4 blocks, line 7"
    coverage.add(key, frozenset({2, 3}))
    assert coverage.unexecuted() == () and not coverage.wanted(key)
    of_kit = rule_blocks("cuda")["vectors"][1]
    template = template.model_copy(update={"source": f"int before;\n{of_kit}\nint after;"})
    end = of_kit.count("\n") + 3
    coverage = Coverage(
        Candidate(template, {}, {}), {key: MarkedArtifact(artifact, ((1,), (2, 3), (end - 1,), (end,)))}
    )
    coverage.add(key, frozenset({0}))
    (one,) = coverage.unexecuted()
    assert one.count == 3 and one.lines == (end,), "lines of the kit are for sizes that a task may exclude"
    launch: Any = {"grid": ["1"], "block": ["1"]}
    fields = {"name": "k", "backend": "triton", "entry": "k", "source": "\n" * 9, "launch": launch}
    odd, even = ((("T", "float16"), ("argument n", kind)) for kind in ("i32", "i32:16"))
    marked = {key: MarkedArtifact(artifact, ((3, 4), (7,))) for key in (odd, even)}
    coverage = Coverage(Candidate(Template.model_validate(fields), {}, {}), marked)
    coverage.add(odd, frozenset({0}))
    coverage.add(even, frozenset({0}))
    assert coverage.unreached() == [{"T": "float16"}]
    coverage.add(even, frozenset({1}))
    (one,) = coverage.unexecuted()
    assert not coverage.unreached() and (one.types, one.count, one.blocks, one.lines) == ("T=float16", 1, 4, ())


@pytest.fixture(scope="module")
def mark(nvrtc: Any) -> Callable[[Specialised], MarkedArtifact]:
    def marked(source: Specialised) -> MarkedArtifact:
        found = nvrtc.mark(source)
        if isinstance(found, str) and "nvJitLink" in found:
            pytest.skip(found)
        assert isinstance(found, MarkedArtifact), found
        return found

    return marked


@pytest.mark.parametrize(
    ("entry", "reached", "not_reached"), [("first", {2, 3, 8}, {4, 5, 10}), ("second", {4, 5, 10}, {2, 8})]
)
def test_blocks_that_the_entry_cannot_reach_do_not_count(entry: str, reached: Any, not_reached: Any, mark: Any) -> None:
    """By the lines of the functions."""
    lines = {line for block in mark(Specialised("cuda", entry, text_of("several"))).blocks for line in block}
    assert reached <= lines and not lines & not_reached, lines


GUARDED = """extern "C" __global__ void guarded(float* x, int n) {
    if (n > 1000000)
        x[1] = sqrtf(x[2]) * x[3];
    EXTRA
    x[threadIdx.x] += 1.0f;
}
"""


@pytest.mark.parametrize("extra", ["", "if (n == 7) x[5] = expf(x[6]);"])
def test_lines_that_the_plain_kernel_does_not_enter_either_are_told_apart(extra: str, mark: Any) -> None:
    def coverage(source: str, plain: Coverage | None = None) -> Coverage:
        launch: dict[str, Any] = {"grid": ["1"], "block": ["32"]}
        fields = {"name": "guarded", "backend": "cuda", "entry": "guarded", "source": source, "launch": launch}
        template = Template.model_validate(fields)
        marked = mark(specialise(template, {}, {}))
        made = Coverage(Candidate(template, {}, {(): marked.artifact}), {(): marked}, plain)
        lines = source.splitlines()
        ran = [
            at
            for at, block in enumerate(marked.blocks)
            if not any("sqrtf" in lines[one - 1] or "expf" in lines[one - 1] for one in block)
        ]
        made.add((), frozenset(ran))
        return made

    found = coverage(GUARDED.replace("EXTRA", extra), coverage(GUARDED.replace("    EXTRA\n", "")))
    (one,) = found.unexecuted()
    assert one.shared == (3,) and one.lines == one.beside == ((4,) if extra else ())
    assert bool(found.unreached()) == bool(extra) and "line 3, as in the plain kernel" in str(one)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "never"), [(5, {5}), (777, set())])
def test_blocks_that_ran_leave_marks(n: int, never: set[int]) -> None:
    device = probe_cuda().devices[0]
    opened = open_device(device.limits, device.index)
    marked = open_compiler(device.limits, device.index).mark(Specialised("cuda", "branches", text_of("branches")))
    assert isinstance(marked, MarkedArtifact), marked
    kernel, marks = opened.load_marked(marked.artifact)
    buffer = opened.allocate(4 * 2048)
    opened.write(buffer, np.ones(2048, np.float32).view(np.uint8))
    opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (32, 1, 1)), (buffer, np.int32(n))))
    opened.synchronize()
    ran = opened.read(marks).view(np.uint32).astype(bool)
    assert ran.size == len(marked.blocks)
    seen = {line for block, did in zip(marked.blocks, ran, strict=True) if did for line in block}
    unseen = {line for block, did in zip(marked.blocks, ran, strict=True) if not did for line in block}
    assert (unseen - seen) & {5} == never


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("config", "alone", "step"),
    [
        ({}, False, "(drawn)"),
        # Threads hold rows of up to 16,384 elements; longer ones take loops of their own.
        ({"BLOCK_X": 256, "BLOCK_Y": 2, "VEC": 8, "ITEMS": 8}, True, "(long)"),
    ],
)
def test_made_up_workloads_reach_the_lines_that_those_of_the_task_do_not(config: Any, alone: bool, step: str) -> None:
    """alone: the task has no other workload; else the candidate is meant for its first one."""
    device = probe_cuda().devices[0]
    task = load_task("fused_add_rmsnorm")
    template, meant_for = task.sources("cuda").templates[0], None if alone else task.workloads[0].name
    if alone:
        task = task.model_copy(update={"workloads": (task.workload("8192x8192"),)})
    question = (template, {**template.default_config, **config}, meant_for)
    (found,) = judge(task, device.limits, device.index, [question])
    assert found.accepted and not any(one.lines for one in found.unexecuted), found
    assert any(step in one.step for one in found.steps)


@pytest.mark.parametrize(
    "name", ["softmax", *(pytest.param(one, marks=pytest.mark.slow) for one in library_tasks() if one != "softmax")]
)
def test_marked_kernels_of_the_library_assemble(name: str, mark: Callable[[Specialised], MarkedArtifact]) -> None:
    task, sources = load_task(name), load_task(name).sources("cuda")
    for template in (sources.baseline.template, *sources.templates):
        found = mark(specialise(template, template.default_config, task.workloads[0].types))
        assert found.artifact.code.startswith(b"\x7fELF") and len(found.blocks) > 1
        named = [line for block in found.blocks for line in block]
        assert named and all(1 <= line <= template.source.count("\n") + 1 for line in named)


def test_instructions_are_counted_by_kind_width_and_line(nvrtc: Any) -> None:
    once = {"ld.global 16 B", "st.shared 4 B", "ld.shared 4 B", "st.global 8 B", "atom.global 4 B", "bar", "shfl"}
    once |= {"branch", "fma, float", "special function or division, float", "compare or select"}
    found = nvrtc.profile(Specialised("cuda", "k", text_of("sorts"))).sorts
    assert {name for name, count in found.items() if count == 1} >= once and found["cvt"] > 1
    task = load_task("silu_and_mul")
    (template,) = task.sources("cuda").templates
    for vec, width in ((2, 4), (4, 8), (8, 16)):
        config = template.default_config | {"VEC": vec}
        mix = nvrtc.profile(specialise(template, config, task.workloads[0].types)).sorts
        assert mix[f"ld.global {width} B"] == 2 and mix[f"st.global {width} B"] == 1
        assert mix["cvt"] >= 2 * vec  # in the assembly of a header
    assert nvrtc.profile(Specialised("cuda", "k", "no C++")) == Profile()
    from tunesmith.graph.prompts.facts import hot_lines

    profile = nvrtc.profile(Specialised("cuda", "k", text_of("loops")))
    first, instructions, deepest = profile.lines[0]
    assert (first, deepest) == (5, 2) and instructions > 10
    assert [depth for line, _, depth in profile.lines if line == 6] == [1]
    assert all(depth == 0 for line, _, depth in profile.lines if line == 8)
    hottest, *_ = hot_lines((SOURCES / "loops.cu").read_text(), profile)
    assert hottest == f"5: {instructions} in 2 loops: sum += sinf(x[i]) / x[j];"


CSV = (SOURCES / "counters.csv").read_text()


def events_of_rope() -> Any:
    task = load_task(str(Path(__file__).resolve().parent.parent / "raw" / "rope"))
    candidate = Candidate(task.sources("cuda").baseline.template, {}, {})
    return count_events(candidate, task, 0, task.workloads[0], 0)


def test_a_tool_that_works_gives_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is what ncu takes; a stand-in answers with a table."""
    with monkeypatch.context() as absent:
        absent.setattr("shutil.which", lambda *_, **__: None)
        assert "not installed" in events_of_rope()
    denied = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    assert "no counters: ==ERROR== ERR_NVGPUCTRPERM" in parse_counters(denied)
    assert "knows none of them" in parse_counters('"ID","a"\n"",""\n"0","1"')
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


def source(body: str) -> Specialised:
    return Specialised("cuda", "k", text_of("copies").replace("BODY", body))


@pytest.mark.parametrize(
    ("body", "outlasts"),
    [
        ("if (first) { copy(out, kept); commit(); wait(); }", False),
        ("if (first) { copy(out, kept); commit(); } __syncthreads(); if (threadIdx.x < 1 + n % 2) wait();", False),
        ("if (first) { copy(out, kept); finish(out); }", False),
        ("if (first) { copy_all(out, kept, n); wait(); }", False),
        ("for (int i = 0; i < n; ++i) { wait(); kept[i] = i; copy(out + 4 * i, kept); commit(); } wait();", False),
        ("for (int i = 0;; ++i) { wait(); if (i == n) break; kept[i] = i; copy(out + 4 * i, kept); commit(); }", False),
        ("if (n < 8) { out[1] = 2; return; } copy(out, kept); commit(); wait(); out[0] = n;", False),
        ("out[threadIdx.x] = kept[n];", False),
        # cp.async into shared memory ends with its block.
        (
            'asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: '
            '"r"((unsigned)__cvta_generic_to_shared(kept)), "l"(out));',
            False,
        ),
        ("if (first) { copy(out, kept); commit(); }", True),
        ("if (first) copy(out, kept);", True),
        ("if (first) { copy(out, kept); wait(); }", True),
        ("if (first) { commit(); copy(out, kept); wait(); }", True),
        ("if (first) { wait(); copy(out, kept); commit(); }", True),
        ("if (first) copy_all(out, kept, n);", True),
        ("for (int i = 0; i < n; ++i) { wait_but_one(); copy(out + 4 * i, kept); commit(); }", True),
        ("if (n == 7) { copy(out, kept); commit(); return; } copy(out, kept); commit(); wait();", True),
        (
            "switch (n) { case 0: copy(out, kept); commit(); wait(); break; case 1: copy(out + 4, kept); commit(); "
            "break; case 2: out[0] = 1; break; case 3: out[1] = 7; break; case 4: out[2] = 1; break; }",
            True,
        ),
    ],
)
def test_a_block_does_not_end_before_its_copies(nvrtc: Any, body: str, outlasts: bool) -> None:
    made = nvrtc.compile(source(body))
    assert isinstance(made, Rejected if outlasts else Artifact), made
    assert not isinstance(made, Rejected) or made.reason == "outlasting_store"


LOOP = ".visible .entry k(){ BEGIN: cp.async.bulk.wait_group.read 0; @%p1 bra END; bra COPY; END: ret; COPY: "
COPY = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r3];"


def test_ways_that_compilers_may_lay_out() -> None:
    assert not outlasting_store(f"{LOOP} {COPY} cp.async.bulk.commit_group; bra BEGIN; }}", "k")
    assert outlasting_store(f"{LOOP} {COPY} cp.async.bulk.commit_group; @%p2 bra BEGIN; ret; }}", "k")
    # Labels of inlined assembly, twice the same.
    twice = f"{{ L: @%p1 bra L; }} bra M; M: {COPY} {{ L: @%p1 bra L; }}"
    wait = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; exit;"
    assert not outlasting_store(f".visible .entry k(){{ {twice} {wait} }}", "k")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("__syncthreads();", ()),
        ('asm volatile("bar.sync 1, 64;"); asm volatile("bar.arrive 2, 64;");', ("named barriers",)),
        ('asm volatile("barrier.cta.sync %0;" :: "r"(n));', ("named barriers",)),
        ("if (first) { copy(out, kept); commit(); wait(); }", ("bulk copies",)),
        (
            'asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"((unsigned)__cvta_generic_to_shared(kept)));',
            ("mbarriers",),
        ),
    ],
)
def test_what_hides_from_racecheck(nvrtc: Any, body: str, expected: tuple[str, ...]) -> None:
    made = nvrtc.compile(source(body))
    assert isinstance(made, Artifact) and made.unfollowed == expected
