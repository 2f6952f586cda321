"""Exports for Python: a PyTorch operator, a CuPy module, and the layout of Hugging Face's `kernels`."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from tunesmith.graph.results.exports.package import ExportError, Package, identifier
from tunesmith.graph.results.exports.rendering import HERE, dispatch_module, render
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse

RUNTIME = HERE / "runtime"
TORCH_TYPES = {"float8_e4m3": "float8_e4m3fn"}
"""The names of data types in PyTorch, where they differ."""
SCALARS = frozenset(name for name in DTYPES if name in ("float64", "float32") or not DTYPES[name].is_float)


def write_torch(package: Package, out: Path) -> None:
    """A pip-installable folder with the operator `torch.ops.<name>_tuned.<name>`. Raises `ExportError`."""
    _require_cuda(package)
    module = f"{identifier(package.name)}_tuned"
    names = python_names(package) | {"package": module, "namespace": module}
    inner = out / module
    _write_operator(package, inner, names)
    _write(out / "pyproject.toml", render("pyproject.toml.j2", **names, form="torch", needs=["torch>=2.4"]))
    _write(out / "README.md", render("README.md.j2", **names, form="torch", about=package.provenance))
    _write(out / f"test_{names['function']}.py", render("torch_test.py.j2", **names, module=module, load=""))


def write_cupy(package: Package, out: Path) -> None:
    """A pip-installable folder with the function `<name>_cupy.<name>`. Raises `ExportError`."""
    _require_cuda(package)
    module = f"{identifier(package.name)}_cupy"
    storage = {name: kind.array.name for name, kind in DTYPES.items()}
    names = python_names(package)
    names |= {"package": module, "storage": storage, "signature": f"{names['defaults']}, *, dtypes=None"}
    inner = out / module
    inner.mkdir(parents=True)
    write_kernels(package, inner)
    shutil.copyfile(RUNTIME / "_nvrtc.py", inner / "_nvrtc.py")
    _write(inner / "__init__.py", render("cupy_init.py.j2", **names))
    _write(out / "pyproject.toml", render("pyproject.toml.j2", **names, form="cupy", needs=["numpy"]))
    _write(out / "README.md", render("README.md.j2", **names, form="cupy", about=package.provenance))
    _write(out / f"test_{names['function']}.py", render("cupy_test.py.j2", **names, module=module))


def write_hf_kernels(package: Package, out: Path) -> None:
    """The layout of a Hugging Face kernel repository, as its kernel requirements describe it: the operator as a Python
    kernel in the variant build/torch-cuda, with metadata.json and a card. Raises `ExportError`."""
    _require_cuda(package)
    module = identifier(package.name)
    content = hashlib.sha256(json.dumps(package.provenance, sort_keys=True).encode()).hexdigest()[:10]
    # Several versions of a kernel may be loaded side by side, so their operators need different names.
    names = python_names(package) | {"package": module, "namespace": f"_{module}_{content}"}
    variant = out / "build" / "torch-cuda"
    _write_operator(package, variant, names)
    compatible = variant / module
    compatible.mkdir()
    _write(compatible / "__init__.py", render("hf_compatible.py.j2", **names))
    architectures = sorted({code.arch for kernel in package.kernels for code in kernel.codes.values() if code.arch})
    metadata = {
        "id": names["namespace"],
        "name": module.replace("_", "-"),
        "version": 0,
        "license": "other",
        "backend": {"type": "cuda", "archs": [f"{one[3:-1]}.{one[-1]}" for one in architectures]},
        "digest": {"algorithm": "sha256", "files": _digests(variant)},
    }
    _write(variant / "metadata.json", json.dumps(metadata, indent=2) + "\n")
    _write(out / "README.md", render("README.md.j2", **names, form="hf-kernels", about=package.provenance))
    tests = out / "tests"
    tests.mkdir()
    _write(tests / f"test_{names['function']}.py", render("torch_test.py.j2", **names, module=module, load="build"))
    shutil.copyfile(package.folder / "best" / "reference.py", tests / "reference.py")


def _write_operator(package: Package, folder: Path, names: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    write_kernels(package, folder)
    for name in ("_driver.py", "_nvrtc.py"):
        shutil.copyfile(RUNTIME / name, folder / name)
    _write(folder / "__init__.py", render("torch_init.py.j2", **names))


def write_kernels(package: Package, folder: Path) -> None:
    """Sources and machine code, the table that names them, the dispatch, the reference and the provenance."""
    table: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {types: {} for types in package.combinations}
    for number, kernel in enumerate(package.kernels):
        for types, code in kernel.codes.items():
            stem = "-".join([f"kernel{number}", *types])
            shutil.copyfile(code.source, folder / f"{stem}{code.source.suffix}")
            if code.cubin is not None:
                shutil.copyfile(code.cubin, folder / f"{stem}.cubin")
            if types in table:
                table[types][number] = {
                    "entry": kernel.entry,
                    "source": f"{stem}{code.source.suffix}",
                    "cubin": None if code.cubin is None else f"{stem}.cubin",
                    "arch": code.arch,
                    "sha256": code.sha256,
                    "fast_math": code.fast_math,
                    "max_registers": code.max_registers,
                }
    _write(folder / "_kernels.py", render("kernels.py.j2", table=table))
    _write(folder / "_dispatch.py", dispatch_module(package))
    shutil.copyfile(package.folder / "best" / "reference.py", folder / "reference.py")
    _write(folder / "provenance.json", json.dumps(package.provenance, indent=2) + "\n")


def python_names(package: Package, *, needs_given: bool = True) -> dict[str, Any]:
    """What the templates of Python forms need. needs_given: a call learns its types and sizes from arrays."""
    if needs_given and not package.given:
        raise ExportError(
            f"The task {package.name} reads no array, so that a call has no device and no types to follow."
        )
    types = package.combinations[0]
    sources = {
        name: next((identifier(one.name) for one in package.given if one.dtype == name), None) for name in package.types
    }
    for name, source in sources.items():
        if needs_given and source is None:
            raise ExportError(
                f"The task {package.name}: the type {name} stands in no array that is passed, so that a call does not "
                "tell it; this form cannot hold the kernel."
            )
    scalars = {one.name: value for one, value in package.scalars}
    arrays = [_array(package, one) for one in package.arrays]
    given = [one for one in arrays if one["role"] != "out"]
    made = [one for one in arrays if one["role"] == "out"]
    arguments: list[dict[str, Any]] = []
    for position, one in enumerate(package.task.arguments):
        name = identifier(one.name)
        if one.role == "scalar":
            kind, value = package.dtype(one, types).name, "" if one.value is None else one.value
            if kind not in SCALARS or one.dtype in package.types:
                raise ExportError(
                    f"The task {package.name}: the scalar {one.name} is of the type {one.dtype}, which this form does "
                    "not pass; use float32."
                )
            chosen = one.name in scalars
            shown = repr(scalars[one.name]) if chosen else _over_sizes(package, value)
            python_type = type(scalars[one.name]).__name__ if chosen else ""
            entry = {"kind": kind, "value": shown, "chosen": chosen, "python_type": python_type, "given": False}
        else:
            entry = {"kind": "pointer", "value": "0", "chosen": False, "given": one.role != "out"}
        arguments.append({"name": name, "position": position, **entry})
    parameters = [*(one["name"] for one in given), *package.explicit_sizes]
    choices = [(identifier(one.name), value) for one, value in package.scalars]
    function = identifier(package.name)
    returned = ", ".join(one["name"] for one in made)
    schema = [
        f"Tensor(a{at}!) {one['name']}" if one["role"] == "inout" else f"Tensor {one['name']}"
        for at, one in enumerate(given)
    ]
    schema += [f"SymInt {size}" for size in package.explicit_sizes]
    schema += [f"{'float' if isinstance(value, float) else 'int'} {name}={value!r}" for name, value in choices]
    results = {0: "()", 1: "Tensor"}.get(len(made), f"({', '.join(['Tensor'] * len(made))})")
    defaults = [*parameters, *(f"{name}={value!r}" for name, value in choices)]
    described = "; ".join(f"{one['name']} [{one['shape']}] {one['role']}, {one['type_text']}" for one in arrays)
    return {
        "function": function,
        "summary": package.task.summary or package.name,
        "device": package.dispatch["device"],
        "sizes": list(package.sizes),
        "explicit_sizes": package.explicit_sizes,
        "type_names": list(package.types),
        "type_sources": sources,
        "size_sources": package.size_sources,
        "arrays": arrays,
        "given": given,
        "made": made,
        "arguments": arguments,
        "given_names": ", ".join(parameters),
        "defaults": ", ".join(defaults),
        "names": ", ".join([*parameters, *(name for name, _ in choices)]),
        "schema": f"{function}({', '.join(schema)}) -> {results}",
        "doc_signature": f"{function}({', '.join(defaults)}) -> {returned or 'None'}. {described}.",
        "torch_types": {name: TORCH_TYPES.get(name, name) for name in DTYPES if name != "bool"} | {"bool": "bool"},
        "tests": _tests(package),
        "reference": package.task.reference_name,
        "tolerances": {
            one.name: {types[0] if types else "": package.tolerance(one, types) for types in package.combinations}
            for one in package.task.outputs
        },
        "signature": ", ".join(defaults),
        "returned": returned or "None",
        "example": _example(package),
    }


def _example(package: Package) -> dict[str, Any]:
    """A call on the smallest measured shape: its sizes, types and arrays. bits: whether arrays cannot tell types."""
    shape = _tests(package)[0]
    types = tuple(shape["types"][name] for name in package.types)
    workload = package.task.workload(shape["workload"])
    arrays = [
        {
            "name": identifier(one.name),
            "role": one.role,
            "shape": package.task.shape_of(one, workload),
            "dtype": package.dtype(one, types).name,
        }
        for one in package.arrays
    ]
    bits = any(DTYPES[one].array.name != one for one in types)
    return {"sizes": shape["sizes"], "types": types, "arrays": arrays, "bits": bits}


def _array(package: Package, one: Any) -> dict[str, Any]:
    fixed = one.dtype not in package.types
    return {
        "name": identifier(one.name),
        "role": one.role,
        "rank": len(one.shape),
        "shape": ", ".join(one.shape),
        "dims": [_over_sizes(package, text) for text in one.shape],
        "dtype": f"torch.{TORCH_TYPES.get(one.dtype, one.dtype)}" if fixed else one.dtype,
        "dtype_name": f'"{one.dtype}"' if fixed else one.dtype,
        "type_text": one.dtype if fixed else f"{one.dtype} of {', '.join(package.task.types[one.dtype])}",
    }


def _over_sizes(package: Package, text: str) -> str:
    if other := parse(text).names - set(package.sizes):
        raise ExportError(
            f"The task {package.name}: `{text}` needs {', '.join(sorted(other))}, which is no size; this form cannot "
            "hold the kernel."
        )
    return text


def _tests(package: Package) -> list[dict[str, Any]]:
    """The shapes of the export's own test: the measured ones, smallest first."""
    rows = sorted(
        package.dispatch["shapes"], key=lambda row: package.task.bytes_of(package.task.workload(row["workload"]))
    )
    known = set(package.combinations)
    return [
        {
            "workload": row["workload"],
            "sizes": row["sizes"],
            "types": {name: row["types"][name] for name in package.types},
        }
        for row in rows
        if tuple(row["types"][name] for name in package.types) in known
    ][:6]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in files
    }


def _require_cuda(package: Package) -> None:
    if package.backend != "cuda":
        raise ExportError(
            f"The run in {package.folder} was tuned with {package.backend}, and this form holds CUDA kernels: export "
            "it --as opencl, or tune with --backend cuda."
        )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
