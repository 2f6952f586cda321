"""The source rules: what may be given to a compiler at all."""

from __future__ import annotations

import pytest

from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.spec.template import BackendName

REFUSED = {
    "includes": [
        '#include "/etc/passwd"',
        "#include <../../x.h>",
        "#include <cuda/../../../etc/passwd>",
        "#include <vector>",
        '#include "cuda_fp16.h" "x"',
        "#include NAMED",
        "#include_next <cuda_fp16.h>",
        "#import <cuda_fp16.h>",
        '#embed "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '/* */ # /* \n */ include "/etc/passwd"',
        '%:include "/etc/passwd"',
    ],
    "file tests": ['#if __has_include("x")\n#endif', "#define HAS __has_include", "#ifdef __has_embed\n#endif"],
    "conditions": [
        "#define P(a, b) a##b\n#if P(__has_, include)(<x>)\n#endif",
        "#define P(a, b) a##b\n#define Q P(__has_, include)\n#if 1\n#elif Q(x)\n#endif",
        '#if "text"\n#endif',
    ],
    "paths": [
        'const char* x = "/etc/passwd";',
        'const char* x = "GCC dependency \\"/etc/passwd\\"";',
        'const char* x = "\\\n/etc/passwd";',
        'asm("x ../../y");',
    ],
    "line directives": ["#line 3 __FILE__"],
    "pragmas": ['_Pragma("GCC dependency")', '#pragma GCC dependency "x"', "_Pragma(TEXT)", '__pragma("x")'],
    "directives": ["#ident x", "#assert machine(x)"],
    "trigraphs": ["??=include <x>"],
    "characters": ["int x;\x00", "int\x1bx;"],
    "literals": [
        "#error don't",
        'const char* x = "open',
        "/* open",
        "int x = a'b';",
        "#if 0\ndon't\n#else\ndon't\n#endif",
        "#if 0\n#endif\ndon't",
        "#if 00\ndon't\n#endif",
        "#if 0\ndon't /* x\n#endif\n*/",
        "/*\n#if 0\n*/ don't\n#endif",
    ],
    "raw strings": ['const char* x = R"(y)";', 'auto x = u8R"(y)";'],
    "protected names": [
        "#undef __asm__",
        "#define asm x",
        '#define P(a, b) a##b\nP(_Prag, ma)("GCC warning")',
        '_Pragma("unroll")\n#define P(a, b) a##b\nP(_Prag, ma)("GCC warning")',
        '#define P(a, b) a%:%:b\n#define Q(a) P(_, a)\nQ(P(Pr, P(ag, ma)))("GCC warning")',
    ],
}
ACCEPTED = [
    "#include <cuda_fp16.h> // half",
    '#include "cuda_fp16.h" /* half */',
    "#include <cuda/std/limits>",
    "#pragma unroll 4",
    '_Pragma("unroll 8") for (;;) {}',
    "int x = 1'000'000; char c = '\\''; char d = u8'a';",
    'asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a) : "l"(b));',
    "#if defined(X) && X > 3\n#elif Y\n#endif",
    '#line 1 "base line"',
    "/* it's \"fine\" */ // don't worry",
    '// #include "/etc/passwd" and ../../x\n/* # include <stdio.h> */ int x;',
    "#define JOIN(a, b) a##b\nfloat JOIN(x, 4);",
    "x = a ? b : c;",
    '#define JOIN(a, b) a##b\n#define LOOP _Pragma("unroll")\nfloat JOIN(ma, x);',
    "#if 0\nwe don't\n#ifdef X\nnor can't \"\n#else\nit isn't\n#endif\nso we won't // don't\n#endif\nint x;",
    "#pragma OPENCL EXTENSION cl_khr_fp16 : enable",
    'asm("div.rn.f32 %0, %1, %2; // x / y" : "=f"(a) : "f"(b), "f"(c));',
]


OPENCL_REFUSED = {
    "includes": ["#include <cuda_fp16.h>"],
    "inline assembly": ['__asm__("nop");'],
    "clocks": ["__builtin_ia32_rdtsc();", "__builtin_readcyclecounter();", "ulong now = clock_read_device();"],
}


@pytest.mark.parametrize(
    ("backend", "rule", "source"),
    [
        (backend, rule, source)
        for backend, rules in (("cuda", REFUSED), ("opencl", OPENCL_REFUSED))
        for rule, found in rules.items()
        for source in found
    ],
)
def test_what_names_files_or_can_be_read_in_two_ways_is_refused(backend: BackendName, rule: str, source: str) -> None:
    refused = refuse_text(source, backend)
    assert refused is not None and (refused.reason, refused.rule) == ("forbidden_source", rule)


@pytest.mark.parametrize("source", ACCEPTED)
def test_what_kernels_need_is_accepted(source: str) -> None:
    assert refuse_text(source, "opencl" if "OPENCL" in source else "cuda") is None


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        ("cmath", "it is not on the list of accepted headers: leave it out, or include cuda/std/cmath."),
        ("vector", "accepted headers: leave it out, or write out what the kernel needs of it."),
        ("cub/cub.cuh", "include parts of cub/block/ or cub/warp/ instead, such as cub/block/block_reduce.cuh."),
        ("cub/device/device_reduce.cuh", "it does not compile for the device alone"),
    ],
)
def test_a_header_is_refused_with_the_remedy(header: str, remedy: str) -> None:
    refused = refuse_text(f"#include <{header}>", "cuda")
    assert refused is not None and remedy in refused.detail
