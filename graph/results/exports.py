"""A run's winners in the forms that other programs take: PyTorch, CuPy, C++, Hugging Face kernels, T4.

A form for Python holds the kernels of best/, `runtime.py` and a short wrapper from a template. The form for C++ is one
header with the machine code, the dispatch and the launch, from a template. T4 has a run's measurements, for other
tuners. A run's folder may have been copied from another machine, and no device is needed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import keyword
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith import __version__
from tunesmith.graph.journal.log import Journal, RunLog, begun, objective, seconds_of
from tunesmith.graph.results.best import CHECKSUMS, RUNTIME, altered_files
from tunesmith.graph.results.runtime import STORAGE_TYPES, Kernels
from tunesmith.graph.settings import as_path, require_new_folder
from tunesmith.hw.errors import TunesmithError, refusals
from tunesmith.kernels.backends.triton.autotune import calls_of, write_cache
from tunesmith.kernels.search.tables import ConfigResult, write_t4
from tunesmith.kernels.spec.dtypes import DTYPE_NAMES, DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Argument, Task
from tunesmith.kernels.spec.template import BACKENDS
from tunesmith.kernels.spec.translate import C_FUNCTIONS, folded, to_c

SCALARS = frozenset(name for name in DTYPES if name in ("float64", "float32") or not DTYPES[name].is_float)
"""The data types of scalars that a caller may pass."""
_C_WORDS = frozenset(
    ["auto", "bool", "case", "char", "const", "default", "do", "double", "enum", "extern", "float", "goto", "inline"]
    + ["int", "long", "new", "private", "public", "register", "short", "signed", "sizeof", "static", "struct", "switch"]
    + ["template", "this", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile"]
)


class Package:
    """The winners of the run in `folder`: best/, as its own runtime reads it, with the task of the journal.

    about: dispatch.json; launches: launch.json by folder, the baseline's first; combinations: the types that there are
    kernels for; arguments: in the kernel's order, with `name` and `shape` as text for all languages and people,
    `position`, `types` for people, and `default` of a scalar that a caller may choose. A caller passes `given`, gets
    `made`, and may pass `chosen`; explicit_sizes: the sizes that no array tells. Raises `TunesmithError`.
    """

    def __init__(self, folder: Path, decorated: str = "") -> None:
        self.folder, self.best, self.decorated = folder, folder / "best", decorated
        run = begun(folder)
        self.arch = run.event.device.limits.arch
        if not (self.best / CHECKSUMS).is_file():
            raise TunesmithError(
                f"{folder} has no winners to export: it found nothing right, or has not ended (`tunesmith report`), "
                f"or best/ was removed, which `tunesmith resume {folder}` writes anew."
            )
        if changed := altered_files(self.best):
            raise TunesmithError(
                f"{self.best} holds other files than the run wrote ({', '.join(changed[:3])}), and an export holds "
                f"what was measured: `tunesmith resume {folder}` writes them anew."
            )
        kernels = Kernels(self.best)
        self.about, self.task, self.name = kernels.about, run.event.task, run.event.task.name
        self.launches = dict(sorted(kernels.launches.items(), key=lambda one: one[0] != "baseline"))
        self.sizes, self.explicit_sizes = kernels.sizes, kernels.explicit
        self.combinations = [dict(zip(kernels.types, types, strict=True)) for types in kernels.combinations]
        self.sources = [(name, source) for name, one in self.launches.items() for source in one["sources"]]
        self.arguments = [_argument(self.task, at, one) for at, one in enumerate(self.task.arguments)]
        self.arrays = [one for one in self.arguments if one["role"] != "scalar"]
        self.given = [one for one in self.arrays if one["role"] != "out"]
        self.made = [one for one in self.arrays if one["role"] == "out"]
        self.chosen = [one for one in self.arguments if one["default"] is not None]
        codes = [source["machine_code"] for _, source in self.sources if "machine_code" in source]
        codes = [code for code in codes if code["file"] is not None]
        self.architectures = sorted({code["architecture"] for code in codes})
        self.provenance = {
            **{key: value for key, value in self.about.items() if key != "signature"},
            "summary": self.task.summary,
            "tunesmith": __version__,
            # An ISO date, and the commit of the task's files, or empty.
            "tuned_at": datetime.fromtimestamp(run.at, UTC).isoformat(timespec="seconds"),
            "commit": run.event.origin.commit,
            "command": run.event.origin.command,
            "machine_code_is_what_was_measured": bool(codes) and all(code["measured"] for code in codes),
            "kernels": [
                {"kernel": name, "template": one["template"], "config": one["config"]}
                for name, one in self.launches.items()
            ],
        }

    def rule(self, types: Mapping[str, str], node: dict[str, Any] | None = None) -> dict[str, Any]:
        """The rule of dispatch.json for one combination of types, over sizes alone."""
        node = node or self.about["rule"]
        if "test" not in node:
            return node
        test = folded(node["test"], {**DTYPE_NAMES, **types})
        if test in ("True", "False"):
            return self.rule(types, node["yes" if test == "True" else "no"])
        return {"test": test, "yes": self.rule(types, node["yes"]), "no": self.rule(types, node["no"])}


def _argument(task: Task, position: int, one: Argument) -> dict[str, Any]:
    """An argument as the templates have it."""
    default, types = None, one.dtype
    if one.dtype in task.types:
        types = f"{one.dtype} of {', '.join(task.types[one.dtype])}"
    # A caller may choose scalars that do not depend on sizes.
    if one.value is not None and one.dtype in SCALARS and not parse(one.value).names:
        number = parse(one.value).number({})
        default = float(number) if DTYPES[one.dtype].is_float else int(number)
    about = {"name": identifier(one.name), "position": position, "role": one.role, "shape": ", ".join(one.shape)}
    return {**about, "dtype": one.dtype, "types": types, "value": one.value or "", "default": default}


def identifier(text: str) -> str:
    """`text` as a name that Python, C and C++ take."""
    name = re.sub(r"\W", "_", text)
    return f"{name}_" if keyword.iskeyword(name) or name in _C_WORDS else name


def _each(items: Sequence[Mapping[str, Any] | str], pattern: str, between: str = ", ") -> str:
    """A filter of the templates: `pattern` with each name for {0}."""
    return between.join(pattern.format(one if isinstance(one, str) else one["name"]) for one in items)


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
    passed = [*(one["name"] for one in given), *explicit]
    defaults = [f"{one['name']}={one['default']!r}" for one in chosen]
    signature = ", ".join([*passed, *defaults, *(["*", "dtypes=None"] if form == "cupy" else [])])
    returned = _each(package.made, "{0}") or "None"
    arrays = "; ".join(f"{one['name']} [{one['shape']}] {one['role']}, {one['types']}" for one in package.arrays)
    tensors = (f"Tensor{f'(a{at}!)' if one['role'] == 'inout' else ''} {one['name']}" for at, one in enumerate(given))
    scalars = (f"{type(one['default']).__name__} {default}" for one, default in zip(chosen, defaults, strict=True))
    schema = ", ".join([*tensors, *(f"SymInt {size}" for size in explicit), *scalars])
    results = "Tensor" if len(package.made) == 1 else f"({', '.join(['Tensor'] * len(package.made))})"
    return {
        "passed": ", ".join(passed),
        "names": ", ".join([*passed, *(one["name"] for one in chosen)]),
        "signature": signature,
        "returned": returned,
        "description": f"{name}({signature}) -> {returned}. {arrays}.",
        "schema": f"{name}({schema}) -> {results}",
    }


def _write_python(form: str, package: Package, out: Path) -> None:
    """A folder with the package, its README and its own test: for `torch` pip-installable, with the operator
    `torch.ops.<name>_tuned.<name>`; for `cupy` pip-installable, with the function `<name>_cupy.<name>`; for
    `hf-kernels` in the layout of a Hugging Face kernel repository, as its kernel requirements describe it: the operator
    as a Python kernel in the variant build/torch-cuda, with metadata.json and a card. Raises `TunesmithError`."""
    if not package.given:
        raise TunesmithError(
            f"The task {package.name} reads no array, so that a call has no device and no types to follow."
        )
    for one in package.about["signature"]["types"]:
        if one["argument"] is None:
            raise TunesmithError(
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
    task, rows = package.task, {row["workload"]: row for row in package.about["shapes"]}
    workload = min(map(task.workload, rows), key=task.bytes_of)
    types, passed = [rows[workload.name]["types"][name] for name in task.types], ("in", "inout")
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
    for folder in package.launches:
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
    if hub:
        _write_metadata(package, inner, namespace)
    else:
        _write(out / "pyproject.toml", "pyproject.toml.j2", package, **values)


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
        "backend": {"type": "cuda", "archs": [f"{arch[3:-1]}.{arch[-1]}" for arch in package.architectures]},
        "digest": {"algorithm": "sha256", "files": digests},
    }
    _write_json(variant / "metadata.json", metadata)


def _write_header(package: Package, out: Path) -> None:
    """`<name>.hpp`: machine code, dispatch and launcher in one file for C++. Raises `TunesmithError`."""
    name = identifier(package.name)
    for one in package.arguments:
        if one["role"] == "scalar" and one["dtype"] not in SCALARS:
            raise TunesmithError(
                f"The task {package.name}: the scalar {one['name']} is of the type {one['dtype']}, which this form "
                "does not pass; use float32."
            )
        if other := parse(one["value"] or "0").names - set(package.sizes):
            raise TunesmithError(
                f"The task {package.name}: `{one['value']}` needs {', '.join(sorted(other))}, which is not a size; "
                "this form cannot hold the kernel."
            )
    out.mkdir(parents=True)
    numbers = {folder: number for number, folder in enumerate(package.launches)}
    _write(
        out / f"{name}.hpp",
        "header.hpp.j2",
        package,
        name=name,
        upper=name.upper(),
        functions=C_FUNCTIONS.replace("@", f"{name}_"),
        numbers=numbers,
        codes=[_code(package, f"{name}_", numbers[folder], folder, source) for folder, source in package.sources],
        c=lambda text: to_c(text, f"{name}_"),
        c_type=lambda dtype: DTYPES[dtype].c_names["cuda"],
    )
    _write_json(out / "provenance.json", package.provenance)


def _code(package: Package, prefix: str, position: int, folder: str, source: dict[str, Any]) -> dict[str, Any]:
    """A kernel for one combination of types as the header has it: source as C string literals, one for each line,
    machine code as numbers, and the expressions of its launch over sizes alone, as C."""
    about, types = package.launches[folder], source["types"]
    launch, cubin = about["launch"], source["machine_code"]["file"]
    values = {**DTYPE_NAMES, **types, **about["config"]}
    grid, block, shared, requires = (
        [to_c(one, prefix) for one in (folded(text, values) for text in texts) if one != "True"]
        for texts in (launch["grid"], launch["block"], [launch["shared_bytes"]], about["requires"])
    )
    text = (package.best / folder / source["source"]).read_text(encoding="utf-8")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return {
        "number": package.combinations.index(types) * len(package.launches) + position,
        "about": source,
        "arch": source["machine_code"].get("architecture", "sm_0")[3:],
        "literal": "\n".join(f'    "{line}\\n"' for line in text.split("\n")),
        "bytes": [] if cubin is None else list((package.best / folder / cubin).read_bytes()),
        "requires": requires,
        "grid": [*grid, "1", "1"][:3],
        "block": [*block, "1", "1"][:3],
        "shared": shared[0],
    }


def read_results(run: Path) -> dict[str, list[ConfigResult]]:
    """The results of the run in the folder `run` for `<task>-<template>.json`, of each template that was evaluated.

    `time` is that of a launch in milliseconds, `times` has one for each tuned workload; of several, `time` is the
    weighted geometric mean, which the search minimises up to a constant factor. Evaluations on some workloads
    only are left out. Raises `TunesmithError`.
    """
    found: dict[str, list[ConfigResult]] = {}
    with Journal(run, create=False, reading=True) as journal:
        log = RunLog(journal)
        task, names, weights = log.started.task, list(log.baseline_seconds or {}), log.started.task.weights
        for evaluation in log.evaluations():
            value = objective(evaluation, names, dict.fromkeys(names, 1e-3), weights)
            if value is None and evaluation.failure is None:
                continue
            seconds = {} if value is None else seconds_of(evaluation)
            record = ConfigResult(
                config=evaluation.config,
                time=value,
                failure=evaluation.failure.kind if evaluation.failure is not None else None,
                times=tuple(seconds[name] * 1e3 for name in names if name in seconds),
                compile_time=evaluation.compile_seconds * 1e3,
                benchmark_time=evaluation.lane_seconds * 1e3,
            )
            template = log.template(evaluation.template).name
            found.setdefault(f"{identifier(task.name)}-{identifier(template)}.json", []).append(record)
    if not found:
        raise TunesmithError(f"{run} has no evaluation on all its workloads to export.")
    return found


def _write_results(results: Mapping[str, list[ConfigResult]], out: Path) -> None:
    out.mkdir(parents=True)
    for file, records in results.items():
        write_t4(out / file, records)


def _write_triton_cache(package: Package, out: Path) -> None:
    """Files of Triton's autotune cache. Raises `TunesmithError`."""
    calls = calls_of(package.task, package.about, package.best)
    if notes := write_cache(package.decorated, package.arch, calls, out):
        (out / "notes.txt").write_text("".join(f"{note}\n" for note in notes), encoding="utf-8")


FORMS: Mapping[str, Callable[[Any, Path], None]] = {
    "torch": partial(_write_python, "torch"),
    "cupy": partial(_write_python, "cupy"),
    "header": _write_header,
    "hf-kernels": partial(_write_python, "hf-kernels"),
    "t4": _write_results,
    "triton-cache": _write_triton_cache,
}


def export_run(run: str | Path, form: str, out: str | Path | None = None, kernel: str = "") -> Path:
    """Writes the winners of the run in the folder `run` in the form of this name, and returns the folder.

    out: a new or empty folder; left out, `exports/<form>` in the run's own, which is replaced. kernel: FILE.py:NAME for
    `triton-cache`. Raises `TunesmithError`, and leaves nothing behind then."""
    if form not in FORMS:
        raise TunesmithError(f"--as: there is no form '{form}'; choose one of {', '.join(FORMS)}.")
    run = as_path(run, "run")
    folder = run / "exports" / form if out is None else as_path(out, "--out")
    if out is not None:
        require_new_folder(folder, "--out")
    content = read_results(run) if form == "t4" else Package(run, kernel)
    held = "triton" if form == "triton-cache" else "cuda"
    if isinstance(content, Package) and (backend := content.about["backend"]) != held:
        raise TunesmithError(
            f"The run in {run} was tuned with {backend}, and this form holds {BACKENDS[held].language} kernels: use the"
            f" files of its best/, or tune with --backend {held}."
        )
    with refusals(f"--out: {folder} cannot be written", "choose another"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            complete = Path(made) / "export"
            FORMS[form](content, complete)
            if folder.exists():
                shutil.rmtree(folder)
            complete.rename(folder)
    return folder
