"""A kernel's source as people read it: without its macros, and without the branches that they rule out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from tunesmith.kernels.spec.expression import ExpressionError, parse

_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(.*)", re.DOTALL)
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_FROM_OUTSIDE = re.compile(r"_|cl_|CL_|CUDA|OPENCL")
"""How names begin that a compiler or a header may define."""
Branch = Literal["taken", "none yet", "past", "unknown"]
"""Where a reader stands in an `#if`: in its branch, before it, behind it, or in one that nobody can tell."""
_NEXT: dict[Branch, Branch] = {"none yet": "taken", "taken": "past"}


def readable(source: str) -> tuple[str, str]:
    """A source as people read it: its macros and includes, and all other lines. Branches of `#if` that its own macros
    rule out are left out; a condition on what a compiler defines stays, with everything in it, and a macro that is
    undefined again stays in its place."""
    macros: list[str] = []
    code: list[str] = []
    values: dict[str, float | None] = {}
    open_ifs: list[Branch] = []
    passing = set(re.findall(r"#[ \t]*undef[ \t]+(\w+)", source))
    for line in re.split(r"(?<!\\)\n", source):
        word, rest = match.groups() if (match := _DIRECTIVE.match(line)) else ("", "")
        live = all(one in ("taken", "unknown") for one in open_ifs)
        state = open_ifs[-1] if open_ifs else "past"
        if word in ("if", "ifdef", "ifndef"):
            open_ifs.append(_branch(word, rest, values) if live else "past")
            code += [line] if open_ifs[-1] == "unknown" else []
        elif word == "elif" and state == "none yet":
            open_ifs[-1] = _branch("if", rest, values)
            code += [f"#if {rest}"] if open_ifs[-1] == "unknown" else []
        elif word in ("elif", "else", "endif") and open_ifs:
            code += [line] if state == "unknown" else []
            open_ifs[-1:] = [] if word == "endif" else [_NEXT.get(state, state)]
        elif live and word in ("define", "undef", "include"):
            known, name = "unknown" not in open_ifs, _NAME.match(rest)
            (macros if known and (name is None or name[0] not in passing) else code).append(line)
            if word != "include" and name:
                values.pop(name[0], None)
                if word == "define":
                    values[name[0]] = _number(rest[name.end() :], values) if known else None
        elif live and word != "line":
            code.append(line)
    return "\n".join(macros), re.sub(r"\n{3,}", "\n\n", "\n".join(code)).strip("\n")


def _branch(word: str, condition: str, values: Mapping[str, float | None]) -> Branch:
    """Whether the branch behind a condition of the preprocessor is taken."""
    condition = {"ifdef": f"defined {condition}", "ifndef": f"!defined {condition}"}.get(word, condition)
    names = _NAME.findall(condition)
    if any(_FROM_OUTSIDE.match(name) and name not in values for name in names):
        return "unknown"
    condition = re.sub(r"\bdefined\s*\(?\s*(\w+)\s*\)?", lambda one: str(int(one[1] in values)), condition)
    number = _number(condition, dict.fromkeys(names, 0) | dict(values))
    return "unknown" if number is None else "taken" if number else "none yet"


def _number(text: str, values: Mapping[str, float | None]) -> float | None:
    """The value of a C expression over macros; None where it has none that can be told."""
    text = re.sub(r"//.*|/\*.*?\*/", " ", text).strip()
    for mark, meaning in (("&&", " and "), ("||", " or "), ("!", " not "), ("/", "//")):
        text = re.sub(rf"{re.escape(mark)}(?!=)", meaning, text)
    try:
        return parse(text.strip()).number({name: value for name, value in values.items() if value is not None})
    except ExpressionError:
        return None
