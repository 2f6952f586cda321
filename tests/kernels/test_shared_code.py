"""Values that a source cannot tell apart, checked with the compiler: what counts as the same is the same code."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.shared_code import stand_in, uses
from tunesmith.kernels.build.specialise import Specialised, specialise
from tunesmith.kernels.space.feasible import feasible
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import Template

HEAD = 'extern "C" __global__ void k(int* out, int x)\n'
TOKENS = (
    "P",
    "P",
    "P > 0",
    "P == 528",
    "P <= 600",
    "(",
    ")",
    "&&",
    "||",
    "!",
    "?",
    ":",
    "x",
    "+",
    "-",
    "1",
    ",",
    "<",
    ">",
    "\n",
    "/* P */",
    "// P\n",
    ";",
    "out[0] =",
    "f<1, ",
    "M(",
    "(int)",
    "=",
    "{",
    "}",
)


@pytest.fixture(scope="module")
def compiler() -> Any:
    pytest.importorskip("cuda.bindings")
    return open_compiler(resolve_target("sm_90"))


def made(source: str, **config: Any) -> Specialised:
    parameters = [{"name": name, "values": [value]} for name, value in config.items()]
    fields = {"name": "t", "backend": "cuda", "entry": "k", "source": source, "parameters": parameters}
    return specialise(Template.model_validate(fields | {"launch": {"grid": [1], "block": [1]}}), config, {})


def same(source: str, *values: Any) -> bool:
    """Whether the source counts as one for all values of P."""
    return len({made(source, P=value).digest for value in values}) == 1


@pytest.mark.parametrize(
    "body",
    [
        "out[0] = x;",
        "do { out[0]++; } while (P > 0 && x < 7);",
        "enum { WALKS = P > 0, OTHER }; out[0] = WALKS;",
        "\n#if P > 0\nout[0] = 1;\n#endif\n",
        "\n#if P == 0\nout[0] = 1;\n#elif P != 3 && P >= 5 // P\nout[0] = 2;\n#endif\n",
        "out[0] = x ? P > 0 : 7; /* P, and P again */",
        "out[0] = P\n > \n 0;",
        "const bool few = x > 2 || P <= 4; out[0] = few;",
        "if (!(P < 8)) out[0] = 2;",
    ],
)
def test_values_on_the_same_side_of_all_comparisons_are_one(compiler: Any, body: str) -> None:
    source = f"{HEAD}{{ {body} }}"
    assert same(source, 8, 9, 2112)
    codes = {compiler.compile(made(source, P=value)).code for value in (8, 9, 2112)}
    assert len(codes) == 1


@pytest.mark.parametrize("body", ["do { out[0]++; } while (P > 8 && x < 7);", "\n#if P == 9\nout[0] = 1;\n#endif\n"])
def test_values_on_different_sides_are_two(body: str) -> None:
    assert not same(f"{HEAD}{{ {body} }}", 8, 9)


@pytest.mark.parametrize(
    "body",
    [
        "out[0] = P;",
        "out[0] = P > 0 ? P : 1;",
        "out[0] = x + P > 10;",
        "out[0] = P > 0 + x;",
        "out[0] = !P > 0;",
        "out[0] = -P < 0;",
        "out[0] = P > x;",
        "out[0] = f<1, P > 0, 2>(x);",
        "out[0] = P > 0x1;",
        "out[0] = P > 010;",
        "out[0] = P > 8.5;",
        "\n#ifdef P\nout[0] = 1;\n#endif\n",
        "\n#define Q P > 0\nout[0] = Q + x;",
        "\n#define Q(a, b) a b\nout[0] = Q((P > 0), + x);",
        "\n#define Q(a) a + 1\nout[0] = Q\n(P > 0);",
        "\n#define Q(a) a + 1\nout[0] = Q( /* P */\n(P > 0, x));",
        "\n#define Q(a) #a\nout[0] = P > 0;",
        "\n#define Q(a) a##1\nout[0] = x;",
        "\n%:define Q P\nout[0] = Q;",
        "out[0] = P\\\n1 > 0 || P;",
        "\n#pragma unroll P\nfor (int i = 0; i < x; ++i) out[i] = i;",
        "\n#include <cuda_fp16.h>\nout[0] = x;",
        "out[0] = 'P' ;\"",
    ],
)
def test_what_is_not_plainly_a_comparison_tells_values_apart(body: str) -> None:
    assert not same(f"{HEAD}{{ {body} }}", 8, 9)


def test_a_name_split_over_lines_is_one_name() -> None:
    assert not same(f"{HEAD}{{ out[0] = \\\nP; }}", 8, 9)
    joined = uses("int y = GRID\\\n_CAP;")
    assert joined is not None and "GRID_CAP" in joined and "_CAP" not in joined


def test_numbers_that_are_no_ints_are_told_apart() -> None:
    source = f"{HEAD}{{ out[0] = P > 0; }}"
    assert not same(source, 1.5, 2.5)
    assert not same(source, 1 << 40, 1 << 41)
    assert same(source, True, 1)
    assert stand_in(5, None) is None and stand_in("text", frozenset()) == "unused"


def test_a_text_among_the_values_may_name_anything() -> None:
    source = f"{HEAD}{{ out[0] = Q; }}"
    assert made(source, P=1, Q=0).digest == made(source, P=2, Q=0).digest
    assert made(source, P=1, Q="P").digest != made(source, P=2, Q="P").digest


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=8))
def test_whatever_counts_as_one_compiles_to_one(compiler: Any, tokens: list[str]) -> None:
    body = " ".join(tokens)
    assume("P" in body.replace("/* P */", "").replace("// P", ""))
    head = f"template <int A, int B = 0> __device__ int f(int y) {{ return A + B + y; }}\n#define M(a) a\n{HEAD}"
    source = f"{head}{{ out[0] = {body} ; }}"
    assume(same(source, 528, 529) or same(source, 601, 2112))
    values = (528, 529) if same(source, 528, 529) else (601, 2112)
    answers = [compiler.compile(made(source, P=value)) for value in values]
    kinds = {type(answer) for answer in answers}
    assert len(kinds) == 1, answers
    if isinstance(answers[0], Artifact):
        assert answers[0].code == answers[1].code


@pytest.mark.parametrize("name", library_tasks())
def test_configurations_of_the_library_that_count_as_one_have_one_code(compiler: Any, name: str) -> None:
    task = load_task(name)
    template, workload = task.sources("cuda").templates[0], task.workloads[0]
    space = feasible(template, [workload], resolve_target("h200"))
    rng, groups = random.Random(0), dict[str, list[Specialised]]()
    for number in rng.sample(range(len(space)), min(400, len(space))):
        source = specialise(template, space.config(number), workload.types)
        groups.setdefault(source.digest, []).append(source)
    shared = [group for group in groups.values() if len(group) > 1]
    if any(parameter.name == "GRID_CAP" and len(parameter.values) > 2 for parameter in template.parameters):
        assert shared
    for group in shared[:3]:
        assert group[0].source != group[1].source
        first, second = (compiler.compile(one) for one in group[:2])
        assert first == second
