"""A candidate as a user names it: a source or a template file, and a configuration in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.files.taskfile import read_template
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import Template


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
