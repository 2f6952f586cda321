"""What a compiled kernel takes of a device, with the text of LLVM's assembly as the judge of AMD's."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from written import triton_task

from tunesmith.hw.limits import DeviceLimits, as_triton, occupancy
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.backends.triton.compiler import amd_resources, nvidia_resources
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised, code_key, specialise
from tunesmith.kernels.outcome import Rejected, Resources
from tunesmith.kernels.space import compiler_rejection, feasible, rules
from tunesmith.kernels.spec.task import Geometry

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tunesmith[triton]'")
pytestmark = pytest.mark.xdist_group("triton")
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
