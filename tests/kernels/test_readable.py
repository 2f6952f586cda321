"""A source without its macros and without the branches that they rule out."""

from __future__ import annotations

import pytest

from tunesmith.kernels.build.source import readable


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("#define T_IS_HALF 1\n#if T_IS_HALF\na\n#elif T_IS_FLOAT\nb\n#else\nc\n#endif", "a"),
        ("#if T_IS_HALF\na\n#elif T_IS_FLOAT\nb\n#else\nc\n#endif", "c"),
        ("#define N 4\n#define M (N / 2)\n#if M > 1 && !(N == 3)\na\n#if N > 8\nb\n#endif\nc\n#endif", "a\nc"),
        ("#ifndef N\n#define N 3\n#endif\n#if defined(N) && N >= 3\na\n#endif", "a"),
        ("#define N 1\n#undef N\n#ifdef N\na\n#else\nb\n#endif", "#define N 1\n#undef N\nb"),
        # What a compiler defines decides when it compiles.
        ("#if __CUDA_ARCH__ > 800\na\n#else\nb\n#endif", "#if __CUDA_ARCH__ > 800\na\n#else\nb\n#endif"),
        ("#if 0\na\n#elif __CUDA_ARCH__ > 1\nb\n#endif", "#if __CUDA_ARCH__ > 1\nb\n#endif"),
        (
            "#ifdef CUDART\n#define N 1\n#endif\n#if N\na\n#endif",
            "#ifdef CUDART\n#define N 1\n#endif\n#if N\na\n#endif",
        ),
        ('#line 1 "x"\n#define F(x) \\\n  (x + 1)\n#include <h>\n#pragma unroll\na\n\n\n\nb', "#pragma unroll\na\n\nb"),
        ("#define W sizeof(int)\n#if W > 2\na\n#endif", "#if W > 2\na\n#endif"),
    ],
)
def test_branches_that_the_macros_rule_out_are_left_out(source: str, code: str) -> None:
    macros, found = readable(source)
    assert found == code
    moved = [line for line in source.split("\n") if line.startswith("#define") and line not in code]
    assert all(line in macros for line in moved)
