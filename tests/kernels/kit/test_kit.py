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

POINTERS = {"float32": "float*", "float16": "__half*", "int32": "int*"}


def kernel(body: str, arrays: dict[str, Any], headers: tuple[str, ...]) -> Template:
    """A kernel `k` of these arrays, whose parameters have names that the kit uses for something else."""
    code = "".join(f'#include "kit/{name}.cuh"\n' for name in headers)
    parameters = ", ".join(f"{POINTERS[array.dtype.name]} {name}" for name, array in arrays.items())
    code += f'extern "C" __global__ void k({parameters}) {{\n{body}\n}}\n'
    fields: Any = {"name": "k", "backend": "cuda", "entry": "k", "source": code, "launch": {"grid": [1], "block": [1]}}
    return Template.model_validate({**fields, "parameters": [{"name": "VEC", "values": [4]}]})


def run(nvrtc: Any, body: str, headers: tuple[str, ...], threads: tuple[int, int] = (32, 1), **arrays: Any) -> None:
    """Compiles the kernel for compute capability 9.0, and runs a block of it on the CPU, on `arrays` in place."""
    made = specialise(kernel(body, arrays, headers), {"VEC": 4}, {"T": "float16"})
    compiled = nvrtc.compile(made)
    assert isinstance(compiled, Artifact), compiled
    started = emulated(made.source, "k")
    started(1, 1, 1, *threads, 1, *(one.ctypes.data_as(ctypes.c_void_p) for one in arrays.values()))


@pytest.mark.parametrize("name", kit())
def test_a_header_stands_alone(name: str, nvrtc: Any) -> None:
    template = kernel("", {}, (Path(name).stem,))
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
        compiled = nvrtc.compile(specialise(made, config, {"T": "float16"}))
        assert isinstance(compiled, Artifact), compiled
        assert compiled.resources.shared == (shared if block > 32 else 0)
        out = np.full((3, d), np.nan, np.float32)
        pointers = [one.ctypes.data_as(ctypes.c_void_p) for one in (*arrays, out)]
        emulated(specialise(made, config, {"T": "float32"}).source, entry)(
            blocks, 1, 1, block, high, 1, *pointers, 3, d
        )
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_a_header_that_the_kit_has_not_is_refused() -> None:
    assert refuse_text('#include "kit/rows.cuh"', "cuda") is None
    assert refuse_text('#include "kit/rows.cuh"', "opencl") is not None
    refused = refuse_text("#include <kit/loops.cuh>", "cuda")
    assert refused is not None and "kit/rows.cuh" in refused.detail


ROWS = """
    kit::Columns<16, 4, 2> columns;
    kit::RowOfBlock<2, true> at;
    do {
        columns.end = at.row < 5 ? 200 : 0;
        kit::Vector<__half, 4> held[2];
        columns.fetch<kit::STREAMED>(held, x + at.row * 200);
        columns.each_held([&](int i, int k) { held[i].value[k] = __half(2.0f * float(held[i].value[k])); });
        columns.held([&](int i, kit::Column col) { kit::store<kit::KEPT>(y + at.row * 200 + int(col), held[i]); });
        columns.ahead<kit::PLAIN>(x + at.row * 200, [&](int col, auto v) { kit::store(y + at.row * 200 + col, v); });
        columns.more([&](int col) { for (int k = 0; k < 4; ++k) ++seen[at.row * 200 + col + k]; });
    } while (at.next(5));
"""


def test_blocks_of_the_kit_compute_what_the_page_says(nvrtc: Any) -> None:
    x = np.arange(1000, dtype=np.float16).reshape(5, 200)
    y, seen = np.zeros_like(x), np.zeros((5, 200), np.int32)
    run(nvrtc, ROWS, ("rows",), (16, 2), x=x, y=y, seen=seen)
    assert (y[:, :128] == 2 * x[:, :128]).all() and (y[:, 128:] == x[:, 128:]).all()
    assert (seen[:, 128:] == 1).all() and not seen[:, :128].any()
    x = np.arange(1, 1201, dtype=np.float32)
    y, z, w = np.zeros_like(x), np.zeros_like(x), np.full_like(x, 3)
    run(nvrtc, BODY, ("views",), x=x, y=y, z=z, w=w)
    assert (y[:333] == 3 * x[:333]).all() and not y[333:].any() and (z == 3 * x).all()
    assert (w[3:203] == 3 * x[3:203] + x[1:201]).all() and (w[:3] == 3).all() and (w[203:400] == 3).all()
    assert (w[400:800] == x[:400]).all()
    x = np.random.default_rng(1).uniform(0, 20, (2, 64)).astype(np.float32)
    y = np.zeros((5, 2, 64), np.float32)
    run(nvrtc, REDUCTIONS, ("reduce",), (64, 2), x=x, y=y)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(y[0], x.sum(1, keepdims=True)) and (y[1] == np.floor(x).max(1, keepdims=True)).all()
    assert np.allclose(y[2], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert np.allclose(y[3], x.var(1, keepdims=True), rtol=1e-5)
    assert (y[4].reshape(2, 8, 8) == x.reshape(2, 8, 8).max(2, keepdims=True)).all()
    places, tiles, out = (np.zeros(n, np.int32) for n in (128, 12, 64))
    c = np.zeros((2, 5), np.float16)
    run(nvrtc, TILES, ("tiles",), places=places, tiles=tiles, out=out, c=c)
    # Each chunk has its place; the eight rows of a column lie in different banks.
    assert sorted(places[:64]) == sorted(places[64:]) == list(range(64))
    assert all(len(set(places[column:64:8] % 8)) == 8 for column in range(8))
    assert all(len(set(places[64 + column : 96 : 4] % 8)) == 8 for column in range(4))
    # Two tiles down before the next to the right, then the last row of tiles.
    assert tiles.tolist() == [0, 400, 8, 408, 16, 416, 24, 424, 800, 808, 816, 824]
    assert (out.reshape(8, 8) == np.arange(64).reshape(8, 8).T).all()
    assert c.tolist() == [[0, 0, 0, 0, 0], [1, 2, 2, 2, 3]]


BODY = """
    const auto body = [](auto a, auto b, auto c, auto i) { c[i] = a[i] + 2.0f * b[i]; };
    kit::over_row<32, 4, 2>(333, false, body, kit::In<float, 4>(x), kit::In<float, 4>(x), kit::Out<float, 4>(y));
    kit::over_row<32, 4, 2>(1200, true, body, kit::In<float, 4>(x), kit::In<float, 4>(x), kit::Out<float, 4>(z));
    const kit::Elements<float> shifted(x + 1);
    const kit::Pieces<32, 4> pieces(x + 3, 200, true);
    kit::each<2>(pieces, [&](auto a, auto w, auto i) { w[i] = w[i] * a[i] + shifted[i]; },
                 kit::In<float, 4>(x + 3), kit::InOut<float, 4>(w + 3));
    alignas(16) __shared__ float kept[400];
    kit::Columns<32, 4, 0> columns(400);
    columns.keep<kit::PLAIN>(kept, x);
    columns.more([&](int col) { kit::store(w + 400 + col, kit::load<4>(kept + col)); });
"""
REDUCTIONS = """
    const int me = threadIdx.y * 64 + threadIdx.x;
    __shared__ float sums[2][2];
    __shared__ unsigned int most[2][2];
    __shared__ kit::Exponentials exponentials[2][2];
    __shared__ kit::Moments moments[2][2];
    y[me] = kit::fold_row<64>(x[me], sums[threadIdx.y], kit::Sum{});
    y[128 + me] = float(kit::fold_row<64>((unsigned int)x[me], most[threadIdx.y], kit::Largest{}));
    const kit::JoinExponentials<false> join;
    const auto all = kit::fold_row<64>(kit::Exponentials{x[me], 1.0f}, exponentials[threadIdx.y], join);
    y[256 + me] = kit::exponential<false>(x[me] - all.largest) / all.sum;
    const auto both = kit::fold_row<64>(kit::Moments{1.0f, x[me], 0.0f}, moments[threadIdx.y], kit::JoinMoments{});
    y[384 + me] = both.squares / both.count;
    y[512 + me] = kit::fold_lanes<8>(x[me], kit::Largest{});
"""
TILES = """
    __shared__ kit::Padded<int, 8, 8, 1> padded;
    for (int i = threadIdx.x; i < 64; i += 32) {
        padded(i / 8, i % 8) = i;
        places[i] = kit::swizzled<8>(i / 8, i % 8) / 16;
        places[64 + i] = kit::swizzled<4>(i / 4, i % 4) / 16;
    }
    if (threadIdx.x < 12) {
        const int2 first = kit::tile_of<4, 8, 2>(threadIdx.x, 11, 25);
        tiles[threadIdx.x] = first.x * 100 + first.y;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += 32) out[i] = padded(i % 8, i / 8);
    if (threadIdx.x < 3) kit::write_pair(c, 1, threadIdx.x * 2, 2, 5, 1.0f + threadIdx.x, 2.0f);
"""
ASYNCHRONOUS = """
    alignas(16) __shared__ unsigned place[512];
    const unsigned own = kit::shared_address(place) + threadIdx.x * 16;
    unsigned a[4], b[2];
    kit::copy_later<16>(own, x, true);
    kit::copy_later<8>(own, x, false);
    kit::close_group();
    kit::wait_groups<0>();
    kit::read_own(a, own), kit::read_own(b, own), kit::write_own(own, 7);
    kit::load_a(a, own), kit::load_b(a[0], a[1], b[0], b[1], own);
    float c[4] = {};
    kit::multiply<__half>(c, a, b[0], b[1]);
    x[threadIdx.x] = c[0] + c[3];
"""
OF_90 = """
    float d[32] = {};
    kit::start_barrier(own, 1), kit::expect(own, 16), kit::arrive(own), kit::wait_for(own, 0);
    kit::begin_products();
    kit::multiply<__half>(d, kit::described(own, 16, 1024), kit::described(own, 16, 1024));
    kit::close_products(), kit::wait_products<0>();
    kit::cluster_arrive(), kit::cluster_wait(), kit::give(own, 0, d[0], d[1]), kit::meet_cluster();
    x[threadIdx.x] += kit::read_from<float2>(own, 0).x + float(kit::packed<__half>(d[0], d[1]));
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_blocks_of_instructions_assemble(arch: str) -> None:
    """What they compute is tested with the products of the library."""
    pytest.importorskip("cuda.bindings")
    new = arch == "sm_90"
    headers = ("copies", "fragments", *(("clusters", "warpgroups") if new else ()))
    made = kernel(ASYNCHRONOUS + (OF_90 if new else ""), {"x": np.zeros(1, np.float32)}, headers)
    compiled = nvrtc_for(arch).compile(specialise(made, {"VEC": 4}, {"T": "float16"}))
    assert isinstance(compiled, Artifact), compiled
