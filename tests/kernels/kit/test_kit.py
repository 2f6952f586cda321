"""The blocks of the kit: each compiles, and computes what its page says, on the CPU."""

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import nvrtc_for
from emulation import emulated

from tunesmith.graph.prompts import render
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.source import kit, specialise
from tunesmith.kernels.spec.template import Template

SOURCES = Path(__file__).with_name("sources")


def kernel(code: str) -> Template:
    """The kernel `k` of a source, with a parameter whose name the kit uses for something else."""
    fields: Any = {"name": "k", "backend": "cuda", "entry": "k", "source": code, "launch": {"grid": [1], "block": [1]}}
    return Template.model_validate({**fields, "parameters": [{"name": "VEC", "values": [4]}]})


def compiled(compiler: Any, name: str) -> str:
    """A source of these tests as it is compiled."""
    made = specialise(kernel((SOURCES / f"{name}.cu").read_text()), {"VEC": 4}, {"T": "float16"})
    answer = compiler.compile(made)
    assert isinstance(answer, Artifact), answer
    return made.source


def run(nvrtc: Any, name: str, threads: tuple[int, int], *arrays: Any) -> None:
    """Compiles a source for compute capability 9.0, and runs a block of it on the CPU, on `arrays` in place."""
    [started] = emulated((compiled(nvrtc, name),), "k")
    started(1, 1, 1, *threads, 1, *(one.ctypes.data_as(ctypes.c_void_p) for one in arrays))


@pytest.mark.parametrize("name", kit())
def test_a_header_stands_alone(name: str, nvrtc: Any) -> None:
    template = kernel(f'#include "{name}"\nextern "C" __global__ void k() {{}}\n')
    made = specialise(template, {"VEC": 4}, {})
    assert isinstance(nvrtc.compile(made), Artifact)
    # The text is complete: each header once, in front of the macros; lines of the template keep their numbers.
    before, own = made.source.split('#line 1 "k"\n')
    assert '"kit/' not in made.source and before.count("struct Column {") == (name in ("kit/rows.cuh", "kit/views.cuh"))
    assert before.index("namespace ") < before.index("#define VEC")
    assert own.splitlines()[1:] == template.source.splitlines()[1:]


@pytest.mark.parametrize(("block", "rows", "d"), [(32, 1, 333), (64, 2, 1048)])
def test_examples_of_the_page_and_of_prompts_compute_what_they_say(nvrtc: Any, block: int, rows: int, d: int) -> None:
    page = (Path(__file__).parents[3] / "docs" / "kit.md").read_text(encoding="utf-8")
    examples = re.findall(r"```cuda\n(.*?)```", page, re.DOTALL)
    rng, config = np.random.default_rng(1), {"BLOCK": block, "ROWS": rows, "VEC": 4, "ITEMS": 2}
    a, b = (rng.standard_normal((3, d), np.float32) for _ in range(2))
    cases = [([a, b], 3, 1, 0, a + 2 * b), ([a], -(-3 // rows), rows, rows * block // 8, a - a.mean(1, keepdims=True))]
    for code, (arrays, blocks, high, shared, expected) in zip(examples, cases, strict=True):
        assert code in render("kit", shown={}, others={})
        entry = re.findall(r"(\w+)\(const T\*", code)[-1]
        parameters = [{"name": name, "values": [value]} for name, value in config.items()]
        fields = {"name": "k", "backend": "cuda", "entry": entry, "launch": {"grid": [1], "block": [1]}}
        made = Template.model_validate({**fields, "source": code, "parameters": parameters})
        answer = nvrtc.compile(specialise(made, config, {"T": "float16"}))
        assert isinstance(answer, Artifact), answer
        assert answer.resources.shared == (shared if block > 32 else 0)
        out = np.full((3, d), np.nan, np.float32)
        pointers = [one.ctypes.data_as(ctypes.c_void_p) for one in (*arrays, out)]
        [started] = emulated((specialise(made, config, {"T": "float32"}).source,), entry)
        started(blocks, 1, 1, block, high, 1, *pointers, 3, d)
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_a_header_that_the_kit_has_not_is_refused() -> None:
    assert refuse_text('#include "kit/rows.cuh"', "cuda") is None
    assert refuse_text('#include "kit/rows.cuh"', "opencl") is not None
    refused = refuse_text("#include <kit/loops.cuh>", "cuda")
    assert refused is not None and "kit/rows.cuh" in refused.detail


def test_blocks_of_the_kit_compute_what_the_page_says(nvrtc: Any) -> None:
    x = np.arange(1000, dtype=np.float16).reshape(5, 200)
    y, seen = np.zeros_like(x), np.zeros((5, 200), np.int32)
    run(nvrtc, "rows", (16, 2), x, y, seen)
    assert (y[:, :128] == 2 * x[:, :128]).all() and (y[:, 128:] == x[:, 128:]).all()
    assert (seen[:, 128:] == 1).all() and not seen[:, :128].any()
    x = np.arange(1, 1201, dtype=np.float32)
    y, z, w = np.zeros_like(x), np.zeros_like(x), np.full_like(x, 3)
    run(nvrtc, "views", (32, 1), x, y, z, w)
    assert (y[:333] == 3 * x[:333]).all() and not y[333:].any() and (z == 3 * x).all()
    assert (w[3:203] == 3 * x[3:203] + x[1:201]).all() and (w[:3] == 3).all() and (w[203:400] == 3).all()
    assert (w[400:800] == x[:400]).all()
    x = np.random.default_rng(1).uniform(0, 20, (2, 64)).astype(np.float32)
    y = np.zeros((5, 2, 64), np.float32)
    run(nvrtc, "reductions", (64, 2), x, y)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(y[0], x.sum(1, keepdims=True)) and (y[1] == np.floor(x).max(1, keepdims=True)).all()
    assert np.allclose(y[2], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert np.allclose(y[3], x.var(1, keepdims=True), rtol=1e-5)
    assert (y[4].reshape(2, 8, 8) == x.reshape(2, 8, 8).max(2, keepdims=True)).all()
    places, tiles, out = (np.zeros(n, np.int32) for n in (128, 12, 64))
    c = np.zeros((2, 5), np.float16)
    run(nvrtc, "tiles", (32, 1), places, tiles, out, c)
    # Each chunk has its place; the eight rows of a column lie in different banks.
    assert sorted(places[:64]) == sorted(places[64:]) == list(range(64))
    assert all(len(set(places[column:64:8] % 8)) == 8 for column in range(8))
    assert all(len(set(places[64 + column : 96 : 4] % 8)) == 8 for column in range(4))
    # Two tiles down before the next to the right, then the last row of tiles.
    assert tiles.tolist() == [0, 400, 8, 408, 16, 416, 24, 424, 800, 808, 816, 824]
    assert (out.reshape(8, 8) == np.arange(64).reshape(8, 8).T).all()
    assert c.tolist() == [[0, 0, 0, 0, 0], [1, 2, 2, 2, 3]]


@pytest.mark.parametrize(("arch", "name"), [("sm_80", "copies"), ("sm_90", "copies"), ("sm_90", "warpgroups")])
def test_blocks_of_instructions_assemble(arch: str, name: str) -> None:
    """What they compute is tested with the products of the library."""
    pytest.importorskip("cuda.bindings")
    compiled(nvrtc_for(arch), name)
