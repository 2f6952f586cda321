"""Reads a task from task.toml and the files beside it, and finds the tasks that ship with Tunesmith.

Every error names file, key, value and remedy. What a task means is `tunesmith.kernels.spec.task`.
"""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.files.schema_errors import explain
from tunesmith.kernels.spec.files.unfinished import require_filled
from tunesmith.kernels.spec.parameter import NAME_PATTERN
from tunesmith.kernels.spec.soundness import require_options, require_sound_task, require_sound_template
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BackendName, Template

LIBRARY = Path(__file__).resolve().parents[2] / "library"
Model = TypeVar("Model", bound=BaseModel)
_DRAFTS = "`tunesmith init` drafts a task from it"
_INSTEAD = {
    ".cu": _DRAFTS,
    ".cuh": _DRAFTS,
    ".json": f"give a task.toml; if it is a T1 file, {_DRAFTS}",
    ".cl": "give the task.toml that names this source, or write one as in docs/tasks.md",
    "template": "give a TOML file that names its source, `parameters` and `launch`",
    "": "give a task.toml",
}
"""What to do with a file that is not TOML, by its suffix."""
_PLACES = ("key ", "argument ", "workload ", "parameter ", "constraint ", "template ", "opponent ")


def library_tasks() -> dict[str, Path]:
    """Name -> task.toml of each task that ships with Tunesmith."""
    return {path.parent.name: path for path in sorted(LIBRARY.glob("*/task.toml"))}


def find_task(text: str) -> Path | None:
    """The task.toml of the task named `text` (a folder, a library task's name, or a path); None where there is none. A
    folder with a task goes before the library's task of the same name."""
    try:
        places = (Path(text, "task.toml"), library_tasks().get(text), Path(text))
        return next((path for path in places if path is not None and path.is_file()), None)
    except (OSError, ValueError):  # such as a text too long for a path
        return None


def load_task(text: str) -> Task:
    """The task named `text` (as of `find_task`); raises `TaskError`."""
    if (path := find_task(text)) is not None:
        return read_task(path)
    library = library_tasks()
    try:
        directory = Path(text).is_dir()
    except (OSError, ValueError):
        directory = False
    what = f"The folder '{text:.200}' holds no task.toml" if directory else f"There is no task '{text:.200}'"
    if near := difflib.get_close_matches(text.lower(), library, 1):
        raise TaskError(f"{what}: did you mean {near[0]}?")
    raise TaskError(f"{what}: give the path of a task.toml or one of {', '.join(library)}.")


def read_task(path: Path) -> Task:
    """Reads and validates one task.toml; raises `TaskError` or `ExpressionError`."""
    data = _toml(path)
    if {"parameters", "launch"} & data.keys() and not {"reference", "backends", "arguments"} & data.keys():
        beside = path.parent / "task.toml"
        lists = beside if beside.is_file() else "the task.toml that lists it"
        raise TaskError(f"{path} is a template and no task: give {lists} instead.")
    reference = data.get("reference")
    if not data:
        raise TaskError(f"{path} is empty: docs/tasks.md says what a task.toml holds.")
    own = {file: _text(file, path, "reference") for file in _own_reference(path, reference)}
    require_filled({path: path.read_text(encoding="utf-8-sig"), **own})
    if reference == "baseline":
        data["reference"], data["reference_name"] = "", "baseline"
        if "framework" in data:
            raise TaskError(f"{path}, key framework: the original kernel is the reference, so leave it out.")
    elif not isinstance(reference, str) or ":" not in reference:
        raise TaskError(
            f"{path}, key reference: give the function as 'FILE.py:FUNCTION', or 'baseline' for the original kernel, "
            f"not {reference!r}."
        )
    else:
        file, data["reference_name"] = reference.rsplit(":", 1)
        data["reference"] = _text(path.parent / file, path, "reference")
    backends = data.get("backends")
    if not isinstance(backends, dict) or not backends:
        raise TaskError(f"{path}: there is no [backends.cuda] or [backends.opencl]; a task needs sources for one.")
    _resolve_opponents(data, path)
    if not isinstance(types := data.get("types", {}), dict):
        raise TaskError(f'{path}, key types: give a table, such as T = ["float16", "float32"], not {types!r:.80}.')
    if not isinstance(workloads := data.get("workloads", []), list):
        raise TaskError(f"{path}, key workloads: give a list of tables ([[workloads]]), not {workloads!r:.80}.")
    # The templates have the task's `entry`; a mistake in it is told of the task, whose own check comes after theirs.
    entry = str(data.get("entry", ""))
    entry = entry if re.match(NAME_PATTERN, entry) else "kernel"
    for name, sources in backends.items():
        if name not in get_args(BackendName):
            raise TaskError(
                f"{path}, key backends.{name}: there is no such backend; they are {', '.join(get_args(BackendName))}."
            )
        if not isinstance(sources, dict):
            raise TaskError(f"{path}, key backends.{name}: give a table with `baseline` and `templates`.")
        _resolve_sources(sources, str(name), entry, path)
    for index, workload in enumerate(workloads):
        if isinstance(workload, dict):
            workload.setdefault("name", _workload_name(workload, index))
            if isinstance(given := workload.get("types", {}), dict):
                first = {name: options[0] for name, options in types.items() if isinstance(options, list) and options}
                workload["types"] = {**first, **given}
    task = _validated(Task, data, path)
    _validate_expressions(task, path)
    return task


def _own_reference(path: Path, reference: object) -> list[Path]:
    """The file of a reference, where there is one; what is wrong with it is said later."""
    file = path.parent / reference.rsplit(":", 1)[0] if isinstance(reference, str) and ":" in reference else None
    try:
        return [file] if file is not None and file.is_file() else []
    except OSError:  # such as a name too long for a file
        return []


def read_template(path: Path, backend: str, entry: str, source: str | None = None) -> Template:
    """Reads one template TOML, with `source` instead of its own if given; raises `TaskError`.

    Its `source_file` is relative to it, and may be a list of files, which become one source in their order: `source`
    then stands for the last, as the others are what several templates share.
    """
    data = _toml(path, "template")
    if {"reference", "backends", "arguments"} & data.keys():
        raise TaskError(f"{path} is a task, not a template: give a file that has `parameters` and `launch`.")
    if not {"source", "source_file"} & data.keys() and source is None:
        raise TaskError(f"{path}, key source_file: it is missing; name the file of the template's source.")
    if data.setdefault("backend", backend) != backend:
        raise TaskError(f"{path}, key backend: it is for {data['backend']!r}, but the task lists it under {backend}.")
    data.setdefault("entry", entry)
    data.setdefault("name", path.stem)
    parts = _parts(data.pop("source_file", None))
    texts = [
        _text(path.parent / str(file), path, "source_file") for file in (parts[:-1] if source is not None else parts)
    ]
    if texts or source is not None:
        data["source"] = "\n".join(texts if source is None else [*texts, source])
    return _validated(Template, data, path)


def _parts(files: object) -> list[Any]:
    """The files of a `source_file`, which names one or lists several."""
    return files if isinstance(files, list) and files else [files] if files is not None else []


def _whole(files: object, path: Path, key: str) -> str:
    """The text of a `source_file` of the file at `path`."""
    return "\n".join(_text(path.parent / str(file), path, key) for file in _parts(files))


def _resolve_sources(sources: dict[str, Any], backend: str, entry: str, path: Path) -> None:
    baseline = sources.get("baseline")
    if not isinstance(baseline, dict) or "source_file" not in baseline or "launch" not in baseline:
        raise TaskError(f"{path}, key backends.{backend}.baseline: give `source_file` and `launch` (grid and block).")
    fields = dict(baseline)
    label = fields.pop("label", "plain")
    fields["source"] = _whole(fields.pop("source_file"), path, f"backends.{backend}.baseline")
    sources["baseline"] = {
        "label": label,
        "template": {"name": "baseline", "backend": backend, "entry": entry, **fields},
    }
    files = sources.get("templates", [])
    if not isinstance(files, list):
        raise TaskError(f"{path}, key backends.{backend}.templates: give a list of template files.")
    for file in files:
        if not isinstance(file, str) or not (path.parent / file).is_file():
            raise TaskError(f"{path}, key backends.{backend}.templates: there is no file {file!r} beside it.")
    sources["templates"] = [read_template(path.parent / file, backend, entry) for file in files]
    opponents = sources.get("opponents", [])
    if not isinstance(opponents, list) or not all(isinstance(one, dict) for one in opponents):
        raise TaskError(
            f"{path}, key backends.{backend}.opponents: give a list of tables ([[backends.{backend}.opponents]])."
        )
    sources["opponents"] = [
        _kernel_opponent(one, backend, entry, path, number) for number, one in enumerate(opponents, 1)
    ]


def _kernel_opponent(given: Mapping[str, Any], backend: str, entry: str, path: Path, number: int) -> dict[str, Any]:
    """An opponent that is a kernel: what a baseline has, and a name."""
    where = f"backends.{backend}, opponent {given.get('name', number)}"
    if "source_file" not in given or "launch" not in given:
        raise TaskError(f"{path}, {where}: give `source_file` and `launch` (grid and block).")
    own = {key: given[key] for key in ("name", "label", "on_request") if key in given}
    fields = {key: value for key, value in given.items() if key not in (*own, "source_file")}
    source = _whole(given["source_file"], path, f"{where}, source_file")
    return {**own, "template": {"name": "opponent", "backend": backend, "entry": entry, "source": source, **fields}}


def _resolve_opponents(data: dict[str, Any], path: Path) -> None:
    """Replaces `call` of each opponent by the text and the name of its function."""
    opponents = data.get("opponents", [])
    if not isinstance(opponents, list) or not all(isinstance(one, dict) for one in opponents):
        raise TaskError(f"{path}, key opponents: give a list of tables ([[opponents]]), not {opponents!r:.80}.")
    for number, one in enumerate(opponents, 1):
        where, call = f"{path}, opponent {one.get('name', number)}", one.pop("call", None)
        if not isinstance(call, str) or ":" not in call:
            raise TaskError(f"{where}, key call: give the function as 'FILE.py:FUNCTION', not {call!r:.80}.")
        file, one["function"] = call.rsplit(":", 1)
        one["source"] = _text(path.parent / file, path, "opponents.call")
        try:
            ast.parse(one["source"])
        except SyntaxError as error:
            raise TaskError(
                f"{where}, key call: {file} is not valid Python (line {error.lineno}): {error.msg}."
            ) from error


def _workload_name(workload: Mapping[str, Any], index: int) -> str:
    sizes = workload.get("sizes")
    types = workload.get("types")
    if not isinstance(sizes, dict) or not sizes:
        return f"workload{index}"
    name = "x".join(str(value) for value in sizes.values())
    return "-".join([name, *(str(dtype) for dtype in types.values())]) if isinstance(types, dict) else name


def _validate_expressions(task: Task, path: Path) -> None:
    sizes = frozenset(task.size_names)
    known = sizes | frozenset(task.types) | frozenset(DTYPES)
    for workload in task.workloads:
        where = f"{path}, workload {workload.name}"
        if frozenset(workload.sizes) != sizes:
            raise TaskError(
                f"{where}: it has the sizes {', '.join(workload.sizes)}, but the first workload has "
                f"{', '.join(sorted(sizes))}; all must have the same."
            )
        for name, dtype in workload.types.items():
            if dtype not in task.types.get(name, ()):
                options = ", ".join(task.types.get(name, ())) or "none, as [types] does not list it"
                raise TaskError(f"{where}: the dtype '{dtype}' of {name} is not known; [types] allows {options}.")
        for name, size in workload.sizes.items():
            if size <= 0:
                raise TaskError(f"{where}: the size {name} = {size} is not positive.")
    texts = [("bytes", task.bytes), ("flops", task.flops)]
    texts += [(f"requires[{i}]", text) for i, text in enumerate(task.requires)]
    for argument in task.arguments:
        texts += [(f"argument {argument.name}: shape", text) for text in argument.shape]
        texts += [(f"argument {argument.name}: value", argument.value)] if argument.value else []
        texts += [(f"argument {argument.name}: values[{i}]", text) for i, text in enumerate(argument.values)]
    for key, text in texts:
        try:
            expression = parse(text)
        except ExpressionError as error:
            raise TaskError(f"{path}, {key}: {error}") from error
        expression.require(known, f"{path}, {key}")
    for workload in task.workloads:
        try:
            for argument in task.arguments:
                if argument.role == "scalar":
                    task.scalar_of(argument, workload)
                else:
                    task.shape_of(argument, workload)
            moved, done = task.bytes_of(workload), task.flops_of(workload)
            if moved <= 0 or done < 0:
                raise TaskError(
                    f"Task {task.name}, workload {workload.name}: bytes must be positive and flops not "
                    f"negative; they are {moved:g} and {done:g}."
                )
            if not task.allows(workload):
                raise TaskError(
                    f"Task {task.name}, workload {workload.name}: `requires` ({', '.join(task.requires)}) does not "
                    "hold of its sizes; correct one of them."
                )
        except TaskError as error:
            raise TaskError(f"{path}: {error}") from error
    for name, sources in task.backends.items():
        for one in sources.opponents:
            where = f"{path}, {name} opponent {one.name}"
            one.template.validate_names(sizes, frozenset(task.types), where)
            require_options(one.template, where)
        for template in (sources.baseline.template, *sources.templates):
            where = f"{path}, {name} template {template.name}"
            template.validate_names(sizes, frozenset(task.types), where)
            require_options(template, where)
            if template is not sources.baseline.template:
                require_sound_template(template, task, where)
    require_sound_task(task, str(path))


def _toml(path: Path, what: Literal["task", "template"] = "task") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        if path.suffix != ".toml":
            raise TaskError(
                f"{path} is not a {what}: {_INSTEAD.get(path.suffix if what == 'task' else what, _INSTEAD[''])}."
            ) from error
        raise TaskError(f"{path} is not valid TOML: {error}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text: save it as UTF-8.") from error
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}.") from error


def _text(file: Path, path: Path, key: str) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"{path}, key {key}: {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}, key {key}: {file} is not UTF-8 text: save it as UTF-8.") from error
    except ValueError as error:
        raise TaskError(f"{path}, key {key}: {str(file)!r} is not the name of a file: {error}.") from error
    if not text.strip():
        raise TaskError(f"{path}, key {key}: {file} is empty; write the code there, or name the file that has it.")
    return text


def _validated(model: type[Model], data: Mapping[str, Any], path: Path) -> Model:
    try:
        return model.model_validate(data)
    except ExpressionError as error:
        raise TaskError(f"{path}: {error}") from error
    except ValidationError as error:
        also = ("source_file",) if model is Template else ()
        message = explain(error, model, data, also)
        end = "" if message.endswith("?") else "."
        raise TaskError(f"{path}{', ' if message.startswith(_PLACES) else ': '}{message}{end}") from error
