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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith import __version__
from tunesmith.graph.outputs import require_new_folder
from tunesmith.graph.results.best import RUNTIME
from tunesmith.graph.results.package import SCALARS, Code, ExportError, Package, identifier, write_results
from tunesmith.graph.results.runtime import STORAGE_TYPES
from tunesmith.graph.settings import as_path
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import BACKENDS
from tunesmith.kernels.spec.translate import C_FUNCTIONS, to_c


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tunesmith.graph.results", "export_templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _write(path: Path, template: str, package: Package, **values: Any) -> None:
    text = _environment().get_template(template).render(version=__version__, package=package, **values)
    path.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The function of a form for Python. module: the package that has it; namespace: of the PyTorch operator."""

    package: Package
    form: str
    module: str
    namespace: str = ""

    @property
    def name(self) -> str:
        return identifier(self.package.name)

    @property
    def passed(self) -> str:
        """The parameters without a default."""
        return ", ".join([*(one.name for one in self.package.given), *self.package.explicit_sizes])

    @property
    def names(self) -> str:
        return ", ".join([self.passed, *(one.name for one in self.package.chosen)])

    @property
    def signature(self) -> str:
        defaults = [self.passed, *(f"{one.name}={one.default!r}" for one in self.package.chosen)]
        return ", ".join([*defaults, *(["*", "dtypes=None"] if self.form == "cupy" else [])])

    @property
    def returned(self) -> str:
        return ", ".join(one.name for one in self.package.made) or "None"

    @property
    def description(self) -> str:
        """The signature, and each array with its shape, role and types."""
        arrays = "; ".join(f"{one.name} [{one.shape}] {one.role}, {one.types}" for one in self.package.arrays)
        return f"{self.name}({self.signature}) -> {self.returned}. {arrays}."

    @property
    def schema(self) -> str:
        """As PyTorch writes the types of an operator."""
        parameters = [
            f"Tensor(a{at}!) {one.name}" if one.role == "inout" else f"Tensor {one.name}"
            for at, one in enumerate(self.package.given)
        ]
        parameters += [f"SymInt {size}" for size in self.package.explicit_sizes]
        parameters += [f"{type(one.default).__name__} {one.name}={one.default!r}" for one in self.package.chosen]
        results = ["Tensor"] * len(self.package.made)
        shown = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"{self.name}({', '.join(parameters)}) -> {shown}"


def write_torch(package: Package, out: Path) -> None:
    """A pip-installable folder with the operator `torch.ops.<name>_tuned.<name>`. Raises `ExportError`."""
    module = f"{identifier(package.name)}_tuned"
    wrapper = Wrapper(package, "torch", module, namespace=module)
    _write_python(wrapper, out / module, out, out)
    _write(out / "pyproject.toml", "pyproject.toml.j2", package, wrapper=wrapper, needs=["torch>=2.4"])


def write_cupy(package: Package, out: Path) -> None:
    """A pip-installable folder with the function `<name>_cupy.<name>`. Raises `ExportError`."""
    wrapper = Wrapper(package, "cupy", f"{identifier(package.name)}_cupy")
    _write_python(wrapper, out / wrapper.module, out, out)
    _write(out / "pyproject.toml", "pyproject.toml.j2", package, wrapper=wrapper, needs=["numpy"])


def write_hf_kernels(package: Package, out: Path) -> None:
    """The layout of a Hugging Face kernel repository, as its kernel requirements describe it: the operator as a Python
    kernel in the variant build/torch-cuda, with metadata.json and a card. Raises `ExportError`."""
    module = identifier(package.name)
    content = hashlib.sha256(json.dumps(package.provenance, sort_keys=True).encode()).hexdigest()[:10]
    # Several versions of a kernel may be loaded side by side, so their operators need different names.
    wrapper = Wrapper(package, "hf-kernels", module, namespace=f"_{module}_{content}")
    variant = out / "build" / "torch-cuda"
    _write_python(wrapper, variant, out, out / "tests")
    (variant / module).mkdir()
    _write(variant / module / "__init__.py", "hf_compatible.py.j2", package, wrapper=wrapper)
    files = sorted(path for path in variant.rglob("*") if path.is_file())
    digests = {
        str(path.relative_to(variant)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in files
    }
    metadata = {
        "id": wrapper.namespace,
        "name": module.replace("_", "-"),
        "version": 0,
        "license": "other",
        "backend": {"type": "cuda", "archs": [f"{arch[3:-1]}.{arch[-1]}" for arch in _architectures(package)]},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _write_python(wrapper: Wrapper, inner: Path, out: Path, tests: Path) -> None:
    """The package `inner` (wrapper, runtime, kernels), the README in `out`, and the export's own test in `tests`."""
    package = wrapper.package
    _require_cuda(package)
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
    best, kernels = package.folder / "best", inner / "kernels"
    for kernel in package.kernels:
        shutil.copytree(best / kernel.folder, kernels / kernel.folder, ignore=shutil.ignore_patterns("launch.py"))
    for file in ("dispatch.json", "reference.py"):
        shutil.copyfile(best / file, kernels / file)
    shutil.copyfile(RUNTIME, inner / "runtime.py")
    _write_provenance(package, inner)
    template = "cupy_init.py.j2" if wrapper.form == "cupy" else "torch_init.py.j2"
    _write(inner / "__init__.py", template, package, wrapper=wrapper)
    # The example of the README is a call on the smallest measured shape.
    rows = [(package.task.workload(row.workload), row) for row in package.dispatch.shapes]
    workload, row = min(rows, key=lambda pair: package.task.bytes_of(pair[0]))
    example = [
        (identifier(one.name), package.task.shape_of(one, workload), DTYPES[package.task.dtype_of(one, workload)])
        for one in package.task.arguments
        if one.role in ("in", "inout")
    ]
    types = tuple(row.types[name] for name in package.types)
    dtypes = types if STORAGE_TYPES.keys() & set(types) else ()
    _write(out / "README.md", "README.md.j2", package, wrapper=wrapper, example=example, sizes=row.sizes, dtypes=dtypes)
    tests.mkdir(exist_ok=True)
    template = "cupy_test.py.j2" if wrapper.form == "cupy" else "torch_test.py.j2"
    _write(tests / f"test_{wrapper.name}.py", template, package, wrapper=wrapper)


def _require_cuda(package: Package) -> None:
    if not BACKENDS[package.backend].makes_cubins:
        raise ExportError(
            f"The run in {package.folder} was tuned with {package.backend}, and this form holds CUDA kernels: use the "
            "files of its best/, or tune with --backend cuda."
        )


def _architectures(package: Package) -> list[str]:
    """Those that the machine code is for."""
    return sorted({code.arch for kernel in package.kernels for code in kernel.codes.values() if code.cubin})


def _write_provenance(package: Package, folder: Path) -> None:
    (folder / "provenance.json").write_text(json.dumps(package.provenance, indent=2) + "\n", encoding="utf-8")


def write_header(package: Package, out: Path) -> None:
    """`<name>.hpp`: machine code, dispatch and launcher in one file for C++. Raises `ExportError`."""
    _require_cuda(package)
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
        c=lambda text: to_c(text, f"{name}_"),
        c_type=lambda dtype: DTYPES[dtype].c_name("cuda"),
        literal=_literal,
    )
    _write_provenance(package, out)


def _literal(code: Code) -> str:
    """A source as C string literals, one for each line."""
    source = code.source.read_text(encoding="utf-8")
    lines = [line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") for line in source.split("\n")]
    return "\n".join(f'    "{line}\\n"' for line in lines)


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
