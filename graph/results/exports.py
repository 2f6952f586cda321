"""Texts of exports, made of templates: what every form has in common.

Exports for Python: a PyTorch operator, a CuPy module, and the layout of Hugging Face's `kernels`.
Exports for C and C++: one header with CUDA machine code and its launcher, and OpenCL sources with host code.
`tunesmith export`: one of the forms, written into a folder of its own.
A run's winners in the forms that other programs take: PyTorch, CuPy, C++, Hugging Face kernels, OpenCL.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tunesmith import __version__
from tunesmith.graph.outputs import require_new_folder
from tunesmith.graph.results.package import Code, ExportError, Package, identifier, write_results
from tunesmith.graph.settings import as_path
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import assignments
from tunesmith.kernels.spec.translate import C_FUNCTIONS, PYTHON_FUNCTIONS, to_c

HERE = Path(__file__).resolve().parent


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "export_templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["assignments"] = assignments
    return environment


def render(template: str, **values: Any) -> str:
    """The text of the template of a name."""
    return _environment().get_template(template).render(version=__version__, **values)


def dispatch_module(package: Package, *, runnable: bool = False) -> str:
    """The Python module that says which kernel serves a shape. runnable: also as a program."""
    combinations = []
    for index, types in enumerate(package.combinations):
        named = package.named(types)
        launches = [
            None
            if types not in kernel.codes
            else {
                "requires": [text for one in kernel.requires if (text := kernel.text(one, named)) != "True"],
                "grid": _three([kernel.text(one, named) for one in kernel.grid]),
                "block": _three([kernel.text(one, named) for one in kernel.block]),
                "shared": kernel.text(kernel.shared, named),
            }
            for kernel in package.kernels
        ]
        combinations.append(
            {
                "index": index,
                "types": types,
                "exact": package.exact(types),
                "rule": package.rule(types),
                "launches": launches,
            }
        )
    return render(
        "dispatch.py.j2",
        name=package.name,
        device=package.dispatch["device"],
        driver=package.dispatch["driver"],
        kernels=package.kernels,
        types=package.types,
        sizes=package.sizes,
        combinations=combinations,
        functions=PYTHON_FUNCTIONS.rstrip(),
        runnable=runnable,
    )


def _three(texts: list[str]) -> list[str]:
    return texts + ["1"] * (3 - len(texts))


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


def python_names(package: Package) -> dict[str, Any]:
    """What the templates of Python forms need: a call learns its types and sizes from arrays."""
    if not package.given:
        raise ExportError(
            f"The task {package.name} reads no array, so that a call has no device and no types to follow."
        )
    types = package.combinations[0]
    sources = {
        name: next((identifier(one.name) for one in package.given if one.dtype == name), None) for name in package.types
    }
    for name, source in sources.items():
        if source is None:
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
            f"The run in {package.folder} was tuned with {package.backend}, and this form holds CUDA kernels: use the "
            "files of its best/, or tune with --backend cuda."
        )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_header(package: Package, out: Path) -> None:
    """`<name>.hpp`: machine code, dispatch and launcher in one file for C++. Raises `ExportError`."""
    _require_cuda(package)
    out.mkdir(parents=True)
    names = _names(package)
    architectures = sorted({code.arch for kernel in package.kernels for code in kernel.codes.values() if code.cubin})
    text = render("header.hpp.j2", **names, architectures=architectures or ["no GPU"])
    (out / f"{names['name']}.hpp").write_text(text, encoding="utf-8")
    (out / "provenance.json").write_text(json.dumps(package.provenance, indent=2) + "\n", encoding="utf-8")


def _names(package: Package) -> dict[str, Any]:
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
    arguments = _arguments(package, prefix)
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


def _arguments(package: Package, prefix: str) -> list[dict[str, Any]]:
    defaults = {one.name: value for one, value in package.scalars}
    found = []
    for position, one in enumerate(package.task.arguments):
        entry: dict[str, Any] = {"name": identifier(one.name), "position": position, "kind": "pointer"}
        entry |= {"chosen": False, "derived": False, "c_type": "", "value": "", "python_value": "", "default": ""}
        if one.role == "scalar":
            if one.dtype not in SCALARS:
                raise ExportError(
                    f"The task {package.name}: the scalar {one.name} is of the type {one.dtype}, which this form does "
                    "not pass; use float32."
                )
            assert one.value is not None
            chosen = one.name in defaults
            c_type = DTYPES[one.dtype].c_name("cuda")
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


FORMS: Mapping[str, Callable[[Package, Path], None]] = {
    "torch": write_torch,
    "cupy": write_cupy,
    "header": write_header,
    "hf-kernels": write_hf_kernels,
    "t4": write_results,
}


def export_run(run: str | Path, form: str, out: str | Path | None = None) -> Path:
    """Writes the winners of the run in the folder `run` in the form of a name, and gives the folder.

    out: a folder that does not exist yet or is empty; left out, `exports/<form>` in the run's own, which is replaced.
    Raises `TunesmithError`; then nothing is left behind.
    """
    if form not in FORMS:
        raise ExportError(f"--as: there is no form '{form}'; choose one of {', '.join(FORMS)}.")
    run = as_path(run, "run")
    folder = run / "exports" / form if out is None else as_path(out, "--out")
    if out is not None:
        require_new_folder(folder, "--out")
    package = Package(run)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            complete = Path(made) / "export"
            FORMS[form](package, complete)
            if folder.exists():
                shutil.rmtree(folder)
            complete.rename(folder)
    except OSError as error:
        raise ExportError(f"--out: {folder} cannot be written ({error.strerror}); choose another.") from error
    return folder
