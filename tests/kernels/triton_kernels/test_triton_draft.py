"""Tasks drafted from Python files with Triton kernels, which are not imported, and from kernels in a program; and what
their templates compute at several points of their spaces, by Triton's interpreter on the CPU."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.graph import tune_kernel as tuning
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import as_triton
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact, Candidate
from tunesmith.kernels.build.source import code_key, specialise
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.verify import excluded
from tunesmith.kernels.launch.contents import Contents
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, Task, geometry
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Config, Constraint, Parameter, Template
from tunesmith.kernels.triton.draft import TritonKernel, draft_triton
from tunesmith.kernels.triton.source import Module, find_kernel

triton = pytest.importorskip("triton", reason="Triton is not installed: pip install 'tunesmith[triton]'")
pytestmark = pytest.mark.xdist_group("triton")

HEAD = "import torch\nimport triton\nimport triton.language as tl\nfrom nowhere import logger\n"
ADD = """
@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # as its author wrote it
    inside = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


def launch(x, y):
    out = torch.empty_like(x)
    count: int = x.numel()
    add[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](x, y, out, count, BLOCK=1024)
    return out
"""
ROWS = """
from .shared import act


def settings(count):
    block = triton.next_power_of_2(count)
    return block, 8 if block >= 2048 else 4


@triton.jit
def rows_kernel(x, y, gate, mean, stride, columns: tl.constexpr, eps, GATED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    at = tl.arange(0, BLOCK)
    value = act(tl.load(x + at, mask=at < columns, other=0.0))
    if GATED:
        value *= tl.load(gate + at, mask=at < columns)
    middle = tl.sum(value, 0) / columns
    tl.store(mean + row, middle)
    tl.store(y + at, value - middle + eps, mask=at < columns)


def forward(x, y, mean, eps=1e-6, gate=None):
    count, columns = x.shape
    BLOCK, warps = settings(columns)
    rows_kernel[(count,)](
        x, y, gate, mean, x.stride(0), columns, eps, GATED=gate is not None, BLOCK=BLOCK, num_warps=warps
    )
"""
SHARED = """
import triton
import triton.language as tl

LIMIT = tl.constexpr(4.0)
OTHER = open("/nowhere")


@triton.jit
def act(value):
    return tl.minimum(value, LIMIT)
"""
PRODUCT = """
def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


def listed():
    sizes = [64, 128] if is_cuda() else [16]
    return [
        triton.Config({"BM": rows, "BN": 128, "BK": 32, "GROUP": 8}, num_warps=warps, num_stages=3)
        for rows in sizes
        for warps in (4, 8)
    ]


@triton.autotune(configs=listed(), key=["M", "N", "K"])
@triton.jit
def product(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    columns = tl.cdiv(N, BN)
    width = GROUP * columns
    first = pid // width * GROUP
    height = min(tl.cdiv(M, BM) - first, GROUP)
    row, column = first + pid % width % height, pid % width // height
    m = (row * BM + tl.arange(0, BM)) % M
    n = (column * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_at = a + (m[:, None] * stride_am + k[None, :] * stride_ak)
    b_at = b + (k[:, None] * stride_bk + n[None, :] * stride_bn)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        left = tl.load(a_at, mask=k[None, :] < K - step * BK, other=0.0)
        right = tl.load(b_at, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(left, right, total)
        a_at += BK * stride_ak
        b_at += BK * stride_bk
    if ACT == "relu":
        total = tl.maximum(total, 0)
    m_out = row * BM + tl.arange(0, BM)
    n_out = column * BN + tl.arange(0, BN)
    inside = (m_out[:, None] < M) & (n_out[None, :] < N)
    tl.store(c + m_out[:, None] * stride_cm + n_out[None, :] * stride_cn, total.to(c.dtype.element_ty), mask=inside)


def call(a, b, activation=""):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N))
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)
    product[grid](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1), ACT=activation
    )


def listed():  # after the list was made
    return []
"""


def written(folder: Path, text: str, name: str = "model.py") -> Path:
    (folder / name).write_text(HEAD + text)
    return folder / name


@functools.cache
def files_of(text: str, entry: str | None) -> dict[str, str]:
    """The files of a draft, which takes seconds, as the kernel is run; a file `shared` lies beside it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shared.py").write_text(SHARED)
        return draft_triton(written(Path(folder), text), entry)[1]


def answered(folder: Path, files: dict[str, str]) -> Task:
    """The task of a draft whose questions are answered by what it proposes."""
    for name, one in files.items():
        (folder / name).write_text("\n".join(line.split("  # FILL:")[0] for line in one.splitlines()))
    return load_task(str(folder))


def drafted(folder: Path, text: str, entry: str | None = None) -> Task:
    return answered(folder, files_of(text, entry))


def read(folder: Path, text: str) -> TritonKernel:
    return TritonKernel(find_kernel(Module(written(folder, text)), "kernel"))


def by_name(task: Task) -> dict[str, Argument]:
    return {one.name: one for one in task.arguments}


def template(task: Task) -> Template:
    return task.sources("triton").templates[0]


def values(task: Task) -> dict[str, tuple[Any, ...]]:
    return {one.name: one.values for one in template(task).parameters}


def test_elements_heuristics_and_lists_become_a_draft(tmp_path: Path) -> None:
    task = drafted(tmp_path, ADD)
    arguments = by_name(task)
    assert [arguments[name].role for name in ("x_ptr", "y_ptr", "out_ptr")] == ["in", "in", "out"]
    assert {one.shape for one in task.arguments if one.shape} == {("n",)}
    assert values(task) == {"BLOCK": (512, 1024, 2048), "num_warps": (1, 2, 4, 8)}
    assert template(task).launch.grid == ("ceil_div(n, BLOCK)",)
    assert task.sources("triton").baseline.template.launch.grid == ("ceil_div(n, 1024)",)
    assert "# as its author wrote it" in template(task).source and "nowhere" not in template(task).source
    text = """
def kernel(x, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 1.0, mask=at < n)


kernel = triton.jit(kernel)
kernel = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(kernel)
"""
    found = read(tmp_path, text)
    assert "EVEN" not in found.fixed and "'EVEN': lambda args: args['n'] % args['BLOCK'] == 0" in found.template.source
    assert [one.name for one in found.parameters] == ["BLOCK", "num_warps"]
    listed = '@triton.autotune(configs=logger.listed(), key=["n"])\n@triton.jit'
    text = ADD.replace("@triton.jit", listed).replace(", BLOCK=1024", "")
    task = files_of(text, None)["task.toml"]
    assert "FILL: the list of configurations cannot be evaluated (nowhere" in task
    with pytest.raises(TunesmithError, match="still to be filled in"):
        (tmp_path / "task.toml").write_text(task)
        load_task(str(tmp_path))


def test_rows_with_a_helper_of_another_file_and_a_block_that_covers_them(tmp_path: Path) -> None:
    task = drafted(tmp_path, ROWS)
    arguments = by_name(task)
    assert arguments["x"].shape == arguments["y"].shape == ("count", "columns")
    assert (arguments["mean"].role, arguments["mean"].shape) == ("out", ("count",))
    assert [arguments[name].value for name in ("stride", "columns", "eps")] == ["columns", "columns", "1e-06"]
    # Nothing passes a gate, so the kernel is the one without.
    assert "gate" not in arguments and "'gate': None" in template(task).source
    assert "LIMIT = tl.constexpr(4.0)" in template(task).source and "OTHER" not in template(task).source
    # Whatever the columns, the block has a place for each; it is no choice.
    assert "BLOCK" not in values(task) and "next_power_of_2(args['columns'])" in template(task).source
    assert template(task).launch.grid == ("count",)


def test_lists_widen_to_spaces_of_what_fits(tmp_path: Path) -> None:
    task = drafted(tmp_path, PRODUCT)
    arguments = by_name(task)
    assert [arguments[name].shape for name in "abc"] == [("M", "K"), ("K", "N"), ("M", "N")]
    assert [one.value for one in task.arguments if one.name.startswith("stride")] == ["K", "1", "N", "1", "N", "1"]
    sizes = {"BM": (32, 64, 128, 256), "BN": (64, 128, 256), "BK": (16, 32, 64), "GROUP": (4, 8, 16)}
    assert values(task) == sizes | {"num_warps": (1, 2, 4, 8, 16), "num_stages": (1, 2, 3, 4, 5)}
    baseline = task.sources("triton").baseline.template
    assert "'BM': 64" in baseline.source and "'ACT': ''" in baseline.source and "autotune" not in baseline.source
    assert baseline.launch.grid == ("ceil_div(M, 64) * ceil_div(N, 128)",)
    # What triton.autotune chooses among the author's list is timed beside the winner.
    [opponent] = task.sources("triton").opponents
    assert [(one["BM"], one["num_warps"]) for one in opponent.configs] == [(64, 4), (64, 8), (128, 4), (128, 8)]
    assert opponent.template.launch == template(task).launch and opponent.template.source == template(task).source
    # Tiles that do not fit are refused before compiling.
    rule, registers = template(task).constraints
    base = {"T": "float16", "float16": "float16", "M": 1024, "N": 1024, "K": 1024, "compute_capability": 90}
    large = {**base, "BM": 256, "BN": 256, "BK": 64, "num_stages": 4, "num_warps": 8}

    def holds(names: dict[str, Any], rule: Constraint = rule) -> Any:
        return parse(rule.expression).evaluate(names)

    assert not holds(large) and holds({**large, "num_stages": 3})
    # Rows that are no multiples of 16 elements are not loaded ahead, and need one buffer alone.
    assert holds({**large, "K": 1000}) and not holds({**large, "num_stages": 3, "compute_capability": 86})
    # 256 sums of each thread, which has 255 registers.
    assert holds({**large, "BM": 128}, registers) and not holds(large, registers)
    assert holds({**large, "compute_capability": 100}, registers)
    text = """
@triton.jit
def kernel(a, b, c, K, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BACK: tl.constexpr):
    rows, inner, wide = tl.arange(0, R), tl.arange(0, C), tl.arange(0, D)
    total = tl.zeros((R, D), dtype=tl.float32)
    x = tl.load(a + rows[:, None] * D + wide[None, :])
    for at in range(0, K, C):
        y = tl.load(b + (at + inner)[:, None] * D + wide[None, :])
        if BACK is not None:
            z = y
        else:
            z = tl.trans(y)
        total = tl.dot(tl.exp2(tl.dot(x, tl.trans(y))).to(tl.float16), z, total)
    tl.store(c + rows[:, None] * D + wide[None, :], total)
"""
    assert set(read(tmp_path, text).reading.sums) == {("R", "C"), ("R", "D")}


@pytest.mark.parametrize(
    ("point", "fits"),
    [
        ({"BM": 128, "BN": 256, "BK": 64, "num_stages": 4, "num_warps": 8}, True),
        ({"BM": 128, "BN": 256, "BK": 64, "num_stages": 5, "num_warps": 8}, False),
    ],
)
def test_the_rule_is_what_the_compiler_allots(tmp_path: Path, point: dict[str, Any], fits: bool) -> None:
    task = drafted(tmp_path, PRODUCT)
    limits, workload, made = as_triton(resolve_target("h200")), task.workloads[0], template(task)
    config = {**made.default_config, **point}
    artifact = open_compiler(limits).compile(specialise(made, config, dict(code_key(task, made, workload))))
    assert isinstance(artifact, Artifact) and artifact.call is not None
    names = {**workload.names, **config, "compute_capability": 90}
    assert parse(made.constraints[0].expression).evaluate(names) == fits == (artifact.call.shared_bytes <= 232448)
    # Where no constraint foresees it, a made-up size is left out.
    key, free = code_key(task, made, workload), made.model_copy(update={"constraints": ()})
    candidate, plain = (Candidate(one, config, {key: artifact}) for one in (free, made))
    left_out = excluded(task, candidate, candidate, Step(workload, Contents(), derived=True), limits)
    assert (left_out is None) == fits and excluded(task, candidate, plain, Step(workload, Contents()), limits) is None


ALIAS = (
    ADD.replace("tl.load(x_ptr + at, mask=inside) +", "bounded(tl.load(x_ptr + at, mask=inside)) +")
    + """
from .shared import act as clamp

bounded = clamp
"""
)


@pytest.mark.parametrize("text", [ADD, ROWS, PRODUCT, ALIAS], ids=["add", "rows", "product", "alias"])
def test_a_draft_compiles(tmp_path: Path, text: str) -> None:
    task = drafted(tmp_path, text)
    compiler = open_compiler(as_triton(resolve_target("sm_90")))
    for one in (task.sources("triton").baseline.template, template(task)):
        key = dict(code_key(task, one, task.workloads[0]))
        assert isinstance(compiler.compile(specialise(one, one.default_config, key)), Artifact)


def test_roles_follow_pointers(tmp_path: Path) -> None:
    text = """
@triton.jit
def helper(q, at):
    tl.store(q + at, 1.0)


@triton.jit
def kernel(added, moved, passed, blocks, read, n):
    at = tl.arange(0, 16)
    tl.atomic_add(added + at, 1.0)
    pointers = moved + at
    tl.store(pointers, tl.load(pointers) + 1)
    helper(passed, at)
    block = tl.make_tensor_descriptor(blocks, [n], [1], [16])
    block.store([0], tl.load(read + at))
"""
    roles = {"added": "inout", "moved": "inout", "passed": "out", "blocks": "out", "read": "in"}
    assert read(tmp_path, text).read.facts.roles == roles


def test_files_are_read_without_importing_them(tmp_path: Path) -> None:
    here = tmp_path / "seen"
    text = ADD.replace("BLOCK=1024", "BLOCK=logger.BLOCK")
    text += f"\nopen({str(here)!r}, 'w')\n__import__('pathlib').Path({str(here)!r}).touch()\n"
    task = drafted(tmp_path, text)
    assert "logger" not in template(task).source and len(values(task)["BLOCK"]) > 3 and not here.exists()


def test_a_kernel_that_a_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PRODUCT.split("def call")[0].replace("configs=listed()", "configs=[triton.Config({'BM': 64, 'BN': 64})]")
    path = tmp_path / "model.py"
    path.write_text(f"import triton\nimport triton.language as tl\n{text}")
    spec = importlib.util.spec_from_file_location("model_of_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = list[Task]()
    monkeypatch.setattr(tuning, "tune", lambda task, **settings: found.append(task))
    constants = {"BK": 32, "GROUP": 8, "ACT": "relu"}
    tuning.tune_kernel(
        module.product,
        lambda a, b: a @ b,
        [
            {"a": np.ones((m, 512), np.float16), "b": np.ones((512, n), np.float16), **constants}
            for m, n in ((256, 128), (64, 96))
        ],
        grid=lambda META: (triton.cdiv(META["M"], META["BM"]) * triton.cdiv(META["N"], META["BN"]),),
    )
    [task] = found
    assert [one.sizes for one in task.workloads] == [{"M": 256, "K": 512, "N": 128}, {"M": 64, "K": 512, "N": 96}]
    assert by_name(task)["stride_am"].value == "K" and by_name(task)["c"].dtype == "float16"
    assert set(values(task)) == {"BM", "BN", "num_warps", "num_stages"} and "'ACT': 'relu'" in template(task).source
    assert parse(template(task).launch.grid[0]).integer({"M": 256, "N": 128, "BM": 64, "BN": 64}) == 8
    assert parse(task.sources("triton").baseline.template.launch.grid[0]).integer(task.workloads[0].sizes) == 8
    assert not task.sources("triton").opponents
    compiler = open_compiler(replace(as_triton(resolve_target("sm_90"))))
    key = dict(code_key(task, template(task), task.workloads[1]))
    assert isinstance(compiler.compile(specialise(template(task), template(task).default_config, key)), Artifact)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(TunesmithError, match="Triton kernels cannot be drafted here"):
        tuning.tune_kernel(module.product, "baseline", [{}])


HEADS = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, b_ptr, y_ptr, mask_ptr, out_ptr, seqlen, width, ratio, stride_xb, stride_xl, stride_xh, stride_xw,
           stride_bb, stride_bl, stride_bg, stride_bw, stride_mb, stride_ml, stride_ob, stride_ol, stride_oh, stride_ow,
           HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):
    at, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    cols = tl.arange(0, BLOCK)
    inside = (cols < width) & (at < seqlen)
    x = tl.load(x_ptr + batch * stride_xb + at * stride_xl + head * stride_xh + cols * stride_xw, inside)
    b = tl.load(b_ptr + batch * stride_bb + at * stride_bl + head // ratio * stride_bg + cols * stride_bw, inside)
    if HAS_MASK:
        x *= tl.load(mask_ptr + batch * stride_mb + at * stride_ml)
    tl.store(out_ptr + batch * stride_ob + at * stride_ol + head * stride_oh + cols * stride_ow, x * b, inside)


def scale(x, b, mask=None):
    batch, seqlen, heads, width = x.shape
    _, _, groups, _ = b.shape
    assert b.shape == (batch, seqlen, groups, width)
    x = x.contiguous()
    out = torch.empty_like(x)
    kernel[(seqlen, heads, batch)](
        x, b, None, mask, out, seqlen, width, heads // groups,
        x.stride(0), x.stride(1), x.stride(2), x.stride(3), b.stride(0), b.stride(1), b.stride(2), b.stride(3),
        *((mask.stride(0), mask.stride(1)) if mask is not None else (0, 0)),
        out.stride(0), out.stride(1), out.stride(2), out.stride(3), HAS_MASK=mask is not None, BLOCK=64,
    )
    return out
"""


def test_the_host_tells_shapes_strides_and_numbers_that_it_computes(tmp_path: Path) -> None:
    # A folder of this name beside the file is not Triton, as it lies in a package.
    (tmp_path / "triton").mkdir()
    for package in (tmp_path, tmp_path / "triton"):
        (package / "__init__.py").touch()
    task = draft_triton(written(tmp_path, HEADS), "kernel")[1]["task.toml"]
    assert [line for line in task.splitlines() if "stride" in line and "FILL: the value" in line] == []
    for line in (
        '{ name = "x_ptr", role = "in", dtype = "T", shape = ["batch", "seqlen", "heads", "width"] },',
        '{ name = "b_ptr", role = "in", dtype = "T", shape = ["batch", "seqlen", "groups", "width"] },',
        '{ name = "out_ptr", role = "out", dtype = "T", shape = ["batch", "seqlen", "heads", "width"] },',
        '{ name = "ratio", role = "scalar", dtype = "int32", value = "heads // groups" },',
        '{ name = "stride_bl", role = "scalar", dtype = "int32", value = "groups * width" },',
    ):
        assert line in task, task
    assert 'grid = ["seqlen", "heads", "batch"]' in task


HEADED = """
@triton.jit
def kernel(q, k, out, stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, H, N, BLOCK: tl.constexpr):
    offset = tl.program_id(1) // H * stride_qz + tl.program_id(1) % H * stride_qh  # of both arrays
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # without a bound
    products = tl.load(q + offset + at * stride_qn) * tl.load(k + offset + at * stride_kn)
    tl.store(out + tl.program_id(1) * N + at, products)


def launch(q, k, out):
    kernel[triton.cdiv(q.shape[2], 64), q.shape[0] * q.shape[1]](
        q, k, out, q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2),
        q.shape[1], q.shape[2], BLOCK=64,
    )
"""
SUMS = """
@triton.jit
def kernel(x, rows, table, sums, n, width, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + at, mask=at < n, other=0)
    value = tl.load(x + at, mask=at < n, other=0.0) * tl.load(table + row * stride + width - 1)
    tl.store(sums + tl.program_id(0), tl.sum(value, 0))


def launch(x, rows, table, sums):
    kernel[(triton.cdiv(len(x), 256),)](x, rows, table, sums, len(x), table.shape[1], table.stride(0), BLOCK=256)
"""


def test_shapes_are_what_launches_on_the_host_reach() -> None:
    files = files_of(HEADED, "kernel")
    for line in (
        '{ name = "k", role = "in", dtype = "T", shape = ["q_0", "H", "N"] },',
        '{ name = "out", role = "out", dtype = "T", shape = ["q_0 * H", "N"] },',
        '{ name = "stride_kz", role = "scalar", dtype = "int32", value = "H * N" },',
        'requires = ["N % 64 == 0"]',
    ):
        assert line in files["task.toml"], files["task.toml"]
    assert 'expression = "N % BLOCK == 0"' in files["template.toml"]


def test_a_block_that_an_array_is_made_for_is_not_tuned_and_an_index_that_is_read_is_no_size(tmp_path: Path) -> None:
    files = files_of(SUMS, "kernel")
    assert '{ name = "sums", role = "out", dtype = "T", shape = ["ceil_div(n, 256)"] },' in files["task.toml"]
    assert "'BLOCK': 256" in files["kernel.py"]
    assert "BLOCK" not in files["template.toml"]
    table = next(line for line in files["task.toml"].splitlines() if '"table"' in line)
    assert 'shape = ["table_0", "width"] },  # FILL: the shape, as no run on the host tells table_0' in table


SEARCH = (
    HEAD
    + """
@triton.jit
def kernel(x, code, out, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    low = tl.zeros([BLOCK], dtype=tl.int32)
    high = tl.full([BLOCK], COUNT - 1, dtype=tl.int32)
    for _ in range(8):
        middle = (low + high) // 2
        above = value > tl.load(code + middle)
        low = tl.where(above, middle, low)
        high = tl.where(above, high, middle)
    tl.store(out + at, low, mask=at < n)


def launch(x, code, out):
    kernel[(triton.cdiv(len(x), 256),)](x, code, out, len(x), len(code), BLOCK=256)
"""
)


def test_an_array_that_is_searched_has_no_length_by_what_a_search_reads(tmp_path: Path) -> None:
    lines = {
        name: line
        for line in files_of(SEARCH, "kernel")["task.toml"].splitlines()
        for name in ("x", "code")
        if f'name = "{name}"' in line
    }
    assert "FILL: the shape" in lines["code"] and lines["x"].endswith('shape = ["n"] },')


BRANCHES = """
import enum


class Mode(enum.IntEnum):
    UP = 4


@triton.jit
def one(x, n):
    tl.store(x + tl.program_id(0), 0.0)


@triton.jit
def kernel(
    x, bias, out, n, heads, parts, MODE: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    part = tl.arange(0, PARTS)
    at = tl.program_id(0) * heads + tl.program_id(1)
    value = tl.sum(tl.load(x + at * parts + part, mask=part < parts, other=0.0), 0) + tl.load(bias + tl.program_id(0))
    if MODE > 3:
        value += WIDE
    tl.store(out + at, value)


def launch(x, out, bias=None, parts=1, mode=Mode.UP):
    n, heads = out.shape
    wide = 2
    if x.is_contiguous():
        wide = 0
    if heads == 1:
        grid = (n,)
        one[grid](x, n)
    else:
        try:
            import faster
        except ImportError:
            grid = (n, heads)
            kernel[grid](
                x, bias, out, n, heads, parts, MODE=mode, WIDE=wide, PARTS=triton.next_power_of_2(parts), BLOCK=16
            )
"""


def test_the_host_is_followed_to_the_call_and_what_it_may_pass_is_asked(tmp_path: Path) -> None:
    files = files_of(BRANCHES, "kernel")
    text = files["task.toml"]
    assert 'launch = { grid = ["n", "heads"]' in text
    # Its default is None, and the kernel reads it in any case.
    assert '{ name = "bias", role = "in", dtype = "T", shape = ["n"] },' in text
    assert "FIXED (of baseline.py and kernel.py) has guesses: WIDE" in text
    assert "'MODE': 4" in files["kernel.py"]
    # One part is the default of the host's function alone.
    assert (
        "requires" not in text and "'PARTS': lambda args: triton.next_power_of_2(args['parts'])" in files["kernel.py"]
    )
    assert re.search(r'T = \["float32"\]  # FILL: the types of T', text)


PLACES = """
@triton.jit
def kernel(x, starts, lengths, out, sb, sh, sp, sm, sd, M, SPLIT: tl.constexpr, D: tl.constexpr):
    batch, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + batch)
    last = tl.load(starts + batch + 1)
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for m in range(first, last):
        for part in range(2):
            total += tl.load(x + batch * sb + head * sh + part * sp + (m - first) * sm + d * sd)
    split = tl.arange(0, SPLIT)
    tl.store(out + (batch * M + head) * D + d, total + tl.sum(tl.load(lengths + batch * SPLIT + split), 0))


def launch(x, starts, lengths, out):
    kernel[len(starts) - 1, out.shape[1]](
        x, starts, lengths, out, x.stride(0), x.stride(1), x.stride(2), x.stride(3), x.stride(4), out.shape[1],
        SPLIT=8, D=out.shape[2],
    )
"""


BEHIND = """
@triton.jit
def kernel(x, out, width, sn, sw, BLOCK: tl.constexpr):
    x += tl.program_id(0) * sn
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at * sw, mask=at < width, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(value, 0) * tl.load(x + width) + tl.load(x + width + 1))


def launch(x, out, width):
    n = len(x)
    kernel[(n,)](x, out, width, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(width))
"""


def test_what_runs_cannot_tell_is_asked(tmp_path: Path) -> None:
    files = files_of(PLACES, "kernel")
    lines = {line.split('"')[1]: line for line in files["task.toml"].splitlines() if line.startswith("    { name")}
    assert "FILL: the shape, as runs on the host tell 4 strides of an array apart" in lines["x"]
    assert "FILL: the value of sd" in lines["sd"]
    # The author's length of an array is no choice.
    assert "'SPLIT': 8" in files["kernel.py"] and "SPLIT" not in files["template.toml"]
    asked = PLACES.replace("lengths, out):\n    kernel", "lengths, out, split):\n    kernel").replace(
        "SPLIT=8", "SPLIT=split"
    )
    assert "FIXED (of baseline.py and kernel.py) has guesses: SPLIT" in files_of(asked, "kernel")["task.toml"]
    asked = PLACES.replace("SPLIT=8", "SPLIT=out.shape[2] // 2")
    assert "FIXED (of baseline.py and kernel.py) has guesses: SPLIT" in files_of(asked, "kernel")["task.toml"]
    four = PLACES.replace(" + part * sp", "").replace("sp, ", "").replace("x.stride(2), ", "")
    text = files_of(four.replace("stride(3)", "stride(2)").replace("stride(4)", "stride(3)"), "kernel")["task.toml"]
    # Of one length with the starts that these runs have, of another with others.
    assert re.search(r'name = "x", .* "x_2", "D"\] },  # FILL: the shape, as no run on the host tells x_2', text)
    text = files_of(BEHIND, "kernel")["task.toml"]
    # Two numbers lie behind each row, addressed without its stride.
    assert re.search(r'name = "x", .* \["n", "x_1"\] },  # FILL: the shape, as no run on the host tells x_1', text)
    assert '{ name = "sw", role = "scalar", dtype = "int32", value = "1" }' in text


TURNED = """
@triton.autotune(
    configs=[triton.Config({"ROWS": size, "COLUMNS": size}) for size in (32, 64)], key=["n"]
)
@triton.heuristics(dict(EVEN=lambda args: args["n"] % args["ROWS"] == 0))
@triton.jit
def kernel(x, out, n, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < n) & (column[None, :] < n)
    value = tl.load(x + row[:, None] * n + column[None, :], mask=inside)
    tl.store(out + column[:, None] * n + row[None, :], tl.trans(value), mask=inside)


def launch(x, out):
    n = len(x)
    kernel[lambda meta: (triton.cdiv(n, meta["ROWS"]), triton.cdiv(n, meta["COLUMNS"]))](x, out, n)
"""


def test_blocks_that_cannot_grow_alone_are_equal_or_stay(tmp_path: Path) -> None:
    files = files_of(TURNED, "kernel")
    assert 'expression = "ROWS == COLUMNS"' in files["template.toml"]
    assert '{ name = "x", role = "in", dtype = "T", shape = ["n * n"] },' in files["task.toml"], files["task.toml"]
    assert "'EVEN': lambda args: args['n'] % args['ROWS'] == 0" in files["kernel.py"]
    alone = TURNED[TURNED.index("@triton.heuristics") :].replace("x, out, n)\n", "x, out, n, ROWS=32, COLUMNS=32)\n")
    files = files_of(alone, "kernel")
    assert "'ROWS': 32, 'COLUMNS': 32" in files["kernel.py"] and "ROWS" not in files["template.toml"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "def make():\n    @triton.jit\n    def kernel(x):\n        tl.store(x, 1.0)\n",
            "is defined inside of another",
        ),
        ("@triton.jit\ndef kernel(x, **meta):\n    tl.store(x, 1.0)\n", "kernel takes any arguments, as `meta`"),
        ("@triton.jit\ndef kernel(x, n):\n    pass\n", "kernel reads or writes none of its arguments"),
    ],
)
def test_kernels_that_no_task_can_have_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(TunesmithError, match=sentence):
        draft_triton(written(tmp_path, text), None)


def test_a_pointer_of_either_way_is_of_both_arrays(tmp_path: Path) -> None:
    text = """
@triton.jit
def kernel(x, y, out, n, which):
    taken = x
    if tl.program_id(0) > which:
        taken = y
    tl.store(out + tl.program_id(0), tl.load(taken + tl.program_id(0)))


def launch(x, y, out, n, which):
    kernel[(n,)](x, y, out, n, which)
"""
    found = read(tmp_path, text)
    assert found.arrays == ["x", "y", "out"]


PACKED = (
    HEAD
    + """
@triton.jit
def kernel(pointer, packed, scale, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(pointer + at, mask=at < n).to(tl.float32)
    low = (tl.load(packed + at, mask=at < n) >> 4) & 15
    rounded = (value * tl.load(scale + at, mask=at < n)).to(tl.int8)
    tl.store(out + at, low * rounded, mask=at < n)


def launch(x, packed, scale, out):
    kernel[(triton.cdiv(len(x), 256),)](x, packed, scale, out, len(x), BLOCK=256)
"""
)


def test_bits_are_of_whole_numbers_and_what_is_rounded_may_be_a_float(tmp_path: Path) -> None:
    text = files_of(PACKED, "kernel")["task.toml"]
    types = dict(re.findall(r'name = "(\w+)", role = "\w+", dtype = "(\w+)"', text))
    assert types == {"pointer": "T", "packed": "int32", "scale": "T", "out": "T", "n": "int32"}


def test_a_draft_tells_that_its_kernel_does_not_run_on_the_host(tmp_path: Path) -> None:
    text = ADD.replace("    tl.store(", "    raise_here()\n    tl.store(", 1)
    task = files_of(text, "add")["task.toml"]
    assert "the kernel does not run on the host (NameError" in task
    assert task.count("FILL: the shape, as the kernel does not run on the host") == 3
    assert "may be tuned" not in task and '"BLOCK", values' in files_of(text, "add")["template.toml"]
    given = text.replace("launch(x, y)", "launch(x, y, block)").replace("BLOCK=1024", "BLOCK=block")
    assert "whether BLOCK may be tuned, or an array's length depends on it" in files_of(given, "add")["task.toml"]


@pytest.mark.parametrize(
    "function", ["tl.exp2", "tl.extra.libdevice.round", "tl.extra.cuda.libdevice.fast_dividef(value, value) or tl.exp"]
)
def test_other_names_of_the_languages_functions_run_on_the_host(tmp_path: Path, function: str) -> None:
    called, _, of = function.rpartition(" or ")
    name = called.partition("(")[0] or of
    used = "own(value, value)" if called else "own(value)"
    text = ADD.replace("tl.store(", f"value = tl.load(x_ptr + at, mask=inside)\n    {used}\n    tl.store(", 1)
    task = files_of(f"{text}\nown = {name}\n", "add")["task.toml"]
    assert "does not run on the host" not in task and "FILL: the shape" not in task


def test_a_name_of_the_module_is_not_pythons_of_the_same_name(tmp_path: Path) -> None:
    text = ADD.replace("tl.store(", "pow(at, at)\n    tl.store(", 1)
    files = files_of(f"{text}\nfrom elsewhere import find\n\npow = find('pow')\n", "add")
    assert "the constant pow cannot be told (it is elsewhere.find('pow'))" in files["task.toml"]
    compile(files["kernel.py"], "kernel.py", "exec")


UNKNOWN = """
def named(grid, kernel, arguments):
    return {"name": kernel.name}


@triton.jit(launch_metadata=named, debug=False)
def kernel(x, own, rows, columns, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in range(tl.program_id(1), rows, tl.num_programs(1)):
        value = tl.load(x + row * stride + at, mask=at < columns)
        tl.store(own + tl.program_id(0) * columns + at, value, mask=at < columns)
"""


def test_a_draft_without_a_grid_has_names_for_its_programs(tmp_path: Path) -> None:
    files = files_of(UNKNOWN, "kernel")
    assert '{ name = "x", role = "in", dtype = "T", shape = ["rows", "columns"] },' in files["task.toml"]
    assert '{ name = "stride", role = "scalar", dtype = "int32", value = "columns" },' in files["task.toml"]
    assert '{ name = "own", role = "out", dtype = "T", shape = ["programs_0", "columns"] },' in files["task.toml"]
    assert "FILL: the grid, here and in template.toml, for which programs_0, programs_1 stand" in files["task.toml"]
    assert "@triton.jit(debug=False)" in files["kernel.py"] and "launch_metadata" not in files["kernel.py"]
    text = ADD.replace('triton.cdiv(count, meta["BLOCK"])', "triton.next_power_of_2(count)")
    assert "for which programs_0 stand: count is not known" in files_of(text, None)["task.toml"]


LONG_NAME = f"rows_{'of_segments_' * 6}kernel"
SEGMENTS = f"""
@triton.jit
def {LONG_NAME}(x, starts, out, s_x, columns, BLOCK: tl.constexpr):
    segment, at = tl.program_id(0), tl.arange(0, BLOCK)
    for row in range(tl.load(starts + segment), tl.load(starts + segment + 1)):
        offsets = at
        for _ in range(tl.cdiv(columns, BLOCK)):
            value = tl.load(x + row * s_x + offsets, mask=offsets < columns)
            tl.atomic_add(out + segment * columns + offsets, value, mask=offsets < columns)
            offsets += BLOCK
"""


def test_rows_between_pointers_that_rise_and_strides_by_their_use(tmp_path: Path) -> None:
    files = files_of(SEGMENTS, LONG_NAME)
    for line in (
        'shape = ["x_0", "columns"] },  # FILL: the shape, as no run on the host tells x_0',
        '{ name = "starts", role = "in", dtype = "int32", shape = ["programs_0 + 1"]',
        '{ name = "out", role = "inout", dtype = "T", shape = ["programs_0", "columns"] },',
        '{ name = "s_x", role = "scalar", dtype = "int32", value = "columns" },',
    ):
        assert line in files["task.toml"], files["task.toml"]
    # A block that a loop moves does not cover the row.
    assert "columns <=" not in files["template.toml"]


MODULES = {
    "__init__": "from . import settings\nif found():\n    import triton",
    "settings": "listed = [triton.Config({'BLOCK': block}) for block in (64, 128)]",
    "parts": ADD.split("def launch")[0],
    "run": f"""from . import settings, triton
from .parts import add as add

@triton.autotune(configs=settings.listed, key=[])
{ADD.split("def launch")[0].strip().replace("def add", "def other")}
    add(x_ptr, y_ptr, out_ptr, n, BLOCK)
""",
    "host": """from .run import other

def launch(x, y):
    batch = x.size(0) if x.ndim == 2 else 1
    def grid(META):
        programs = (triton.cdiv(x.shape[-1], META["BLOCK"]), batch)
        return programs
    out = torch.empty_like(x, dtype=torch.float32)
    other[grid](x, y, out, x.shape[-1])
""",
}


def test_a_package_launches_lists_and_calls_its_kernels_elsewhere(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        written(tmp_path, text, f"{name}.py")
    task = answered(tmp_path, draft_triton(tmp_path / "run.py", "other")[1])
    assert template(task).launch.grid == ("ceil_div(n, BLOCK)", "batch") and values(task)["BLOCK"] == (32, 64, 128, 256)
    # A package of the project may pass Triton on, and the host says types.
    assert [one.dtype for one in task.arguments] == ["T", "T", "float32", "int32"]
    for body, why in (
        ("x.load([0, 0])", "run takes x as tensor descriptors"),
        ("tl.gone(out)", "cannot be compiled by the Triton that is installed .*gone"),
    ):
        with pytest.raises(TunesmithError, match=why):
            draft_triton(written(tmp_path, f"@triton.jit\ndef run(x, out):\n    tl.store(out, {body})\n"), None)
    with pytest.raises(TunesmithError, match="add is a part of other, and nothing launches it"):
        draft_triton(tmp_path / "parts.py", None)


def test_a_parameter_of_the_launch_alone_is_not_passed_to_the_kernel(tmp_path: Path) -> None:
    task = drafted(tmp_path, ADD)
    plain, workload = template(task), task.workloads[0]
    rounds = Parameter(name="ROUNDS", values=(1, 2), launch_only=True)
    changed = plain.model_copy(update={"parameters": (*plain.parameters, rounds)})
    types = dict(code_key(task, plain, workload))
    texts = [specialise(one, one.default_config, types).source for one in (plain, changed)]
    assert texts[0] == texts[1]


INTERPRETED = Path(__file__).with_name("interpreted.py")


def results(folder: Path, task: Task, sizes: dict[str, int], config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays before and after a launch of the task's template."""
    template, draw, before = task.sources("triton").templates[0], np.random.default_rng(3), dict[str, Any]()
    workload = task.workloads[0].model_copy(update={"sizes": sizes})
    config = {**template.default_config, **config}
    for one in task.arguments:
        if one.role == "scalar":
            before[one.name] = np.array(task.scalar_of(one, workload))
        else:
            shape = task.shape_of(one, workload)
            before[one.name] = draw.standard_normal(shape).astype(task.dtype_of(one, workload))
    constants = {name: np.array(value) for name, value in config.items() if name not in TRITON_OPTIONS}
    (folder / "kernel.py").write_text(template.source)
    np.savez(folder / "before.npz", **before, **constants)
    grid = ",".join(map(str, geometry(template, config, workload).grid))
    files = [str(folder / name) for name in ("kernel.py", "before.npz", "after.npz")]
    command = [sys.executable, str(INTERPRETED), files[0], template.entry, files[1], grid, files[2]]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return before, dict(np.load(folder / "after.npz"))


@pytest.mark.parametrize("config", [{"BLOCK": 512}, {"BLOCK": 2048, "num_warps": 8}])
def test_elements(tmp_path: Path, config: Config) -> None:
    before, after = results(tmp_path, drafted(tmp_path, ADD), {"n": 1500}, config)
    np.testing.assert_allclose(after["out_ptr"], before["x_ptr"] + before["y_ptr"], rtol=1e-6)


def test_rows_whose_block_a_heuristic_gives(tmp_path: Path) -> None:
    before, after = results(tmp_path, drafted(tmp_path, ROWS), {"count": 3, "columns": 100}, {})
    rows = np.minimum(before["x"], 4.0)
    np.testing.assert_allclose(after["mean"], rows.mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["y"], rows - rows.mean(axis=1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [{"BM": 32, "BN": 64, "BK": 16, "GROUP": 4}, {"BM": 64, "BN": 128, "BK": 64}])
def test_products(tmp_path: Path, config: Config) -> None:
    before, after = results(tmp_path, drafted(tmp_path, PRODUCT), {"M": 70, "N": 90, "K": 50}, config)
    expected = before["a"].astype(float) @ before["b"].astype(float)
    np.testing.assert_allclose(after["c"].astype(float), expected, rtol=2e-3, atol=2e-2)
