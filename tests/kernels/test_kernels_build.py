"""What a compiler sees of a template, checked with the real compilers; the launch geometry; the cache of what was
compiled, whose entries come back whole or not at all; and the source rules: what may be given to a compiler at all."""

import multiprocessing
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiling import files_of_at_most
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import Compiler, open_compiler
from tunesmith.kernels.build.artifact import Artifact, ArtifactCache, cache_key, open_cache
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.source import Specialised, literal, specialise
from tunesmith.kernels.outcome import CompileFailed, Resources
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry, Workload, geometry
from tunesmith.kernels.spec.template import BackendName, Parameter, Template

HEADS = {"cuda": 'extern "C" __global__ void k(T* out)', "opencl": "__kernel void k(__global T* out)"}
CONFIG = {"VEC": 8, "FLAG": True, "SCALE": 0.25, "MODE": "fast", "OFFSET": -3}


def template(backend: str, source: str, **fields: Any) -> Template:
    parameters = [{"name": name, "values": [value]} for name, value in CONFIG.items()]
    named = {"name": "tiles", "backend": backend, "entry": "k", "source": source, "parameters": parameters}
    return Template.model_validate(named | {"launch": {"grid": [1], "block": [1]}, **fields})


@pytest.fixture(scope="module", params=["cuda", "opencl"])
def compiler(request: pytest.FixtureRequest) -> tuple[str, Compiler]:
    if request.param == "cuda":
        return "cuda", request.getfixturevalue("nvrtc")
    device = request.getfixturevalue("device")
    return "opencl", open_compiler(device.limits, device.index)


def compile_text(compiler: tuple[str, Compiler], source: str, types: dict[str, str], **fields: Any) -> Any:
    return compiler[1].compile(specialise(template(compiler[0], source, **fields), CONFIG, types))


def test_the_text_in_full_its_literals_and_geometry() -> None:
    made = specialise(template("cuda", "int x;\n"), CONFIG, {"T": "float16", "S": "bfloat16", "U": "bfloat16"})
    assert made.source == (
        "// tiles: specialised by Tunesmith\n"
        "#include <cuda_bf16.h>\n"
        "#include <cuda_fp16.h>\n"
        "#define S __nv_bfloat16\n"
        "#define S_IS_BFLOAT16 1\n"
        "#define T __half\n"
        "#define T_IS_FLOAT16 1\n"
        "#define U __nv_bfloat16\n"
        "#define U_IS_BFLOAT16 1\n"
        "#define FLAG 1\n"
        "#define MODE fast\n"
        "#define OFFSET -3\n"
        "#define SCALE 0.25\n"
        "#define VEC 8\n"
        '#line 1 "tiles"\n'
        "int x;\n"
    )
    assert (made.entry, made.backend, made.max_registers, made.fast_math) == ("k", "cuda", None, False)
    assert literal(Parameter(name="X", values=(2, 1, 0.5), default=1.0).start) == "1"
    assert Parameter(name="X", values=(False, True), default=True).start is True
    values: list[Any] = [True, False, 3, -3, 0.5, 1e-9, 1e30, "half2"]
    assert [literal(value) for value in values] == ["1", "0", "3", "-3", "0.5", "1e-09", "1e+30", "half2"]
    workload = Workload(name="w", sizes={"n": 1000, "d": 5}, types={"T": "float16"})
    launch = {"grid": ["ceil_div(n, VEC)", "d"], "block": ["VEC * 4"], "shared_bytes": "VEC * sizeof(T)"}
    assert geometry(template("cuda", "x", launch=launch), CONFIG, workload) == Geometry((125, 5, 1), (32, 1, 1), 16)
    launch = {"grid": ["n / VEC"], "block": [1, 2, 3]}
    assert geometry(template("cuda", "x", launch=launch), CONFIG, workload) == Geometry((125, 1, 1), (1, 2, 3), 0)
    parameters = [{"name": "VEC", "values": [8]}, {"name": "CAP", "values": [528, 2112], "launch_only": True}]
    tuned = template("cuda", "int x;\n")
    tuned = type(tuned).model_validate(tuned.model_dump() | {"parameters": parameters})
    few, many = (specialise(tuned, {"VEC": 8, "CAP": cap}, {}) for cap in (528, 2112))
    assert few.source == many.source and few.digest == many.digest and "CAP" not in few.source
    capped = tuned.model_copy(update={"max_registers": "CAP // 33"})
    assert len({specialise(capped, {"VEC": 8, "CAP": cap}, {}).digest for cap in (528, 2112)}) == 2
    with pytest.raises(ValidationError, match="CAP is launch_only, so that the source has no macro of it, but"):
        type(tuned).model_validate(tuned.model_dump() | {"source": "#if CAP > 0\n#endif\n"})


def test_every_type_compiles_and_errors_have_lines_of_the_template(compiler: tuple[str, Compiler]) -> None:
    backend, names = compiler[0], [name for name, dtype in DTYPES.items() if compiler[0] in dtype.c_names]
    checks = "".join(
        f"#if !{name}_T_IS_{name.upper()}\n#error the type is not told\n#endif\n"
        f"typedef char {name}_is_right[sizeof({name}_T) == {DTYPES[name].size} ? 1 : -1];\n"
        for name in names
    )
    source = f"{checks}{HEADS[backend].replace('T*', 'int*')} {{}}"
    answer = compile_text(compiler, source, {f"{name}_T": name for name in names})
    assert isinstance(answer, Artifact), answer
    source = f"// first line\n{HEADS[compiler[0]]} {{\n    int fine = VEC;\n    undeclared = fine;\n}}\n"
    answer = compile_text(compiler, source, {"T": "float16"})
    assert isinstance(answer, CompileFailed)
    assert re.search(r"tiles\(4\)|tiles:4:", answer.first_error), answer.first_error
    assert "undeclared" in answer.first_error


def test_what_decides_the_machine_code_decides_the_digest_and_the_key(nvrtc: Any) -> None:
    base = template("cuda", "x", max_registers="16 * VEC", fast_math="FLAG")
    made = specialise(base, CONFIG, {"T": "float32"})
    assert (made.max_registers, made.fast_math) == (128, True)
    rest = [specialise(base, {**CONFIG, "MODE": "slow"}, {"T": "float32"}), specialise(base, CONFIG, {"T": "float16"})]
    for change in ({"source": "y"}, {"entry": "k2"}, {"max_registers": "64"}, {"fast_math": "False"}):
        rest.append(specialise(base.model_copy(update=change), CONFIG, {"T": "float32"}))
    assert len({made.digest, *(other.digest for other in rest)}) == 7
    assert specialise(base, dict(reversed(CONFIG.items())), {"T": "float32"}).digest == made.digest
    assert specialise(base.model_copy(update={"max_registers": "0"}), CONFIG, {}).max_registers is None
    others = [cache_key(SOURCE, "sm_80", "nvrtc 13.0"), cache_key(SOURCE, "sm_90", "nvrtc 13.1")]
    for change in ({"source": "source "}, {"max_registers": 33}, {"fast_math": False}):
        others.append(cache_key(replace(SOURCE, **change), "sm_90", "nvrtc 13.0"))
    assert len({KEY, *others}) == 6 and cache_key(SOURCE, "sm_90", "nvrtc 13.0") == KEY
    source = HEADS["cuda"] + "{ out[threadIdx.x] = expf(out[threadIdx.x]) / out[7]; }"
    exact = compile_text(("cuda", nvrtc), source, {"T": "float32"})
    fast = compile_text(("cuda", nvrtc), source, {"T": "float32"}, fast_math="FLAG")
    assert exact.code != fast.code and len(fast.code) < len(exact.code)


SOURCE = Specialised("cuda", "k", "source", 32, True)
ARTIFACT = Artifact("cuda", "sm_90", "k", bytes(range(256)) * 40, SOURCE.digest, Resources(24, 0, None, 8), ("table",))
KEY = cache_key(SOURCE, "sm_90", "nvrtc 13.0")


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*"))


def keys(count: int) -> list[str]:
    return [cache_key(SOURCE, "sm_90", f"compiler {number}") for number in range(count)]


OF_THE_COMPILER = (
    CompileFailed("a.cu(7): catastrophic error: out of memory", ""),
    CompileFailed("the compiler gave no message", "nvcc error: internal error: assertion failed"),
)


def test_what_was_put_is_got_and_nothing_else(tmp_path: Path) -> None:
    cache, body = ArtifactCache(tmp_path), bytes(range(256)) * 100
    for failed in OF_THE_COMPILER:
        assert not cache.put(KEY, failed) and not cache.failure and cache.get(KEY) is None and entries(tmp_path) == []
    for result in (ARTIFACT, CompileFailed("a.cu(3): error", "the log\n\0 of it")):
        assert ArtifactCache(tmp_path).put(KEY, result) and ArtifactCache(tmp_path).get(KEY) == result
    assert cache.write(KEY, body) and ArtifactCache(tmp_path).read(KEY) == body
    assert cache.get(KEY) is None and entries(tmp_path) == [] and cache.read(KEY) is None
    cache, (one, other) = ArtifactCache(tmp_path), keys(2)
    cache.put(one, ARTIFACT)
    (path,) = entries(tmp_path)
    old, new = path.with_name(".old.tmp"), path.with_name(".new.tmp")
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.evict()
    assert not old.exists() and new.exists() and path.exists()
    (tmp_path / other[:2]).mkdir(exist_ok=True)
    path.rename(tmp_path / other[:2] / other)
    assert cache.get(other) is None


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_entry_is_a_miss_and_goes(tmp_path_factory: Any, place: int, byte: int, cut: bool) -> None:
    cache = ArtifactCache(tmp_path_factory.mktemp("cache"))
    cache.put(KEY, ARTIFACT)
    (path,) = entries(cache.folder)
    data = bytearray(path.read_bytes())
    place %= len(data)
    same = data[place] == byte and not cut
    data[place] = byte
    path.write_bytes(data[:place] if cut else data)
    assert cache.get(KEY) == (ARTIFACT if same else None) and path.exists() == same
    assert cache.put(KEY, ARTIFACT) and cache.get(KEY) == ARTIFACT


def test_the_least_recently_used_go_first_and_the_bound_holds(tmp_path: Path) -> None:
    names = keys(40)
    cache = ArtifactCache(tmp_path, max_bytes=20 * 11_000)
    for age, name in enumerate(names):
        cache.put(name, ARTIFACT)
        path = tmp_path / name[:2] / name
        if path.exists():
            os.utime(path, (time.time() - 1000 + age,) * 2)
        if age == 10:
            assert cache.get(names[0]) == ARTIFACT, "used again, it is the newest"
    assert len(entries(tmp_path)) < len(names), "the bound holds without being asked for"
    total = cache.evict()
    assert total <= cache.max_bytes and total == sum(path.stat().st_size for path in entries(tmp_path))
    assert cache.get(names[0]) == ARTIFACT and cache.get(names[-1]) == ARTIFACT and cache.get(names[1]) is None


def work(folder: Path, names: list[str], seed: int) -> None:
    """What one of several processes does to a folder."""
    cache = ArtifactCache(folder, max_bytes=10 * 11_000)
    for step in range(200):
        name = names[(step * 7 + seed) % len(names)]
        found = cache.get(name)
        assert found is None or found == ARTIFACT
        if found is None:
            assert cache.put(name, ARTIFACT)


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(tmp_path, keys(30), seed)) for seed in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not list(tmp_path.glob("*/.*.tmp")) and ArtifactCache(tmp_path, max_bytes=10 * 11_000).evict() <= 10 * 11_000


def test_where_it_is_and_what_cannot_be_written_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, and where the folder cannot be made."""
    cache = ArtifactCache(tmp_path)
    with files_of_at_most(1000):
        assert not cache.put(KEY, ARTIFACT)
    assert "cannot be written (File too large)" in cache.failure and cache.failure.endswith(".")
    assert entries(tmp_path) == [] and cache.get(KEY) is None
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file" / "cache")
    assert cache.get(KEY) is None and not cache.put(KEY, ARTIFACT) and cache.failure
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = open_cache({"TUNESMITH_CACHE": str(tmp_path / "mine"), "TUNESMITH_CACHE_MIB": "3"})
    assert (mine.folder, mine.max_bytes) == (tmp_path / "mine", 3 << 20)
    assert open_cache({"TUNESMITH_CACHE": "off"}) is None
    home, elsewhere = tmp_path / ".cache" / "tunesmith", Path("/somewhere/tunesmith")
    for named, folder in ((None, home), ("/somewhere", elsewhere), ("somewhere", home)):
        assert open_cache({"XDG_CACHE_HOME": named} if named else {}).folder == folder
    for names in (
        {"TUNESMITH_CACHE": "~nobody-here/cache"},
        *({"TUNESMITH_CACHE_MIB": x} for x in ("big", "0", "nan")),
    ):
        with pytest.raises(TunesmithError, match=r"^TUNESMITH_CACHE.*\.$"):
            open_cache(names)


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
    '#pragma message("built for sm_80")',
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


def test_a_header_is_refused_with_the_remedy() -> None:
    for header, remedy in (
        ("cmath", "it is not on the list of accepted headers: leave it out, or include cuda/std/cmath."),
        ("vector", "accepted headers: leave it out, or write out what the kernel needs of it."),
        ("cub/cub.cuh", "include parts of cub/block/ or cub/warp/ instead, such as cub/block/block_reduce.cuh."),
        ("cub/device/device_reduce.cuh", "it does not compile for the device alone"),
    ):
        refused = refuse_text(f"#include <{header}>", "cuda")
        assert refused is not None and remedy in refused.detail
