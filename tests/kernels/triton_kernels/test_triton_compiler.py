"""Triton's compiler, without a device: for NVIDIA and AMD, what a launch needs, failures as values, and what a kernel
takes of a device, with the text of LLVM's assembly as the judge of AMD's; and on a GPU."""

import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from compiling import visit
from written import KERNEL, triton_task

from tunesmith.hw.limits import DeviceLimits, as_triton, occupancy
from tunesmith.hw.probe import probe
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.backends.triton.autotune import Autotuned
from tunesmith.kernels.backends.triton.compiler import amd_resources, nvidia_resources
from tunesmith.kernels.build.artifact import Artifact, ArtifactCache, Candidate
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import Specialised, code_key, specialise
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import CompileFailed, Measured, Rejected, Resources, WrongResult
from tunesmith.kernels.space import compiler_rejection, feasible, rules
from tunesmith.kernels.spec.task import Geometry, Task

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tunesmith[triton]'")
pytestmark = pytest.mark.xdist_group("triton")
LIMITS = as_triton(resolve_target("h200"))


def source_of(task: Task, workload: int = 0) -> Specialised:
    template = task.sources("triton").templates[0]
    key = code_key(task, template, task.workloads[workload])
    return specialise(template, template.default_config, dict(key))


def test_an_artifact_has_what_a_launch_needs(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    made = open_compiler(LIMITS).compile(source_of(task))
    assert isinstance(made, Artifact) and made.call is not None
    # The step, which is 1, is a constant of the machine code.
    assert made.call.arguments == ((0, "*fp16"), (1, "*fp16"), (2, "*fp16"), (3, "i32"), (5, "fp32"))
    assert (made.call.threads, made.call.cluster, made.backend, made.arch) == (128, 1, "triton", "sm_90")
    # Where another argument is the constant, the same code takes another one.
    other = replace(made.call, arguments=(*made.call.arguments[:3], (4, "i32"), made.call.arguments[4]))
    assert replace(made, call=other).code_digest != made.code_digest
    cache = ArtifactCache(tmp_path / "cache")
    assert cache.put("a" * 64, made) and cache.get("a" * 64) == made
    same = triton_task(tmp_path)
    odd = same.workloads[1].model_copy(update={"types": {"T": "float16"}})
    task = same.model_copy(update={"workloads": (same.workloads[0], odd)})
    first, second = (open_compiler(LIMITS).compile(source_of(task, place)) for place in (0, 1))
    assert isinstance(first, Artifact) and isinstance(second, Artifact) and first.code_digest != second.code_digest
    kernel = KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, WHOLE: tl.constexpr")
    kernel = kernel.replace("inside = at < n", "tl.static_assert(WHOLE)\n    inside = at < n")
    heuristics = '@triton.heuristics({"WHOLE": lambda given: given["n"] % given["BLOCK"] == 0})\n@triton.jit'
    task = triton_task(tmp_path, kernel.replace("@triton.jit", heuristics))
    assert isinstance(open_compiler(LIMITS).compile(source_of(task)), Artifact)
    assert isinstance(open_compiler(LIMITS).compile(source_of(task, 1)), CompileFailed)
    made = open_compiler(LIMITS).mark(source_of(triton_task(tmp_path)))
    assert isinstance(made, MarkedArtifact) and {line for block in made.blocks for line in block} & set(range(6, 13))
    kernel = KERNEL.replace("    inside", '    tl.device_print("n", n)\n    inside')
    assert isinstance(open_compiler(LIMITS).compile(source_of(triton_task(tmp_path, kernel))), Rejected)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (KERNEL.replace("at < n", "at < undefined"), "undefined"),
        (KERNEL.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"), "power of 2"),
        (KERNEL.replace("def run", "def other"), "run"),
    ],
)
def test_a_failure_names_its_mistake(tmp_path: Path, kernel: str, said: str) -> None:
    source = source_of(triton_task(tmp_path))
    wrong = replace(source, source=source.source.replace(KERNEL.rstrip(), kernel.rstrip()))
    made = open_compiler(LIMITS).compile(wrong)
    assert isinstance(made, CompileFailed) and said in made.first_error


@pytest.mark.gpu
def test_on_a_gpu_a_right_kernel_is_measured_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    limits = probe().device("triton").limits
    task, compiler = triton_task(tmp_path), open_compiler(limits)
    bench, template = Bench(task, limits, 0, seed=0), task.sources("triton").templates[0]
    key = code_key(task, template, task.workloads[0])
    wrong, clusters = KERNEL.replace("left + alpha", "left + 2 * alpha"), KERNEL + '\n\nFIXED = {"num_ctas": 2}\n'
    for text, outcome in ((KERNEL, Measured), (wrong, WrongResult), (clusters, Measured)):
        changed = template.model_copy(update={"source": text})
        made = compiler.compile(specialise(changed, changed.default_config, dict(key)))
        assert isinstance(made, Artifact), made
        found = visit(bench, Candidate(changed, changed.default_config, {key: made}))
        assert isinstance(found, outcome), found


CHOICES = """
[[backends.triton.opponents]]
name = "triton.autotune"
label = "production"
source_file = "run.py"
launch = { grid = "ceil_div(n, BLOCK)", block = "32 * num_warps" }
configs = [{ BLOCK = 128, num_warps = 1 }, { BLOCK = 1024, num_warps = 4 }]
"""


def test_where_pytorch_is_missing_an_opponent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    task = triton_task(tmp_path, more=CHOICES)
    [opponent] = task.sources("triton").opponents
    with pytest.raises(ImportError, match="Triton's autotuner measures by PyTorch: `pip install torch`"):
        Autotuned(opponent, task.workloads[0])


@pytest.mark.gpu
def test_on_a_gpu_the_choice_of_triton_is_timed_beside_others(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch, by which Triton measures, is not installed")
    limits = probe().device("triton").limits
    task, compiler = triton_task(tmp_path, more=CHOICES), open_compiler(limits)
    sources = task.sources("triton")
    template, workload = sources.templates[0], task.workloads[0]
    key = code_key(task, template, workload)
    made = compiler.compile(specialise(template, template.default_config, dict(key)))
    assert isinstance(made, Artifact), made
    candidate = Candidate(template, template.default_config, {key: made})
    rivals = [(one, None) for one in sources.opponents]
    request = ComparisonRequest(candidate, [candidate], workload.name, 12, 0.5, opponents=rivals)
    [met] = Bench(task, limits, 0, seed=0).compare(request).opponents
    assert met.choice in sources.opponents[0].configs, met
    assert isinstance(met.comparison, Comparison) and isinstance(met.against[0], Comparison), met
    assert met.first_seconds is not None and met.first_seconds > 0.05


PRODUCT = """\
import triton
import triton.language as tl


@triton.jit
def product(a, b, out, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for at in range(0, k, K):
        left = tl.load(a + rows[:, None] * k + (at + inner)[None, :])
        right = tl.load(b + (at + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)
"""
SMALL, SPILLS, LARGE = (16, 16, 16, 1), (128, 64, 16, 1), (128, 128, 16, 1)
NVIDIA = (pytest.param("sm_80", marks=pytest.mark.slow), "sm_90", "sm_120")


def of(target: str) -> DeviceLimits:
    limits = resolve_target(target)
    return as_triton(limits) if limits.backend == "cuda" else limits


@cache
def compiled(target: str, m: int, n: int, k: int, warps: int) -> Any:
    """Triton's compiled kernel for a target: M, N, K and warps."""
    arguments = {"a": "*fp16", "b": "*fp16", "out": "*fp32", "k": "i32:16"}
    values = {"M": m, "N": n, "K": k, "num_warps": warps, "num_stages": 2}
    text = f"{PRODUCT}\nTUNESMITH = {{'arguments': {arguments}, 'values': {values}}}\n"
    return open_compiler(of(target))._compiled(Specialised("triton", "product", text))


@pytest.mark.parametrize("shape", [SMALL, SPILLS])
@pytest.mark.parametrize("target", NVIDIA)
def test_a_kernel_of_too_many_sums_spills(target: str, shape: tuple[int, ...]) -> None:
    read = nvidia_resources(compiled(target, *shape).asm["cubin"], "product")
    assert read.local == read.spills and ((read.spills or 0) > 0) == (shape == SPILLS)
    assert (read.registers == 255) == (shape == SPILLS) and read.shared == 0


@pytest.mark.parametrize(
    ("target", "shape"), [("gfx942", SMALL), ("gfx942", LARGE), ("gfx1100", SMALL), ("gfx1100", SPILLS)]
)
def test_an_assembly_says_what_llvm_prints_behind_it(target: str, shape: tuple[int, ...]) -> None:
    text, limits = compiled(target, *shape).asm["amdgcn"], of(target)
    read = amd_resources(text)
    printed = {name: int(value) for name, value in re.findall(r"^; (\w+): (\d+)", text, re.MULTILINE)}
    assert read.registers == printed.get("TotalNumVgprs", printed.get("NumVgprs")), printed
    assert (read.local, read.shared) == (printed["ScratchSize"], 0)
    # LLVM tells how many waves of this kernel a SIMD holds, of which there are four.
    one_wave = occupancy(limits, threads=limits.warp_size or 0, registers=read.registers or 0, shared=0)
    assert one_wave.blocks_per_sm == 4 * printed["Occupancy"]


def test_other_bytes_and_other_names_are_refused() -> None:
    cubin, code = compiled("sm_90", *SMALL).asm["cubin"], compiled("gfx942", *SMALL).asm["hsaco"]
    for other, name in ((cubin, "another"), (b"", "product"), (code, "product")):
        with pytest.raises(ValueError):
            nvidia_resources(other, name)
    with pytest.raises(ValueError):
        amd_resources(compiled("sm_90", *SMALL).asm["ptx"])


@pytest.mark.parametrize("target", ["h200", "mi300x"])
def test_an_artifact_has_its_resources(tmp_path: Path, target: str) -> None:
    task = triton_task(tmp_path)
    template = task.sources("triton").templates[0]
    source = specialise(template, template.default_config, dict(code_key(task, template, task.workloads[0])))
    made = open_compiler(of(target)).compile(source)
    assert isinstance(made, Artifact) and made.call is not None and (made.resources.registers or 0) > 4
    assert (made.resources.shared, made.resources.spills) == (made.call.shared_bytes, 0)


@pytest.mark.parametrize(
    ("target", "shape", "reason"),
    [
        # A stage of a pipeline holds 256 and 512 columns of 128 rows in half, 192 KiB; with one buffer.
        ("h200", (128, 128, 64, 4), None),
        ("mi300x", (128, 128, 64, 4), None),
        ("mi300x", (128, 128, 256, 4), "shared_per_block"),
        pytest.param("h200", (256, 256, 256, 8), "shared_per_block", marks=pytest.mark.slow),
    ],
)
def test_too_much_shared_memory_is_refused(target: str, shape: tuple[int, ...], reason: str | None) -> None:
    made, limits = compiled(target, *shape), of(target)
    threads = made.metadata.num_warps * made.metadata.warp_size
    refused = compiler_rejection(limits, Geometry((1, 1, 1), (threads, 1, 1)), Resources(100, made.metadata.shared))
    assert (refused and refused.reason) == reason


def test_warps_of_amd_and_clusters_beyond_the_portable_size(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    template = task.sources("triton").templates[0]
    blocks = _values(template.parameters[1], (1, 8, 16)).model_copy(update={"name": "num_ctas"})
    clusters = template.model_copy(update={"parameters": (template.parameters[0], *template.parameters[1:], blocks)})
    broken = {
        rule.kind
        for rule in rules(clusters, task.workloads, of("h200"))
        if not rule.holds({**template.default_config, "num_ctas": 16})
    }
    assert broken == {"cluster"}
    fixed = triton_task(tmp_path, fixed='"BLOCK": 256, "num_ctas": 16').sources("triton").baseline.template
    source = specialise(fixed, {}, dict(code_key(task, fixed, task.workloads[0])))
    made = open_compiler(of("h200")).compile(source)
    assert isinstance(made, Rejected) and made.rule == "num_ctas"
    task = triton_task(tmp_path)
    template = task.sources("triton").templates[0]
    wide = template.model_copy(update={"parameters": (_values(template.parameters[1], (1, 16, 32)),)})
    on_warps = wide.model_copy(update={"launch": wide.launch.model_copy(update={"grid": ("1",)})})
    kept = {target: len(feasible(on_warps, task.workloads, of(target))) for target in ("h200", "gfx1100", "gfx942")}
    assert kept == {"h200": 3, "gfx1100": 3, "gfx942": 2}


def _values(parameter: Any, values: tuple[int, ...]) -> Any:
    return parameter.model_copy(update={"values": values, "default": values[0]})
