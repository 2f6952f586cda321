"""What a compiler sees of a template, checked with the real compilers, and the launch geometry."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tunesmith.kernels.backends import BoundLaunch, Compiler, open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import literal, specialise
from tunesmith.kernels.outcome import CompileFailed
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Geometry, Workload, geometry
from tunesmith.kernels.spec.template import Parameter, Template

HEADS = {"cuda": 'extern "C" __global__ void k(T* out)', "opencl": "__kernel void k(__global T* out)"}
BODY = """
{
    out[0] = (T)VEC;
    out[1] = (T)FLAG;
    out[2] = (T)(SCALE * 4);
    out[3] = (T)MODE;
    out[4] = (T)-OFFSET;
}
"""
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


def test_the_text_in_full() -> None:
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


def test_a_parameter_of_the_launch_alone_is_no_macro() -> None:
    parameters = [{"name": "VEC", "values": [8]}, {"name": "CAP", "values": [528, 2112], "launch_only": True}]
    tuned = template("cuda", "int x;\n")
    tuned = type(tuned).model_validate(tuned.model_dump() | {"parameters": parameters})
    few, many = (specialise(tuned, {"VEC": 8, "CAP": cap}, {}) for cap in (528, 2112))
    assert few.source == many.source and few.digest == many.digest and "CAP" not in few.source
    capped = tuned.model_copy(update={"max_registers": "CAP // 33"})
    assert len({specialise(capped, {"VEC": 8, "CAP": cap}, {}).digest for cap in (528, 2112)}) == 2
    with pytest.raises(ValidationError, match="CAP is launch_only, so that the source has no macro of it, but"):
        type(tuned).model_validate(tuned.model_dump() | {"source": "#if CAP > 0\n#endif\n"})


def test_literals() -> None:
    assert literal(Parameter(name="X", values=(2, 1, 0.5), default=1.0).start) == "1"
    assert Parameter(name="X", values=(False, True), default=True).start is True
    values: list[Any] = [True, False, 3, -3, 0.5, 1e-9, 1e30, "half2"]
    assert [literal(value) for value in values] == ["1", "0", "3", "-3", "0.5", "1e-09", "1e+30", "half2"]


def test_every_type_compiles(compiler: tuple[str, Compiler]) -> None:
    backend, names = compiler[0], [name for name, dtype in DTYPES.items() if compiler[0] in dtype.c_names]
    checks = "".join(
        f"#if !{name}_T_IS_{name.upper()}\n#error the type is not told\n#endif\n"
        f"typedef char {name}_is_right[sizeof({name}_T) == {DTYPES[name].size} ? 1 : -1];\n"
        for name in names
    )
    source = f"{checks}{HEADS[backend].replace('T*', 'int*')} {{}}"
    answer = compile_text(compiler, source, {f"{name}_T": name for name in names})
    assert isinstance(answer, Artifact), answer


def test_the_device_sees_the_values(device: Any, opened: Any) -> None:
    compiler = ("opencl", open_compiler(device.limits, device.index))
    modes = "#define fast 7\n"
    answer = compile_text(compiler, modes + HEADS["opencl"] + BODY, {"T": "int32"})
    assert isinstance(answer, Artifact), answer
    buffer = opened.allocate(512)
    opened.launch(BoundLaunch(opened.load(answer), Geometry((1, 1, 1), (1, 1, 1)), (buffer,)))
    opened.synchronize()
    assert opened.read(buffer)[:20].view(np.int32).tolist() == [8, 1, 1, 7, 3]


def test_error_lines_are_those_of_the_template(compiler: tuple[str, Compiler]) -> None:
    source = f"// first line\n{HEADS[compiler[0]]} {{\n    int fine = VEC;\n    undeclared = fine;\n}}\n"
    answer = compile_text(compiler, source, {"T": "float16"})
    assert isinstance(answer, CompileFailed)
    assert re.search(r"tiles\(4\)|tiles:4:", answer.first_error), answer.first_error
    assert "undeclared" in answer.first_error


def test_what_decides_the_machine_code_decides_the_digest() -> None:
    base = template("cuda", "x", max_registers="16 * VEC", fast_math="FLAG")
    made = specialise(base, CONFIG, {"T": "float32"})
    assert (made.max_registers, made.fast_math) == (128, True)
    rest = [specialise(base, {**CONFIG, "MODE": "slow"}, {"T": "float32"}), specialise(base, CONFIG, {"T": "float16"})]
    for change in ({"source": "y"}, {"entry": "k2"}, {"max_registers": "64"}, {"fast_math": "False"}):
        rest.append(specialise(base.model_copy(update=change), CONFIG, {"T": "float32"}))
    assert len({made.digest, *(other.digest for other in rest)}) == 7
    assert specialise(base, dict(reversed(CONFIG.items())), {"T": "float32"}).digest == made.digest
    assert specialise(base.model_copy(update={"max_registers": "0"}), CONFIG, {}).max_registers is None


def test_fast_math_is_passed_on(nvrtc: Any) -> None:
    source = HEADS["cuda"] + "{ out[threadIdx.x] = expf(out[threadIdx.x]) / out[7]; }"
    exact = compile_text(("cuda", nvrtc), source, {"T": "float32"})
    fast = compile_text(("cuda", nvrtc), source, {"T": "float32"}, fast_math="FLAG")
    assert exact.code != fast.code and len(fast.code) < len(exact.code)


WORKLOAD = Workload(name="w", sizes={"n": 1000, "d": 5}, types={"T": "float16"})


def test_geometry() -> None:
    launch = {"grid": ["ceil_div(n, VEC)", "d"], "block": ["VEC * 4"], "shared_bytes": "VEC * sizeof(T)"}
    assert geometry(template("cuda", "x", launch=launch), CONFIG, WORKLOAD) == Geometry((125, 5, 1), (32, 1, 1), 16)
    launch = {"grid": ["n / VEC"], "block": [1, 2, 3]}
    assert geometry(template("cuda", "x", launch=launch), CONFIG, WORKLOAD) == Geometry((125, 1, 1), (1, 2, 3), 0)
