"""Options of the command line, built from the fields of `Settings`: name, type, default and help are declared there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Optional, TypeVar, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from tunesmith.graph.settings import Settings

NOT_OPTIONS = ("task", "roles", "arm")

Command = TypeVar("Command", bound=Callable[..., None])


def with_settings(*names: str, **helps: str) -> Callable[[Command], Command]:
    """Adds the options of the settings `names` (all, if none is given) to a command, which gets the given
    options as keywords. helps: other texts for some of them."""
    chosen = names or tuple(name for name in Settings.model_fields if name not in NOT_OPTIONS)

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [_option(name, Settings.model_fields[name], helps.get(name)) for name in chosen]
        command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return command

    return add


def given(options: Mapping[str, object]) -> dict[str, object]:
    """The options given on the command line or in the environment; the others have the value of a settings file, or
    their default."""
    return {name: value for name, value in options.items() if value is not None and value != []}


def _option(name: str, field: FieldInfo, text: str | None) -> inspect.Parameter:
    extra: dict[str, Any] = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    # A value in a notation of its own, such as 10m, is a text here.
    kind = str if extra.get("metavar") == "DURATION" else _kind(field)
    help_text = (text or field.description or "").removesuffix(".")
    if field.default not in (None, {}, "none", False):
        shown = name if field.default is True else field.default
        help_text += f" (default: {shown:g})" if isinstance(shown, float) else f" (default: {shown})"
    info = typer.Option(
        help=f"{help_text}.", show_default=False, metavar=extra.get("metavar"), envvar=extra.get("variable")
    )
    annotation = Annotated[Optional[kind], info]  # type: ignore[valid-type]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind(field: FieldInfo) -> Any:
    """The type that the command line reads; `Settings` converts it further."""
    kind = field.annotation
    if get_origin(kind) in (Union, UnionType):
        (kind, *_) = (one for one in get_args(kind) if one is not type(None))
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is dict:
        return list[str]
    return str if get_origin(kind) is Literal else kind
