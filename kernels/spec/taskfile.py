"""Lines of a drafted task that are still to be filled in: each carries a comment that begins with `# FILL:`.

Owns the mark and the sentence; who writes such lines is `tunesmith.kernels.rewrite.draft`.

What pydantic finds wrong with a file, as one sentence in the file's own terms.
Reads a task from task.toml and the files beside it, and finds the tasks that ship with Tunesmith.
A candidate as a user names it: a source or a template file, and a configuration in JSON.
Files that describe tasks: task.toml and the files it names, a candidate beside a task, drafts that are not finished,
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import NAME_PATTERN, BackendName, Config, Template
from tunesmith.kernels.spec.validation import require_options, require_sound_task, require_sound_template

MARK = "# FILL:"
_MARKED = re.compile(rf"{MARK}[ \t]*(.*)")


def require_filled(files: Mapping[Path, str]) -> None:
    """Raises `TaskError` for the first line of `files`, texts by their paths, that is still to be filled in."""
    lines = [(path, at, line) for path, text in files.items() for at, line in enumerate(text.splitlines(), 1)]
    marked = [(path, number, _MARKED.search(line)) for path, number, line in lines]
    left = [(path, number, found.group(1).rstrip(". ")) for path, number, found in marked if found is not None]
    if left:
        (path, number, what), more = left[0], len(left) - 1
        others = f" ({more} more line{'s' if more > 1 else ''} after it)" if more else ""
        raise TaskError(
            f"{path}, line {number}, is still to be filled in: {what}; then delete its comment `{MARK} ...`{others}."
        )


SINGULAR = {
    "arguments": "argument",
    "workloads": "workload",
    "parameters": "parameter",
    "constraints": "constraint",
    "templates": "template",
    "opponents": "opponent",
}
PATTERNS = {
    r"^[A-Za-z_][A-Za-z0-9_]{0,63}$": "use letters, digits and _ only, not a digit first, and at most 64 of them",
    r"^[^\x00-\x1f\"\\/]{1,80}$": "use 1 to 80 characters, without quotes, slashes and control characters",
}
EXPECTED = {
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "string_type": "give text in quotes",
    "dict_type": "give a table of keys and values",
    "model_type": "give a table of keys and values",
    "model_attributes_type": "give a table of keys and values",
    "tuple_type": "give a list",
    "list_type": "give a list",
    "none_required": "leave it out",
}
TAGS = frozenset({"bool", "int", "float", "str", "none"})
"""What pydantic puts behind a place, for each type that a value may have."""


def explain(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], also: Sequence[str] = ()) -> str:
    """The first mistake of `error` in `data`, which `model` refused, and how many more there are. also: keys that the
    file may have besides the model's. No full stop at the end."""
    found = error.errors(include_url=False)
    # A misspelled key is both unknown and missing; the spelling is what there is to fix.
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    places = {_place(one["loc"]) for one in found}
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    if first["type"] == "extra_forbidden":
        *outer, wrong = first["loc"]
        known = [*(_fields(model, outer) or ()), *(() if outer else also)]
        where = _where(outer, data)
        return f"{where}{': ' if where else ''}{unknown_key(str(wrong), known)}{more}"
    place = _place(first["loc"])
    where = _where(place, data)
    told = _choice([one for one in found if _place(one["loc"]) == place]) or sentence(first)
    return f"{where}{': ' if where else ''}{told}{more}"


def _choice(found: Sequence[Any]) -> str:
    """What a value has to be that may be of several types, from the mistake that it is for each; else empty."""
    kinds = dict.fromkeys(one["type"] for one in found)
    wanted = list(dict.fromkeys(EXPECTED[kind].removeprefix("give ") for kind in kinds if kind in EXPECTED))
    if len(wanted) < 2 or len(wanted) < len(kinds):
        return ""
    return f"give {', '.join(wanted[:-1])} or {wanted[-1]}, not {found[0]['input']!r:.80}"


def _place(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    place = list(loc)
    while len(place) > 1 and place[-1] in TAGS and isinstance(place[-2], int | str):
        place.pop()
    return tuple(place)


def unknown_key(wrong: str, known: Sequence[str]) -> str:
    """That there is no such key, and the one that was meant or those there are. No full stop at the end."""
    close = difflib.get_close_matches(wrong, known, 1)
    if close:
        return f"unknown key '{wrong}'; did you mean '{close[0]}'?"
    return f"unknown key '{wrong}'; the keys are {', '.join(known)}" if known else f"unknown key '{wrong}'"


def sentence(one: Any) -> str:
    """What one of pydantic's errors asks for, without the place and a full stop."""
    kind, context, value = one["type"], one.get("ctx") or {}, one["input"]
    shown = f", not {value!r:.80}"
    match kind:
        case "value_error":
            return str(one["msg"]).removeprefix("Value error, ")
        case "missing":
            return "it is missing; add it"
        case "too_short" | "string_too_short":
            what = "the list is" if kind == "too_short" else "the text is"
            return f"{what} empty" if not value else f"give at least {context.get('min_length')} items{shown}"
        case "too_long" | "string_too_long":
            unit = "items" if kind == "too_long" else "characters"
            length = len(value) if hasattr(value, "__len__") else "more"
            return f"give at most {context.get('max_length')} {unit}, not {length}"
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern"))
            return f"{PATTERNS.get(pattern, f'it must match {pattern}')}{shown}"
        case "literal_error":
            return f"choose {context.get('expected')}{shown}"
        case "greater_than_equal":
            return f"give a number of at least {context['ge']:g}{shown}"
        case "greater_than":
            return f"give a number above {context['gt']:g}{shown}"
        case "less_than_equal":
            return f"give a number of at most {context['le']:g}{shown}"
        case "less_than":
            return f"give a number below {context['lt']:g}{shown}"
        case _ if kind in EXPECTED:
            return f"{EXPECTED[kind]}{shown}"
        case _:
            return f"{one['msg']} (it is {value!r:.80})"


def _where(place: Sequence[int | str], data: Any) -> str:
    """A place in the terms of the file: "argument u, key fill.mean"."""
    parts, keys = list[str](), list[str]()
    for position, part in enumerate(place):
        value = _inside(data, part)
        if isinstance(part, int):
            list_name = keys.pop() if keys else ""
            if keys:
                parts.append("key " + ".".join(keys))
            name = value.get("name") if isinstance(value, Mapping) else None
            singular = SINGULAR.get(list_name, "")
            if singular:
                parts.append(f"{singular} {name if isinstance(name, str) and name else part + 1}")
            else:
                parts.append(f"{f'key {list_name}, ' if list_name else ''}item {part + 1}")
            keys = []
        elif part != "template" or (position < len(place) - 1 and keys[-1:] != ["baseline"]):
            # In the file a baseline's template is the baseline itself.
            keys.append(str(part))
        data = value
    if keys:
        parts.append("key " + ".".join(keys))
    return ", ".join(parts)


def _inside(data: Any, part: int | str) -> Any:
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(part, int) and isinstance(data, Sequence) and not isinstance(data, str) and part < len(data):
        return data[part]
    return None


def _fields(model: type[BaseModel], outer: Sequence[int | str]) -> list[str] | None:
    """The keys that the table at a place may have; None where that is no model's."""
    annotation: Any = model
    for part in outer:
        found = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        if found is not None and isinstance(part, str) and part in found.model_fields:
            annotation = found.model_fields[part].annotation
        else:
            # A key of a dictionary, or a position in a list.
            inner = [one for one in get_args(annotation) if one is not Ellipsis]
            annotation = inner[-1] if get_origin(annotation) is dict and inner else (inner[0] if inner else None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return list(annotation.model_fields)
    return None


LIBRARY = Path(__file__).resolve().parents[1] / "library"
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


def template_of(
    task: Task, backend: str, source: Path | None, template: Path | None, *, option: str = "--source"
) -> Template:
    """A candidate's template: the file's, with `source`; without a file, the baseline's launch with `source`. option:
    what names `source` on the command line."""
    text = None if source is None else read_source(source, option)
    sources = task.sources(backend)
    if template is not None:
        return read_template(template, backend, task.entry, text)
    if text is not None:
        fields = {"name": "candidate", "source": text or " ", "static_shared_bytes": "0"}
        return Template.model_validate({**sources.baseline.template.model_dump(), **fields})
    if not sources.templates:
        raise TunesmithError(f"The task {task.name} has no {backend} template: name one with --template.")
    return sources.templates[0]


def parse_config(text: str | None, template: Template) -> Config:
    """The configuration of --config (JSON; values left out are the template's defaults); raises `TunesmithError`."""
    config = template.default_config
    if text is None:
        return config
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise TunesmithError(f"--config: this is not valid JSON ({error}); write it as '{{\"VEC\": 4}}'.") from error
    if not isinstance(given, dict):
        raise TunesmithError("--config: give a JSON object of parameters, such as '{\"VEC\": 4}'.")
    values = {parameter.name: parameter.values for parameter in template.parameters}
    for name, value in given.items():
        if name not in values:
            raise TunesmithError(
                f"--config: the template {template.name} has no parameter {name}; it has {', '.join(values) or 'none'}."
            )
        if value not in values[name]:
            raise TunesmithError(f"--config: {name} = {value!r} is not one of {', '.join(map(str, values[name]))}.")
        # 4.0 is the value 4, whose macro is another text.
        config[name] = values[name][values[name].index(value)]
    return config


def read_source(path: Path, option: str = "--source") -> str:
    """The text of the file that `option` names; raises `TunesmithError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TunesmithError(f"{option}: {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TunesmithError(f"{option}: {path} is not UTF-8 text: save it as UTF-8.") from error
