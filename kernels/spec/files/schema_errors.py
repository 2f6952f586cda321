"""What pydantic finds wrong with a file, as one sentence in the file's own terms.

Owns the wording: which key, by the names that stand in the file ("argument u, key shape") and not by positions, what
the value has to be, and which known key an unknown one resembles. What is valid is for the models to say.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

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
