"""A run's winners in the forms that other programs take: PyTorch, CuPy, C++, Hugging Face kernels, T4.

A form for Python holds the kernels of best/, `runtime.py` and a short wrapper from a template. The form for C++ is one
header with the machine code, the dispatch and the launch, from a template.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith import __version__
from tunesmith.graph.outputs import require_new_folder
from tunesmith.graph.results.best import RUNTIME
from tunesmith.graph.results.package import SCALARS, Binding, ExportError, Package, identifier, write_results
from tunesmith.graph.results.runtime import STORAGE_TYPES
from tunesmith.graph.settings import as_path
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import BACKENDS
from tunesmith.kernels.spec.translate import C_FUNCTIONS, to_c


def _each(items: Sequence[Binding | str], pattern: str, between: str = ", ") -> str:
    """A filter of the templates: `pattern` with each name for {0}."""
    return between.join(pattern.format(one if isinstance(one, str) else one.name) for one in items)


@cache
def _environment() -> Environment:
    loader = PackageLoader("tunesmith.graph.results", "export_templates")
    made = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    made.filters["each"] = _each
    return made


def _write(path: Path, template: str, package: Package, **values: Any) -> None:
    text = _environment().get_template(template).render(version=__version__, package=package, **values)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _signature(package: Package, name: str, form: str) -> dict[str, str]:
    """The function of a form for Python, as its templates have it. schema: the types of the operator for PyTorch."""
    given, chosen, explicit = package.given, package.chosen, package.explicit_sizes
    passed = [*(one.name for one in given), *explicit]
    defaults = [f"{one.name}={one.default!r}" for one in chosen]
    signature = ", ".join([*passed, *defaults, *(["*", "dtypes=None"] if form == "cupy" else [])])
    returned = _each(package.made, "{0}") or "None"
    arrays = "; ".join(f"{one.name} [{one.shape}] {one.role}, {one.types}" for one in package.arrays)
    tensors = (f"Tensor{f'(a{at}!)' if one.role == 'inout' else ''} {one.name}" for at, one in enumerate(given))
    scalars = (f"{type(one.default).__name__} {default}" for one, default in zip(chosen, defaults, strict=True))
    schema = ", ".join([*tensors, *(f"SymInt {size}" for size in explicit), *scalars])
    results = "Tensor" if len(package.made) == 1 else f"({', '.join(['Tensor'] * len(package.made))})"
    return {
        "passed": ", ".join(passed),
        "names": ", ".join([*passed, *(one.name for one in chosen)]),
        "signature": signature,
        "returned": returned,
        "description": f"{name}({signature}) -> {returned}. {arrays}.",
        "schema": f"{name}({schema}) -> {results}",
    }


def _write_python(form: str, package: Package, out: Path) -> None:
    """A folder with the package, its README and its own test: for `torch` pip-installable, with the operator
    `torch.ops.<name>_tuned.<name>`; for `cupy` pip-installable, with the function `<name>_cupy.<name>`; for
    `hf-kernels` in the layout of a Hugging Face kernel repository, as its kernel requirements describe it: the operator
    as a Python kernel in the variant build/torch-cuda, with metadata.json and a card. Raises `ExportError`."""
    if not package.given:
        raise ExportError(
            f"The task {package.name} reads no array, so that a call has no device and no types to follow."
        )
    for one in package.dispatch.signature["types"]:
        if one["argument"] is None:
            raise ExportError(
                f"The task {package.name}: the type {one['name']} stands in no array that is passed, so that a call "
                "does not tell it; this form cannot hold the kernel."
            )
    name, hub, library = identifier(package.name), form == "hf-kernels", "cupy" if form == "cupy" else "torch"
    module = namespace = name if hub else f"{name}_{'cupy' if form == 'cupy' else 'tuned'}"
    if hub:
        # Several versions of a kernel may be loaded side by side, so their operators need different names.
        content = hashlib.sha256(json.dumps(package.provenance, sort_keys=True).encode()).hexdigest()[:10]
        namespace = f"_{name}_{content}"
    # The example of the README is a call on the smallest measured shape.
    task, rows = package.task, {row.workload: row for row in package.dispatch.shapes}
    workload = min(map(task.workload, rows), key=task.bytes_of)
    types, passed = [rows[workload.name].types[name] for name in task.types], ("in", "inout")
    values = _signature(package, name, form) | {
        "form": form,
        "name": name,
        "module": module,
        "namespace": namespace,
        "example": [
            (identifier(one.name), task.shape_of(one, workload), DTYPES[task.dtype_of(one, workload)])
            for one in task.arguments
            if one.role in passed
        ],
        "example_sizes": workload.sizes,
        "dtypes": tuple(types) if STORAGE_TYPES.keys() & {*types} else (),
    }
    inner, tests = (out / "build" / "torch-cuda", out / "tests") if hub else (out / module, out)
    for folder in package.kernels:
        shutil.copytree(package.best / folder, inner / "kernels" / folder, ignore=shutil.ignore_patterns("launch.py"))
    for file in ("dispatch.json", "reference.py"):
        shutil.copyfile(package.best / file, inner / "kernels" / file)
    for file in ("runtime.py", f"{library}_calls.py"):
        shutil.copyfile(RUNTIME.with_name(file), inner / file)
    _write_json(inner / "provenance.json", package.provenance)
    tests.mkdir(exist_ok=True)
    _write(inner / "__init__.py", f"{library}_init.py.j2", package, **values)
    _write(out / "README.md", "README.md.j2", package, **values)
    _write(tests / f"test_{name}.py", "test.py.j2", package, **values)
    if not hub:
        _write(out / "pyproject.toml", "pyproject.toml.j2", package, **values)
        return
    (inner / module).mkdir()
    _write(inner / module / "__init__.py", "hf_compatible.py.j2", package, **values)
    _write_metadata(package, inner, namespace)


def _write_metadata(package: Package, variant: Path, identity: str) -> None:
    """metadata.json of a Hugging Face kernel, with digests of the variant's files. identity: of this version."""
    digests = {
        str(path.relative_to(variant)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in sorted(variant.rglob("*"))
        if path.is_file()
    }
    metadata = {
        "id": identity,
        "name": identifier(package.name).replace("_", "-"),
        "version": 0,
        "license": "other",
        "backend": {"type": "cuda", "archs": [f"{arch[3:-1]}.{arch[-1]}" for arch in _architectures(package)]},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    _write_json(variant / "metadata.json", metadata)


def _architectures(package: Package) -> list[str]:
    """The architectures that there is machine code for."""
    codes = [source.machine_code for kernel in package.kernels.values() for source in kernel.sources]
    return sorted({code.architecture for code in codes if code.file is not None})


def write_header(package: Package, out: Path) -> None:
    """`<name>.hpp`: machine code, dispatch and launcher in one file for C++. Raises `ExportError`."""
    name = identifier(package.name)
    for one in package.task.arguments:
        if one.role == "scalar" and one.dtype not in SCALARS:
            raise ExportError(
                f"The task {package.name}: the scalar {one.name} is of the type {one.dtype}, which this form does not "
                "pass; use float32."
            )
        if other := parse(one.value or "0").names - set(package.sizes):
            raise ExportError(
                f"The task {package.name}: `{one.value}` needs {', '.join(sorted(other))}, which is not a size; this "
                "form cannot hold the kernel."
            )
    out.mkdir(parents=True)
    _write(
        out / f"{name}.hpp",
        "header.hpp.j2",
        package,
        name=name,
        upper=name.upper(),
        architectures=_architectures(package) or ["no GPU"],
        functions=C_FUNCTIONS.replace("@", f"{name}_"),
        numbers={folder: number for number, folder in enumerate(package.kernels)},
        codes=_codes(package, lambda text: to_c(text, f"{name}_")),
        c=lambda text: to_c(text, f"{name}_"),
        c_type=lambda dtype: DTYPES[dtype].c_names["cuda"],
    )
    _write_json(out / "provenance.json", package.provenance)


def _codes(package: Package, c: Callable[[str], str]) -> list[dict[str, Any]]:
    """Each kernel for each combination of types, with what the header has of it: source as C string literals, one for
    each line, machine code as numbers, and the expressions of its launch over sizes alone, as C."""
    found = []
    for position, (folder, kernel) in enumerate(package.kernels.items()):
        for source in (one for one in kernel.sources if one.types in package.combinations):
            text = (package.best / folder / source.source).read_text(encoding="utf-8")
            text = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
            cubin, launch = source.machine_code.file, kernel.launch
            grid, block, requires, (shared,) = (
                [kernel.text(one, source.types) for one in texts]
                for texts in (launch.grid, launch.block, kernel.requires, [launch.shared_bytes])
            )
            found.append(
                {
                    "number": package.combinations.index(source.types) * len(package.kernels) + position,
                    "about": source,
                    "literal": "\n".join(f'    "{line}\\n"' for line in text.split("\n")),
                    "bytes": [] if cubin is None else list((package.best / folder / cubin).read_bytes()),
                    "requires": [c(one) for one in requires if one != "True"],
                    "grid": [c(one) for one in (*grid, "1", "1")[:3]],
                    "block": [c(one) for one in (*block, "1", "1")[:3]],
                    "shared": c(shared),
                }
            )
    return found


FORMS: Mapping[str, Callable[[Package, Path], None]] = {
    "torch": partial(_write_python, "torch"),
    "cupy": partial(_write_python, "cupy"),
    "header": write_header,
    "hf-kernels": partial(_write_python, "hf-kernels"),
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
    if form != "t4" and not BACKENDS[package.dispatch.backend].makes_cubins:
        raise ExportError(
            f"The run in {run} was tuned with {package.dispatch.backend}, and this form holds CUDA kernels: use the "
            "files of its best/, or tune with --backend cuda."
        )
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
