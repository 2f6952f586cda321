"""Files that describe tasks: task.toml and the files it names, templates, and candidates beside a task.

Owns how a file becomes a `Task`, a `Template` or a configuration, and the sentence, with file and key, that tells its
mistake. Drafts have lines to be filled in, marked with a comment that begins with `# FILL:`;
`tunesmith.kernels.reader.draft` writes them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.template import BACKENDS, NAME_PATTERN, TEMPLATE_NAME, Config, Template, unknown_key
from tunesmith.kernels.spec.validation import validate_task

MARK = "# FILL:"
PATTERNS = {
    NAME_PATTERN: "use letters, digits and _ only, not a digit first, and at most 128 of them",
    TEMPLATE_NAME: "use 1 to 80 characters, without quotes, slashes and control characters",
}
REMEDIES = {
    "missing": "it is missing; add it",
    "literal_error": "choose {expected}",
    "greater_than_equal": "give a number of at least {ge:g}",
    "greater_than": "give a number above {gt:g}",
    "less_than_equal": "give a number of at most {le:g}",
    "less_than": "give a number below {lt:g}",
    "too_short": "list at least {min_length}",
    "too_long": "list at most {max_length}",
    "string_too_short": "give a text of at least {min_length} characters",
    "string_too_long": "give a text of at most {max_length} characters",
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
"""The remedy, by pydantic's name of a mistake or the name's first word."""


def sentence(mistake: Any) -> str:
    """How to correct one of pydantic's errors, without the place and a full stop."""
    kind, message, context = mistake["type"], mistake["msg"], mistake.get("ctx", {})
    if kind == "value_error":
        return str(message).removeprefix("Value error, ")
    remedy = PATTERNS.get(context.get("pattern")) or REMEDIES.get(kind) or REMEDIES.get(kind.partition("_")[0])
    what = str(message) if remedy is None else remedy.format(**context)
    return what + ("" if kind == "missing" else f", not {mistake['input']!r:.80}")


def explain(error: ValidationError, data: Any) -> str:
    """The first mistake in `data`, with its key, such as "key arguments[x].fill: ...", and a count; no full stop."""
    first, *more = error.errors(include_url=False)
    where = ""
    for part in first["loc"]:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(part, int):
            name = data.get("name") if isinstance(data, Mapping) else None
            where += f"[{name or part + 1}]"
        elif part != "[key]":  # a dictionary's key itself
            where += f".{part}" if where else part
    return f"{f'key {where}: ' if where else ''}{sentence(first)}{f' (and {len(more)} more)' if more else ''}"


LIBRARY = Path(__file__).resolve().parents[1] / "library"
Model = TypeVar("Model", bound=BaseModel)
_OTHER_FILE = {
    "task": "give the task.toml that names it; `tunesmith init` drafts one from a kernel",
    "template": "give a TOML file that names its source, `parameters` and `launch`",
}
"""The remedy for a file that is not TOML, by the kind of file that was expected."""


def library_tasks() -> dict[str, Path]:
    """Name -> task.toml of each task that ships with Tunesmith."""
    return {path.parent.name: path for path in sorted(LIBRARY.glob("*/task.toml"))}


def find_task(text: str) -> Path | None:
    """The task.toml of the task named `text` (a folder, a library task's name, or a path); None where there is none. A
    folder with a task goes before the library's task of the same name."""
    places = (Path(text, "task.toml"), library_tasks().get(text), Path(text))
    return next((path for path in places if path is not None and os.path.isfile(path)), None)


def load_task(text: str) -> Task:
    """The task named `text` (as of `find_task`); raises `TaskError`."""
    if (path := find_task(text)) is not None:
        return read_task(path)
    known = [*library_tasks(), *(path.parent.name for path in Path().glob("*/task.toml"))]
    near = difflib.get_close_matches(text.lower(), known, 1)
    meant = f"did you mean {near[0]}?" if near else "give the path of a task, or a name from `tunesmith tasks`."
    raise TaskError(f"There is no task '{text[:200]}': {meant}")


def read_task(path: Path) -> Task:
    """Reads and validates one task.toml; raises `TaskError`."""
    data = _toml(path, "task")
    if {"parameters", "launch"} & data.keys() and not {"reference", "backends", "arguments"} & data.keys():
        raise TaskError(f"{path} is a template and no task: give the task.toml that lists it instead.")
    if data.get("reference") == "baseline":
        data["reference"], data["reference_name"] = "", "baseline"
        if "framework" in data:
            raise TaskError(f"{path}, key framework: the original kernel is the reference, so leave it out.")
    else:
        data["reference"], data["reference_name"] = _function(data.get("reference"), path, "key reference")
    for opponent in _tables(data.get("opponents")):
        place = f"key opponents[{opponent.get('name', '?')}].call"
        opponent["source"], opponent["function"] = _function(opponent.pop("call", None), path, place)
    # The templates have the task's `entry`; a mistake in it is told of the task, whose own check comes after theirs.
    entry = str(data.get("entry", ""))
    entry = entry if re.match(NAME_PATTERN, entry) else "kernel"
    for backend, sources in _table(data.get("backends")).items():
        if backend not in BACKENDS or not isinstance(sources, dict):
            continue
        place, fields = f"{path}, key backends.{backend}", {"backend": backend, "entry": entry}
        sources["baseline"] = _kernel(sources.get("baseline"), path, f"{place}.baseline", name="baseline", **fields)
        if isinstance(opponents := sources.get("opponents"), list):
            sources["opponents"] = [
                _kernel(one, path, f"{place}.opponents", name="opponent", **fields) for one in opponents
            ]
        if isinstance(files := sources.get("templates"), list):
            sources["templates"] = [
                read_template(path.parent / str(file), backend, entry, where=f"{place}.templates") for file in files
            ]
    listed = _table(data.get("types")).items()
    first = {name: options[0] for name, options in listed if options and isinstance(options, list)}
    for number, workload in enumerate(_tables(data.get("workloads"))):
        sizes, types = _table(workload.get("sizes")), workload.setdefault("types", {})
        name = "-".join(["x".join(map(str, sizes.values())), *map(str, _table(types).values())])
        workload.setdefault("name", name if sizes else f"workload{number}")
        if isinstance(types, dict):
            workload["types"] = {**first, **types}
    task = _validated(Task, data, path)
    validate_task(task, str(path))
    return task


def _table(value: Any) -> dict[str, Any]:
    """`value` if it is a table; what else it may be is left to the schema."""
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    """The tables of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _kernel(given: object, path: Path, place: str, **template: str) -> object:
    """The table of a baseline or an opponent as the schema has it: the keys of its template under `template`."""
    if not isinstance(given, dict):
        return given
    keys = ("label",) if template["name"] == "baseline" else ("name", "label", "on_request", "configs")
    own = {key: given[key] for key in keys if key in given}
    rest = {key: value for key, value in given.items() if key not in own}
    configs = _tables(own.get("configs"))
    if names := dict.fromkeys(name for one in configs for name in one):
        values = {name: list(dict.fromkeys(one[name] for one in configs if name in one)) for name in names}
        rest.setdefault("parameters", [{"name": name, "values": listed} for name, listed in values.items()])
    return {**own, "template": {**template, **_with_source(rest, path, place, keys=keys)}}


def _function(call: object, path: Path, place: str) -> tuple[str, str]:
    """The source in which a key of the file `path` names a function, and the function's name."""
    file, colon, function = call.rpartition(":") if isinstance(call, str) else ("", "", "")
    if not colon:
        raise TaskError(
            f"{path}, {place}: give the function as 'FILE.py:FUNCTION', not {call!r:.80}; a reference may also be "
            "'baseline', the original kernel."
        )
    return _filled(path.parent / file, f"{path}, {place}"), function


def _with_source(
    table: dict[str, Any], path: Path, place: str, source: str | None = None, keys: Sequence[str] = ()
) -> dict[str, Any]:
    """A template's table with the contents of its `source_file`, which names a file, or files that become one source
    in their order. source: stands for the last of them; keys: those that the file's table has beside the template's."""
    known = [*(keys or ("name",)), "source_file", *(one for one in Template.model_fields if one != "name")]
    if unknown := [key for key in table if key not in known]:
        raise TaskError(_stopped(f"{place}: {unknown_key(unknown[0], known)}"))
    files = table.pop("source_file", [])
    files = files if isinstance(files, list) else [files]
    texts = [read_source(path.parent / str(file), f"{place}, key source_file") for file in files]
    if source is not None:
        texts[-1:] = [source]
    if not texts and "source" not in table:
        raise TaskError(f"{place}, key source_file: it is missing; name the file of the kernel's source.")
    return {**table, "source": "\n".join(texts)} if texts else table


def read_template(path: Path, backend: str, entry: str, source: str | None = None, where: str = "") -> Template:
    """Reads one template TOML, with `source` instead of its own if given; raises `TaskError`.

    Its `source_file` is relative to it, and may be a list of files, which become one source in their order: `source`
    then stands for the last, as the others are what several templates share. where: the key that names the file.
    """
    data = _toml(path, "template", where)
    if {"reference", "backends", "arguments"} & data.keys():
        raise TaskError(f"{path} is a task, not a template: give a file that has `parameters` and `launch`.")
    if data.setdefault("backend", backend) != backend:
        raise TaskError(f"{path}, key backend: it is for {data['backend']!r}, but the task lists it under {backend}.")
    fields = {"entry": entry, "name": path.stem, **_with_source(data, path, str(path), source)}
    return _validated(Template, fields, path)


def _toml(path: Path, what: Literal["task", "template"], where: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(_filled(path, where))
    except tomllib.TOMLDecodeError as error:
        why = f"valid TOML: {error}" if path.suffix == ".toml" else f"a {what}: {_OTHER_FILE[what]}"
        raise TaskError(f"{path} is not {why}.") from error


def read_source(path: Path, where: str = "--source") -> str:
    """The text of the file that `where`, an option or a key, names; raises `TaskError`. A kernel's that is not
    UTF-8 is read as Latin-1, as old comments are."""
    where = f"{where}: " if where else ""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        text = path.read_text(encoding="latin-1")
        if "\0" in text or path.suffix in (".toml", ".py", ".json"):
            raise TaskError(f"{where}{path} is not UTF-8 text: save it as UTF-8.") from error
    except (OSError, ValueError) as error:
        name, why = str(path).replace("\0", "\\0"), getattr(error, "strerror", error)
        raise TaskError(f"{where}{name} cannot be read: {why}.") from error
    if not text.strip():
        raise TaskError(f"{where}{path} is empty: docs/tasks.md says what it holds.")
    return text


def _filled(path: Path, where: str) -> str:
    """The text of a file without lines that are still to be filled in."""
    text = read_source(path, where)
    for number, line in enumerate(text.splitlines(), 1):
        if MARK in line:
            what = line.partition(MARK)[2].strip(" .\t")
            raise TaskError(
                f"{path}, line {number}, is still to be filled in: {what}; then delete its comment `{MARK} ...`."
            )
    return text


def _validated(model: type[Model], data: Mapping[str, Any], path: Path) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # In the file a baseline's template is the baseline itself.
        message = explain(error, data).replace(".template.", ".", 1)
        raise TaskError(_stopped(f"{path}{', ' if message.startswith('key ') else ': '}{message}")) from error


def _stopped(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"{sentence}."


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
        fields = {"name": "candidate", "source": text, "static_shared_bytes": "0"}
        return Template.model_validate({**sources.baseline.template.model_dump(), **fields})
    if not sources.templates:
        raise TunesmithError(f"The task {task.name} has no {backend} template: name one with --template.")
    return sources.templates[0]


def parse_config(text: str | None, template: Template) -> Config:
    """The configuration of --config (JSON; values left out are the template's defaults); raises `TunesmithError`."""
    config = template.default_config
    try:
        given = json.loads(text or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise TunesmithError("--config: give a JSON object of parameters, such as '{\"VEC\": 4}'.")
    values = {parameter.name: parameter.values for parameter in template.parameters}
    for name, value in given.items():
        if name not in values:
            has = ", ".join(values) or "none"
            raise TunesmithError(f"--config: there is no parameter {name}; the template {template.name} has {has}.")
        if value not in values[name]:
            raise TunesmithError(f"--config: {name} is one of {', '.join(map(str, values[name]))}, not {value!r}.")
        # 4.0 is the value 4, whose macro is another text.
        config[name] = values[name][values[name].index(value)]
    return config
