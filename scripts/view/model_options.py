"""Options of `tunesmith tune` that are pairs: ROLE=NAME and FIELD=JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tunesmith.graph.settings import SettingsError


def parse_roles(pairs: Sequence[str]) -> dict[str, str]:
    """Models by role."""
    return dict(_split(pair, "--model-for", "ROLE=NAME") for pair in pairs)


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Fields of the request's body; a value that is no JSON is a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, text = _split(pair, "--model-option", "FIELD=JSON")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _split(pair: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SettingsError(f"{option}: '{pair}' is not of the form {form}.")
    return name.strip(), value.strip()
