"""Files that describe tasks: task.toml and the files it names, templates, and candidates beside a task.

Owns how a file becomes a `Task`, a `Template` or a configuration, and the one sentence, with file and key, that says
what is wrong with it. Drafts have lines to be filled in, marked with a comment that begins with `# FILL:`;
`tunesmith.kernels.rewrite.draft` writes them.
"""

from __future__ import annotations

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
from tunesmith.kernels.spec.template import BACKENDS, NAME_PATTERN, TEMPLATE_NAME, Config, Template
from tunesmith.kernels.spec.validation import parse_python, require_options, validate_task, validate_template

MARK = "# FILL:"
_MARKED = re.compile(rf"{MARK}[ \t]*(.*)")


def require_filled(files: Mapping[Path, str]) -> None:
    """Raises `TaskError` for the first line of `files`, texts by their paths, that is still to be filled in."""
    lines = [(path, number, line) for path, text in files.items() for number, line in enumerate(text.splitlines(), 1)]
    left = [(path, number, mark[1]) for path, number, line in lines if (mark := _MARKED.search(line)) is not None]
    if left:
        (path, number, what), more = left[0], len(left) - 1
        others = f" ({more} more line{'s' if more > 1 else ''} after it)" if more else ""
        raise TaskError(
            f"{path}, line {number}, is still to be filled in: {what.rstrip('. ')}; then delete its comment "
            f"`{MARK} ...`{others}."
        )


LISTS = ("arguments", "workloads", "parameters", "constraints", "templates", "opponents")
"""Lists of a file whose items a sentence calls by their names: "argument x"."""
PATTERNS = {
    NAME_PATTERN: "use letters, digits and _ only, not a digit first, and at most 64 of them",
    TEMPLATE_NAME: "use 1 to 80 characters, without quotes, slashes and control characters",
}
EXPECTED = {
    "int": "give a whole number",
    "float": "give a number",
    "finite": "give a finite number",
    "bool": "give true or false",
    "string": "give text in quotes",
    "dict": "give a table of keys and values",
    "model": "give a table of keys and values",
    "tuple": "give a list",
    "list": "give a list",
    "none": "leave it out",
}
"""What to do where a value has another type, by the first word of pydantic's name of the mistake."""
BOUNDS = {
    "greater_than_equal": "of at least",
    "greater_than": "above",
    "less_than_equal": "of at most",
    "less_than": "below",
}
TAGS = frozenset({"bool", "int", "float", "str", "none"})
"""What pydantic puts behind a place, for each type that a value may have."""


def explain(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], also: Sequence[str] = ()) -> str:
    """The first mistake of `error` in `data`, which `model` refused, and how many more there are. also: keys that the
    file may have besides the model's. No full stop at the end."""
    mistakes = error.errors(include_url=False)
    # A misspelled key is both unknown and missing; the spelling is what there is to fix.
    first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
    place = _place(first["loc"])
    others = {_place(mistake["loc"]) for mistake in mistakes} - {place}
    if first["type"] == "extra_forbidden":
        *outer, wrong = place
        place = tuple(outer)
        what = unknown_key(str(wrong), [*_fields(model, outer), *(() if outer else also)])
    else:
        what = _choice([mistake for mistake in mistakes if _place(mistake["loc"]) == place]) or sentence(first)
    where = _where(place, data)
    return f"{where}{': ' if where else ''}{what}{f' (and {len(others)} more)' if others else ''}"


def _expected(kind: str) -> str | None:
    return EXPECTED.get(kind.partition("_")[0])


def _choice(mistakes: Sequence[Any]) -> str:
    """The types that a value may have where there are several, from the mistake that it is for each; else empty."""
    kinds = dict.fromkeys(mistake["type"] for mistake in mistakes)
    types = list(dict.fromkeys(text.removeprefix("give ") for kind in kinds if (text := _expected(kind))))
    if len(types) < 2 or len(types) < len(kinds):
        return ""
    return f"give {', '.join(types[:-1])} or {types[-1]}, not {mistakes[0]['input']!r:.80}"


def _place(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    place = list(loc)
    while len(place) > 1 and place[-1] in TAGS and isinstance(place[-2], int | str):
        place.pop()
    return tuple(place)


def unknown_key(wrong: str, known: Sequence[str]) -> str:
    """The sentence for an unknown key, with the key that was meant or the known keys. No full stop at the end."""
    close = difflib.get_close_matches(wrong, known, 1)
    if close:
        return f"unknown key '{wrong}'; did you mean '{close[0]}'?"
    return f"unknown key '{wrong}'; the keys are {', '.join(known)}" if known else f"unknown key '{wrong}'"


def sentence(mistake: Any) -> str:
    """How to correct one of pydantic's errors, without the place and a full stop."""
    kind, context, value = mistake["type"], mistake.get("ctx") or {}, mistake["input"]
    shown = f", not {value!r:.80}"
    match kind:
        case "value_error":
            return str(mistake["msg"]).removeprefix("Value error, ")
        case "missing":
            return "it is missing; add it"
        case "too_short" | "string_too_short":
            what = "the list is" if kind == "too_short" else "the text is"
            return f"{what} empty" if not value else f"give at least {context.get('min_length')} items{shown}"
        case "too_long" | "string_too_long":
            unit = "items" if kind == "too_long" else "characters"
            return f"give at most {context.get('max_length')} {unit}, not {len(value)}"
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern"))
            return f"{PATTERNS.get(pattern, f'it must match {pattern}')}{shown}"
        case "literal_error":
            return f"choose {context.get('expected')}{shown}"
        case _ if kind in BOUNDS:
            return f"give a number {BOUNDS[kind]} {next(iter(context.values())):g}{shown}"
        case _:
            expected = _expected(kind)
            return f"{expected}{shown}" if expected else f"{mistake['msg']} (it is {value!r:.80})"


def _where(place: Sequence[int | str], data: Any) -> str:
    """A place in the terms of the file: "argument u, key fill.mean"."""
    parts, keys = list[str](), list[str]()
    for position, part in enumerate(place):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(part, int):
            list_name = keys.pop() if keys else ""
            parts += ["key " + ".".join(keys)] if keys else []
            name = data.get("name") if isinstance(data, Mapping) else None
            if list_name in LISTS:
                parts.append(f"{list_name[:-1]} {name if isinstance(name, str) and name else part + 1}")
            else:
                parts.append(f"{f'key {list_name}, ' if list_name else ''}item {part + 1}")
            keys = []
        elif part != "template" or (position < len(place) - 1 and keys[-1:] != ["baseline"]):
            # In the file a baseline's template is the baseline itself.
            keys.append(str(part))
    return ", ".join([*parts, *(["key " + ".".join(keys)] if keys else [])])


def _fields(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """The keys that the table at `place` may have; none where it is not a model's."""
    annotation: Any = model
    for part in place:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and part in annotation.model_fields:
            annotation = annotation.model_fields[str(part)].annotation
        else:
            # A key of a dictionary, or a position in a list.
            inner = [argument for argument in get_args(annotation) if argument is not Ellipsis]
            annotation = inner[-1 if get_origin(annotation) is dict else 0] if inner else None
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return list(annotation.model_fields) if is_model else []


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
_PLACES = ("key ", *(f"{name[:-1]} " for name in LISTS))


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
    if not data:
        raise TaskError(f"{path} is empty: docs/tasks.md says what a task.toml holds.")
    texts = {path: path.read_text(encoding="utf-8-sig")}
    if data.get("reference") == "baseline":
        data["reference"], data["reference_name"] = "", "baseline"
        if "framework" in data:
            raise TaskError(f"{path}, key framework: the original kernel is the reference, so leave it out.")
    else:
        file, data["reference_name"] = _function(data.get("reference"), f"{path}, key reference")
        data["reference"] = texts[path.parent / file] = _text(path.parent / file, f"{path}, key reference")
    require_filled(texts)
    backends = data.get("backends")
    if not isinstance(backends, dict) or not backends:
        raise TaskError(f"{path}: there is no [backends.cuda] or [backends.opencl]; a task needs sources for one.")
    for number, opponent in enumerate(_tables(data, "opponents", f"{path}, key opponents"), 1):
        where = f"{path}, opponent {opponent.get('name', number)}, key call"
        file, opponent["function"] = _function(opponent.pop("call", None), where)
        opponent["source"] = _text(path.parent / file, where)
        parse_python(opponent["source"], where)
    # The templates have the task's `entry`; a mistake in it is told of the task, whose own check comes after theirs.
    entry = str(data.get("entry", ""))
    entry = entry if re.match(NAME_PATTERN, entry) else "kernel"
    for name, sources in backends.items():
        if name not in BACKENDS:
            raise TaskError(f"{path}, key backends.{name}: there is no such backend; they are {', '.join(BACKENDS)}.")
        if not isinstance(sources, dict):
            raise TaskError(f"{path}, key backends.{name}: give a table with `baseline` and `templates`.")
        _resolve_sources(sources, name, entry, path)
    types = data.get("types")
    listed = types.items() if isinstance(types, dict) else ()
    first = {name: options[0] for name, options in listed if isinstance(options, list) and options}
    for index, workload in enumerate(_tables(data, "workloads", f"{path}, key workloads")):
        workload.setdefault("name", _workload_name(workload, index))
        if isinstance(given := workload.get("types", {}), dict):
            workload["types"] = {**first, **given}
    task = _validated(Task, data, path)
    _validate_expressions(task, path)
    return task


def _function(call: object, where: str) -> tuple[str, str]:
    """The file and the function that a key names."""
    if not isinstance(call, str) or ":" not in call:
        raise TaskError(
            f"{where}: give the function as 'FILE.py:FUNCTION', not {call!r:.80}; a reference may also be 'baseline', "
            "the original kernel."
        )
    file, function = call.rsplit(":", 1)
    return file, function


def _tables(data: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The tables that a file lists under `key`; none where it has no such key."""
    tables = data.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TaskError(f"{where}: give a list of tables, not {tables!r:.80}.")
    return tables


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
    files = _files(data.pop("source_file", None))
    texts = [_text(path.parent / file, f"{path}, key source_file") for file in files]
    if source is not None:
        texts[max(0, len(files) - 1) :] = [source]
    if texts:
        data["source"] = "\n".join(texts)
    return _validated(Template, data, path)


def _files(given: object) -> list[str]:
    """The files of a `source_file`, which names one or lists several."""
    return [str(file) for file in given] if isinstance(given, list) and given else [] if given is None else [str(given)]


def _resolve_sources(sources: dict[str, Any], backend: str, entry: str, path: Path) -> None:
    """Replaces the files that [backends.BACKEND] names by their contents, as `BackendSources` has them."""
    key = f"backends.{backend}"

    def kernel(given: object, name: str, where: str, own: Sequence[str]) -> dict[str, Any]:
        """The table of a baseline or an opponent: the keys `own`, and those of its template."""
        if not isinstance(given, dict) or not {"source_file", "launch"} <= given.keys():
            raise TaskError(f"{where}: give `source_file` and `launch` (grid and block).")
        source = "\n".join(_text(path.parent / file, where) for file in _files(given["source_file"]))
        fields = {name: value for name, value in given.items() if name not in (*own, "source_file")}
        template = {"name": name, "backend": backend, "entry": entry, "source": source, **fields}
        return {**{name: given[name] for name in own if name in given}, "template": template}

    sources["baseline"] = kernel(sources.get("baseline"), "baseline", f"{path}, key {key}.baseline", ("label",))
    files = sources.get("templates", [])
    if not isinstance(files, list):
        raise TaskError(f"{path}, key {key}.templates: give a list of template files.")
    for file in files:
        if not isinstance(file, str) or not (path.parent / file).is_file():
            raise TaskError(f"{path}, key {key}.templates: there is no file {file!r} beside it.")
    sources["templates"] = [read_template(path.parent / file, backend, entry) for file in files]
    opponents = _tables(sources, "opponents", f"{path}, key {key}.opponents")
    sources["opponents"] = [
        kernel(one, "opponent", f"{path}, {key}, opponent {one.get('name', number)}", ("name", "label", "on_request"))
        for number, one in enumerate(opponents, 1)
    ]


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
        values = [("value", argument.value or ""), *((f"values[{i}]", text) for i, text in enumerate(argument.values))]
        keys = [*(("shape", text) for text in argument.shape), *values]
        texts += [(f"argument {argument.name}: {key}", text) for key, text in keys if text]
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
                validate_template(template, task, where)
    validate_task(task, str(path))


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


def _text(file: Path, where: str) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"{where}: {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: {file} is not UTF-8 text: save it as UTF-8.") from error
    except ValueError as error:
        raise TaskError(f"{where}: {str(file)!r} is not the name of a file: {error}.") from error
    if not text.strip():
        raise TaskError(f"{where}: {file} is empty; write the code there, or name the file that has it.")
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
