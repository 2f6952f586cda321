"""The source a compiler sees: a template with its parameters and the workload's types written in as macros.

The compiler's text is exactly the text that the user gets in the end, so a winner can be rebuilt from it alone. Also
owns `readable`, the same source without its macros and without the branches that they rule out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Config, Template

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([A-Za-z0-9_./-]+)>", re.MULTILINE)


_LITERAL = {
    "cuda_fp16.h": re.compile(r"\b__half2?\b|\bnv_half\b|\bhalf2?\s*[*&]|\bhalf2?\s+[A-Za-z_]|\(half2?\)"),
    "cuda_bf16.h": re.compile(r"\b(?:__)?nv_bfloat16(?:2|_raw)?\b"),
    "cuda_fp8.h": re.compile(r"\b__nv_fp8_e[45]m[23]\b"),
}


@dataclass(frozen=True, slots=True)
class Specialised:
    """A complete translation unit. max_registers: cap per thread or None; fast_math: relaxed arithmetic allowed."""

    backend: BackendName
    entry: str
    source: str
    max_registers: int | None = None
    fast_math: bool = False

    @property
    def digest(self) -> str:
        """Content hash of everything that decides the machine code, compiler and architecture apart."""
        text = "\0".join((self.backend, self.entry, str(self.max_registers), str(self.fast_math), self.source))
        return hashlib.sha256(text.encode()).hexdigest()


def literal(value: bool | int | float | str) -> str:
    """A parameter's value as macro text."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def specialise(template: Template, config: Config, types: Mapping[str, str]) -> Specialised:
    """The source of `template` at `config` for a workload's `types` (type name -> data type).

    Each type name T becomes a macro for the C type, and T_IS_FLOAT16 (and so on) is defined to 1; each parameter
    but those that are `launch_only` becomes a macro of its value, so that configurations which differ in nothing else
    have one source and one machine code. `#line` keeps the compiler's line numbers those of the template.
    """
    lines = [f"// {template.name}: specialised by Tunesmith"]
    if BACKENDS[template.backend].makes_cubins:
        needed = {DTYPES[dtype].cuda_header for dtype in types.values()} - {""}
        if "_IS_" not in template.source:  # one that asks for its types by flags names none itself
            needed |= {header for header, words in _LITERAL.items() if words.search(template.source)}
        headers = sorted(needed)
        # Before the macros below: a header that has a type parameter T would not outlive `#define T float`.
        headers += [name for name in _INCLUDED.findall(template.source) if name not in headers]
        lines += [f"#include <{header}>" for header in headers]
    for name, dtype in sorted(types.items()):
        lines += [f"#define {name} {DTYPES[dtype].c_names[template.backend]}", f"#define {name}_IS_{dtype.upper()} 1"]
    hidden = {parameter.name for parameter in template.parameters if parameter.launch_only}
    lines += [f"#define {name} {literal(value)}" for name, value in sorted(config.items()) if name not in hidden]
    lines.append(f'#line 1 "{template.name}"')
    names: dict[str, Any] = {**{dtype: dtype for dtype in DTYPES}, **types, **config}
    cap = parse(template.max_registers).integer(names) if template.max_registers else 0
    return Specialised(
        backend=template.backend,
        entry=template.entry,
        source="\n".join(lines) + "\n" + template.source,
        max_registers=cap or None,
        fast_math=bool(parse(template.fast_math).evaluate(names)),
    )


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
