"""Exports for C and C++: one header with CUDA machine code and its launcher, and OpenCL sources with host code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tunesmith.graph.results.exports.package import Code, ExportError, Package, identifier
from tunesmith.graph.results.exports.python_forms import python_names, write_kernels
from tunesmith.graph.results.exports.rendering import render
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.translate import C_FUNCTIONS, to_c

OPENCL_SCALARS = {
    "bool": "cl_uchar",
    "float32": "cl_float",
    "float64": "cl_double",
    **{
        f"{sign}int{bits}": f"cl_{sign}{name}"
        for sign in ("", "u")
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    },
}


def write_header(package: Package, out: Path) -> None:
    """`<name>.hpp`: machine code, dispatch and launcher in one file for C++. Raises `ExportError`."""
    if package.backend != "cuda":
        raise ExportError(
            f"The run in {package.folder} was tuned with {package.backend}, and a header holds CUDA kernels: export it "
            "--as opencl, or tune with --backend cuda."
        )
    out.mkdir(parents=True)
    names = _names(package, "cuda")
    architectures = sorted({code.arch for kernel in package.kernels for code in kernel.codes.values() if code.cubin})
    text = render("header.hpp.j2", **names, architectures=architectures or ["no GPU"])
    (out / f"{names['name']}.hpp").write_text(text, encoding="utf-8")
    (out / "provenance.json").write_text(json.dumps(package.provenance, indent=2) + "\n", encoding="utf-8")


def write_opencl(package: Package, out: Path) -> None:
    """`<name>.h` and example.c with host code in C, and the package `<name>_opencl` for pyopencl. Raises
    `ExportError`."""
    if package.backend != "opencl":
        raise ExportError(
            f"The run in {package.folder} was tuned with {package.backend}, and this form holds OpenCL kernels: export "
            "it --as torch, cupy, header or hf-kernels, or tune with --backend opencl."
        )
    out.mkdir(parents=True)
    names = _names(package, "opencl")
    python = python_names(package, needs_given=False)
    module = f"{names['name']}_opencl"
    inner = out / module
    inner.mkdir()
    write_kernels(package, inner)
    storage = {name: kind.array.name for name, kind in DTYPES.items()}
    signature = ["queue", *(one["name"] for one in names["arrays"]), "sizes", "types=()"]
    signature += [f"{one['name']}={one['default']}" for one in names["chosen"]]
    both = {**python, **names, "storage": storage, "package": module, "rule_file": f"{module}/_dispatch.py"}
    both |= {"signature": ", ".join(signature), "returned": "event"}
    files = {
        f"{names['name']}.h": "opencl.h.j2",
        "example.c": "opencl_example.c.j2",
        f"{module}/__init__.py": "pyopencl.py.j2",
        f"test_{names['name']}.py": "opencl_test.py.j2",
    }
    for file, template in files.items():
        (out / file).write_text(render(template, **both), encoding="utf-8")
    readme = render("README.md.j2", **both, form="opencl")
    (out / "README.md").write_text(readme, encoding="utf-8")
    for path in inner.glob("*.cl"):
        shutil.copyfile(path, out / path.name)


def _names(package: Package, backend: str) -> dict[str, Any]:
    """What the templates of C forms need."""
    name = identifier(package.name)
    prefix = f"{name}_"
    combinations, codes = [], []
    for index, types in enumerate(package.combinations):
        named = package.named(types)
        launches: list[dict[str, Any]] = []
        for number, kernel in enumerate(package.kernels):
            if types not in kernel.codes:
                continue

            def text(one: str, kernel: Any = kernel, named: dict[str, str] = named) -> str:
                return to_c(kernel.text(one, named), prefix)

            grid, block = ([text(one) for one in ones] for ones in (kernel.grid, kernel.block))
            launches.append(
                {
                    "number": number,
                    "requires": [text(one) for one in kernel.requires if kernel.text(one, named) != "True"],
                    "grid": grid + ["1"] * (3 - len(grid)),
                    "block": block + ["1"] * (3 - len(block)),
                    "shared": text(kernel.shared),
                }
            )
            codes.append({"index": index, "number": number, **_code(kernel.codes[types])})
        combinations.append(
            {
                "index": index,
                "label": "_".join(types) or "all",
                "exact": package.exact(types),
                "rule": _rule(package.rule(types), prefix),
                "launches": launches,
                "element_sizes": [package.dtype(one, types).size for one in package.arrays],
            }
        )
    shared = {
        "name": name,
        "upper": name.upper(),
        "sizes": list(package.sizes),
        "kernels": package.kernels,
        "combinations": combinations,
    }
    arguments = _arguments(package, backend, prefix)
    return {
        **shared,
        "codes": codes,
        "choose": render("choose.h.j2", **shared, c_functions=C_FUNCTIONS.replace("@", prefix)),
        "summary": package.task.summary or package.name,
        "device": package.dispatch["device"],
        "driver": package.dispatch["driver"],
        "about": package.provenance,
        "entry": package.task.entry,
        "arrays": [
            {
                "name": identifier(one.name),
                "role": one.role,
                "shape": ", ".join(one.shape),
                "dims": one.shape,
                "count": " * ".join(f"({to_c(text, prefix)})" for text in one.shape),
                "dtype_name": one.dtype if one.dtype in package.types else f'"{one.dtype}"',
                "type_text": one.dtype
                if one.dtype not in package.types
                else f"{one.dtype} of {', '.join(package.task.types[one.dtype])}",
                "position": position,
            }
            for position, one in enumerate(package.arrays)
        ],
        "arguments": arguments,
        "chosen": [one for one in arguments if one["chosen"]],
        "derived": [one for one in arguments if one["derived"]],
    }


def _arguments(package: Package, backend: str, prefix: str) -> list[dict[str, Any]]:
    defaults = {one.name: value for one, value in package.scalars}
    found = []
    for position, one in enumerate(package.task.arguments):
        entry: dict[str, Any] = {"name": identifier(one.name), "position": position, "kind": "pointer"}
        entry |= {"chosen": False, "derived": False, "c_type": "", "value": "", "python_value": "", "default": ""}
        if one.role == "scalar":
            if one.dtype not in OPENCL_SCALARS:
                raise ExportError(
                    f"The task {package.name}: the scalar {one.name} is of the type {one.dtype}, which this form does "
                    "not pass; use float32."
                )
            assert one.value is not None
            chosen = one.name in defaults
            c_type = DTYPES[one.dtype].c_name("cuda") if backend == "cuda" else OPENCL_SCALARS[one.dtype]
            needed = parse(one.value).names - set(package.sizes)
            if needed:
                raise ExportError(
                    f"The task {package.name}: `{one.value}` needs {', '.join(sorted(needed))}, which is no size; this "
                    "form cannot hold the kernel."
                )
            entry |= {
                "kind": one.dtype,
                "chosen": chosen,
                "derived": not chosen,
                "c_type": c_type,
                "value": to_c(one.value, prefix),
                "python_value": one.value,
                "default": repr(defaults[one.name]) if chosen else "",
            }
        found.append(entry)
    return found


def _rule(node: dict[str, Any], prefix: str) -> dict[str, Any]:
    if "use" in node:
        return node
    return {"test": to_c(node["test"], prefix), "yes": _rule(node["yes"], prefix), "no": _rule(node["no"], prefix)}


def _code(code: Code) -> dict[str, Any]:
    source = code.source.read_text(encoding="utf-8")
    lines = [line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") for line in source.split("\n")]
    return {
        "bytes": "" if code.cubin is None else ",".join(map(str, code.cubin.read_bytes())),
        "arch": int("".join(filter(str.isdigit, code.arch)) or 0),
        "source": "\n".join(f'    "{line}\\n"' for line in lines),
        "fast_math": code.fast_math,
        "max_registers": code.max_registers,
    }
