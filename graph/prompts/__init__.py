"""Prompts: text from templates (*.j2) and data. The same data gives the same text, so that a run can be replayed.

Foreign text (sources, logs of compilers, measurements) is embedded here: in a block whose fence is longer than any run
of backticks inside, so that no text can close its own block, and logs without paths and addresses of the machine.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tunesmith.graph.models.calls import Message

_PATH = re.compile(r"(?<![\w<.])/(?:[\w.+@~-]+/)+([\w.+@~-]+)")
_TEMPORARY = re.compile(r"\b(?:tempfile|tmp)[_-][\w-]+(\.\w+)?")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")


def render(name: str, **values: Any) -> str:
    """The prompt `name` (a file of this folder, without its ending). Raises where a value is missing."""
    return _environment().get_template(f"{name}.j2").render(**values).strip() + "\n"


def conversation(system: str, user: str) -> tuple[Message, ...]:
    return Message("system", system), Message("user", user)


def fenced(text: str, label: str = "") -> str:
    """`text` as a block of data that it cannot end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(4, longest + 1)
    return f"{fence}{label}\n{text.rstrip()}\n{fence}"


def scrubbed(text: str) -> str:
    """`text` without the folders, temporary names and addresses of this machine."""
    return _ADDRESS.sub("(address)", _TEMPORARY.sub(r"temporary\1", _PATH.sub(r"\1", text)))


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tunesmith.graph.prompts", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "fenced": fenced,
        "scrubbed": scrubbed,
        "us": lambda seconds: "not measured" if seconds is None else f"{seconds * 1e6:.2f}",
        "percent": lambda share: "unknown" if share is None else f"{share * 100:.0f} %",
    }
    return environment
