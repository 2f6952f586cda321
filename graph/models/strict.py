"""JSON schemas as OpenAI's strict mode takes them.

Strict mode knows a part of JSON Schema: every object is closed, every property required, no bounds on texts and
numbers everywhere (https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas"). What it does not
know of a schema is told in words here, in the description; the answer is validated by the full schema in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOLD = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "uniqueItems",
)
"""Constraints that some server of strict mode rejects."""
_SILENT = ("default", "title", "examples", "discriminator", "$comment")
_KNOWN = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
    "description",
    "$ref",
    "$defs",
    *_TOLD,
    *_SILENT,
}


class _Unsupported(Exception):
    """The schema says something that strict mode cannot."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The strict form of a schema as `BaseModel.model_json_schema` writes it; None where there is none, such as for
    objects with free keys."""
    try:
        strict = _convert(schema, schema, ())
        if strict.get("type") != "object":
            return None  # the root must be an object
        if "$defs" in schema:
            strict["$defs"] = {name: _convert(part, schema, ()) for name, part in schema["$defs"].items()}
    except _Unsupported:
        return None
    return strict


def _convert(part: Any, root: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(part, Mapping) or part.keys() - _KNOWN:
        raise _Unsupported
    if "$ref" in part:
        siblings = {key: value for key, value in part.items() if key not in ("$ref", *_SILENT)}
        if not siblings:
            return {"$ref": part["$ref"]}
        # A reference may have nothing beside it; its target is copied, unless it contains itself.
        if part["$ref"] in inside:
            raise _Unsupported
        return _convert(_target(part["$ref"], root) | siblings, root, (*inside, part["$ref"]))
    if "allOf" in part:
        if len(part["allOf"]) != 1:
            raise _Unsupported
        rest = {key: value for key, value in part.items() if key != "allOf"}
        return _convert({**part["allOf"][0], **rest}, root, inside)
    made = {key: part[key] for key in ("type", "enum", "const", "description") if key in part}
    if "oneOf" in part or "anyOf" in part:
        made["anyOf"] = [_convert(choice, root, inside) for choice in part.get("oneOf") or part["anyOf"]]
    elif part.get("type") == "object":
        if part.get("additionalProperties", False) is not False or "properties" not in part:
            raise _Unsupported
        made["properties"] = {name: _convert(value, root, inside) for name, value in part["properties"].items()}
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    elif part.get("type") == "array":
        if "items" not in part:
            raise _Unsupported
        made["items"] = _convert(part["items"], root, inside)
    elif not made.keys() & {"type", "enum", "const"}:
        raise _Unsupported  # anything at all
    told = ", ".join(f"{key} {part[key]}" for key in _TOLD if key in part)
    if told:
        made["description"] = f"{made['description']} ({told})" if made.get("description") else told
    return made


def _target(reference: str, root: Mapping[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return dict(found)
