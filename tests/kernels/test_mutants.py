"""The programs that make mutants of kernels and judge them: edits of every kind, and both answers of a verdict."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tunesmith.actors.workers import Deadlines
from tunesmith.cli.measure import mutants
from tunesmith.cli.measure.mutations import edits
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.targets import resolve_target

SOURCE = """// for (;;) in a comment
#define STEP 64
#define TWICE(x) ((x) + (x))
#if STEP > 8
#endif
__kernel void total(__global const float* in, __global float* out, int n, int d) {
    __local float partial[STEP];
    float sum = 0.5f;
    for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * d + i));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (row >= n) return;
    out[row] = fmax(sum, partial[row & 0xff]);
}
"""


def edited(operator: str) -> set[str]:
    """The changed lines by an operator."""
    found = set()
    for edit in edits(SOURCE, ["n", "d"], "opencl", random.Random(0)):
        if edit.operator == operator:
            text = SOURCE[: edit.start] + edit.text + SOURCE[edit.end :]
            found |= {line.strip() for line in set(text.splitlines()) - set(SOURCE.splitlines())}
    return found


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("guard", "for (int i = 0; i <= d; ++i) sum += TWICE(load(in + row * d + i));"),
        ("guard", "if (0) return;"),
        ("bound", "for (int i = 0; i < d - 1; ++i) sum += TWICE(load(in + row * d + i));"),
        ("loop", "for (int i = 0; i < d; i += 2) sum += TWICE(load(in + row * d + i));"),
        ("loop", "for (int i = 0 + 1; i < d; ++i) sum += TWICE(load(in + row * d + i));"),
        ("index", "out[row + 1] = fmax(sum, partial[row & 0xff]);"),
        ("index", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * d + i - 1));"),
        ("stride", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * n + i));"),
        ("stride", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + i * d + row));"),
        ("min_max", "out[row] = fmin(sum, partial[row & 0xff]);"),
        ("mask", "out[row] = fmax(sum, partial[row & 127]);"),
        ("mask", "out[row] = fmax(sum, partial[row | 0xff]);"),
        ("constant", "float sum = (0.5f + 1.0f);"),
        ("sign", "#define TWICE(x) ((x) - (x))"),
    ],
)
def test_edits_of_each_operator(operator: str, line: str) -> None:
    assert line in edited(operator)


def test_statements_are_dropped_whole_and_declarations_and_directives_stay() -> None:
    assert edited("barrier") == {";"}
    assert {";", "for (int i = 0; i < d; ++i) ;"} == edited("statement")
    assert any("vstore_half_rte(sum" in line for line in edited("half"))
    changed = [SOURCE[edit.start : edit.end] for edit in edits(SOURCE, [], "opencl", random.Random(0))]
    assert "64" not in changed and "8" not in changed


@pytest.mark.parametrize(("backend", "least"), [("opencl", 14), ("cuda", 29)])
def test_every_kernel_has_mutants_and_a_seed_repeats_them(backend: Any, least: int) -> None:
    both = [[mutants.mutants_of(one, 3, set()) for one in mutants.kernels(backend)] for _ in range(2)]
    assert both[0] == both[1] and len(both[0]) >= least
    found = [one for of_kernel in both[0] for one in of_kernel]
    assert len({one.file for one in found}) == len(found)
    assert all(one.text != one.original.source for one in found)
    assert {one.kind for one in found} == {
        *("guard", "bound", "loop", "index", "stride", "min_max", "mask", "constant", "sign", "operand"),
        *("barrier", "statement", "half"),
    }


def of(backend: Any, kernel: str) -> list[mutants.Mutant]:
    (original,) = (one for one in mutants.kernels(backend) if one.file == kernel)
    return mutants.mutants_of(original, 0, set())


def test_mutants_are_judged_but_for_those_with_the_kernels_own_code(device: DeviceInfo) -> None:
    def with_line(found: list[mutants.Mutant], after: str) -> mutants.Mutant:
        return next(one for one in found if one.after.startswith(after))

    found = of("opencl", "silu_and_mul/baseline")
    line = mutants.answer(with_line(found, "if (col < d - 1) {"), device, Deadlines(run=60.0), "")
    assert line["verdict"] == "rejected" and mutants.counts(line) and mutants.is_killed(line), line
    first = "const int first = start + get_local_id(0) / (VEC * ITEMS), step = VEC;"
    other = with_line(of("opencl", "silu_and_mul/tiles"), first)
    assert mutants.unfit(other, device.limits, device.index) == "same code"
    line = mutants.answer(with_line(found, "float load(__global const T/ "), device, Deadlines(), "")
    assert line["reason"] == "compile_failed" and not mutants.counts(line)


def test_mutants_in_cuda_are_compiled_without_a_gpu() -> None:
    pytest.importorskip("cuda.bindings")
    limits, found = resolve_target("sm_90"), of("cuda", "transpose/baseline")
    assert mutants.unfit(next(one for one in found if one.kind == "index"), limits, 0) == ""
    assert {mutants.unfit(one, limits, 0) for one in found if one.kind == "sign"} == {"", "compile_failed"}


def test_shares_have_intervals_and_equivalent_mutants_do_not_count() -> None:
    low, high = mutants.wilson(297, 300)
    assert (round(low, 3), round(high, 3)) == (0.971, 0.997)
    kept = {"candidate": "a", "kernel": "k", "class": "guard", "verdict": "accepted", "reason": "", "printed": ""}
    killed = kept | {"candidate": "b", "verdict": "rejected", "reason": "mismatch"}
    equal = kept | {"candidate": "c", "judgement": "equivalent: no row is so long"}
    found = mutants.summary([kept, killed, equal, kept | {"candidate": "k", "class": ""}])
    assert found["rejected"].startswith("1 of 2: 50.0%") and found["survivors"] == ["a"]
    assert found["left_out"] == {"equivalent": 1} and not found["originals_not_accepted"]
