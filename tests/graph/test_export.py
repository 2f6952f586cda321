"""best/ for CUDA: the machine code that was measured, proved by its digest; here without a GPU."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import statistics
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_runs import LIMITS, compared, cuda_context

from tunesmith.graph.context import Context
from tunesmith.graph.journal.records import Verdict, Winner
from tunesmith.graph.results.best import _requirements, export_best
from tunesmith.graph.results.runtime import ELEMENT_BYTES, KernelChoice, Kernels, PreparedLaunch, compile_source
from tunesmith.graph.run import tune
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact, cache_key, open_cache
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.taskfile import load_task

TASK = load_task("silu_and_mul")
SOURCES = TASK.sources("cuda")
TEMPLATE = SOURCES.templates[0]
CONFIG = TEMPLATE.default_config
WORKLOAD = next(one for one in TASK.workloads if "gpu" in one.devices or not one.devices)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNESMITH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def codes() -> dict[str, Artifact]:
    """The kernels' machine code, by folder of best/."""
    found = {}
    for folder, template in (("general", TEMPLATE), ("baseline", SOURCES.baseline.template)):
        made = open_compiler(LIMITS).compile(specialise(template, template.default_config, WORKLOAD.types))
        assert isinstance(made, Artifact)
        found[folder] = made
    return found


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with cuda_context(tmp_path / "run", TASK.model_copy(update={"workloads": (WORKLOAD,)})) as made:
        yield made


def export(context: Context, best: Path, code: str, baseline_code: str) -> dict[str, dict[str, Any]]:
    """The machine code's entries by folder, after a comparison in which code of these digests was timed."""
    compared(context, WORKLOAD.name, 1e-6, code, baseline_code)
    export_best(context, best, Verdict(general=Winner(template=TEMPLATE.id, config=CONFIG), sentence=""))
    found = {}
    for folder, seconds in (("general", 1e-6), ("baseline", 2e-6)):
        launch = json.loads((best / folder / "launch.json").read_text())["workloads"][WORKLOAD.name]
        assert launch["measured_seconds"] == pytest.approx(seconds)
        about = found[folder] = launch["machine_code"]
        assert about["file"].endswith(".cubin") and about["architecture"] == "sm_90"
        assert hashlib.sha256((best / folder / about["file"]).read_bytes()).hexdigest() == about["sha256"]
    return found


def test_the_code_comes_from_the_cache_and_then_from_the_export_before(
    context: Context, codes: dict[str, Artifact], tmp_path: Path
) -> None:
    cache = open_cache()
    for folder, template in (("general", TEMPLATE), ("baseline", SOURCES.baseline.template)):
        source = specialise(template, template.default_config, WORKLOAD.types)
        cache.put(cache_key(source, "sm_90", "NVRTC of a test"), codes[folder])
    digests = [codes[folder].code_digest for folder in ("general", "baseline")]
    found = export(context, tmp_path / "best", *digests)
    for folder, about in found.items():
        assert about["measured"] and about["sha256"].startswith(codes[folder].code_digest)
        assert about["compiler"] == "NVRTC of a test"
    shutil.rmtree(tmp_path / "cache")
    assert export(context, tmp_path / "best", *digests) == found


def test_where_the_cache_is_cleared_it_is_compiled_again_and_compared(
    context: Context, codes: dict[str, Artifact], tmp_path: Path
) -> None:
    measured = codes["general"]
    found = export(context, tmp_path / "best", measured.code_digest, "0123456789abcdef")
    assert found["general"]["measured"] and not found["baseline"]["measured"]
    # The program beside it loads what was measured, and compiles elsewhere with the same options.
    kernels, types = Kernels(tmp_path / "best"), (WORKLOAD.types["T"],)
    assert kernels.machine_code("general", types, "sm_90") == measured.code
    [how] = kernels.launches["general"]["sources"]
    source = (tmp_path / "best" / "general" / how["source"]).read_text()
    options = how["fast_math"], how["max_registers"] or 0
    assert instructions(compile_source(source, "sm_90", *options)) == instructions(measured.code)
    headers = "#include <mma.h>\n#include <cooperative_groups.h>\n"
    assert compile_source(headers + source, "sm_90", *options).startswith(b"\x7fELF")


def instructions(cubin: bytes) -> list[bytes]:
    """The sections that hold instructions: the rest of a cubin names files and the compiler's options."""
    offset, (size, count) = int.from_bytes(cubin[0x28:0x30], "little"), struct.unpack_from("<HH", cubin, 0x3A)
    sections = [struct.unpack_from("<4Q", cubin, at + 8) for at in range(offset, offset + size * count, size)]
    found = [cubin[start : start + length] for flags, _, start, length in sections if flags & 4]
    assert found
    return found


@pytest.mark.parametrize(("d", "fits"), [(64, True), (2048, False)])
def test_a_block_that_depends_on_a_condition_has_its_bounds(context: Context, d: int, fits: bool) -> None:
    launch = TEMPLATE.launch.model_copy(update={"block": ("d if d > 32 else 32",)})
    template = TEMPLATE.model_copy(update={"launch": launch, "constraints": ()})
    names = WORKLOAD.names | CONFIG | {"d": d}
    found = [bool(parse(one).evaluate(names)) for one in _requirements(context, template)]
    # Extent of the block, extents of the grid, threads in all.
    assert found == [fits, *[True] * (len(found) - 2), fits]


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_an_exported_kernel_takes_the_time_that_was_reported(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    result = tune("silu_and_mul", run_dir=tmp_path / "run", backend="cuda", evaluations=8, rounds=1, wisdom=False)
    # The longest launch: beside it the time between two events counts for little.
    row = max((one for one in result.summary.tuned if one.general), key=lambda one: one.baseline_seconds or 0.0)
    kernels = Kernels(result.folder / "best")
    about = kernels.launches["general"]["workloads"][row.workload]
    types, sizes = (tuple(about[key][name] for name in getattr(kernels, key)) for key in ("types", "sizes"))
    choice = KernelChoice("general", tuple(about["grid"]), tuple(about["block"]), about["shared_bytes"])
    launch = PreparedLaunch(kernels, 0, types, sizes, choice, {})
    arrays = [
        cupy.zeros(math.prod(one["shape"]) * ELEMENT_BYTES[one["dtype"]], cupy.uint8)
        for one in about["arguments"]
        if one["role"] != "scalar"
    ]
    for slot, array in zip(launch.slots, arrays, strict=False):
        slot.value = array.data.ptr
    flushed, start, end, times = cupy.empty(1 << 28), cupy.cuda.Event(), cupy.cuda.Event(), list[float]()
    for _ in range(50):
        flushed.fill(0)
        start.record()
        launch.start(cupy.cuda.get_current_stream().ptr)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e-3)
    assert statistics.median(times) == pytest.approx(row.general.seconds, rel=0.1)
