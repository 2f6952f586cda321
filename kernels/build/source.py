"""The source a compiler sees: a template with its parameters and the workload's types written in as macros.

The compiler's text is exactly the text that the user gets in the end, so a winner can be rebuilt from it alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.python_source import ARGUMENT, argument_classes, asked_values, python_text
from tunesmith.kernels.spec.dtypes import DTYPE_NAMES, DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import BACKENDS, BackendName, Config, Template

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([A-Za-z0-9_./-]+)>", re.MULTILINE)
_OF_KIT = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](kit/\w+\.cuh)[>"][^\n]*', re.MULTILINE)

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


CodeKey = tuple[tuple[str, str], ...]
_KIT = Path(__file__).resolve().parents[1] / "kit"


def types_of(key: CodeKey) -> CodeKey:
    """The types of a key, without the classes of arguments."""
    return tuple(pair for pair in key if not pair[0].startswith(ARGUMENT))


def code_key(task: Task, template: Template, workload: Workload) -> CodeKey:
    """The part of a workload that decides the machine code of a template: its types, and the classes of arguments for
    which a compiler specialises kernels. Raises `TaskError` as `Task.scalar_of` does."""
    types = tuple(sorted(workload.types.items()))
    if not BACKENDS[template.backend].python:
        return types
    # In the order of the task's arguments, in which a launch passes them.
    asked = asked_values(template.source, template.entry)
    return types + tuple(argument_classes(task, workload, asked=asked).items())


@functools.cache
def kit() -> Mapping[str, str]:
    """The headers of `kernels/kit` by the names under which CUDA sources include them, such as "kit/rows.cuh"."""
    return {f"kit/{file.name}": file.read_text(encoding="utf-8") for file in sorted(_KIT.glob("*.cuh"))}


@functools.cache
def rule_blocks(backend: BackendName) -> Mapping[str, tuple[list[str], str]]:
    """The building blocks of the templates that rules make, by name: the blocks that each needs, and its text."""
    file = _KIT / f"rules.{'cl' if backend == 'opencl' else 'cuh'}"
    parts = re.split(r"^//: (\w+)(.*)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {parts[at]: (parts[at + 1].split(), parts[at + 2].strip()) for at in range(0, len(parts), 3)}


def kit_lines(template: Template) -> set[int]:
    """The lines of a template's source that are blocks of the kit for rules, word by word."""
    found, source = set[int](), template.source
    for _, text in rule_blocks(template.backend).values():
        if (at := source.find(text)) >= 0:
            first = source.count("\n", 0, at) + 1
            found.update(range(first, first + text.count("\n") + 1))
    return found


def _kit_included(source: str, into: dict[str, str]) -> str:
    """`source` with empty lines for headers of the kit, whose texts `into` gets, each behind those it includes."""
    for name in _OF_KIT.findall(source):
        if name in kit() and name not in into:
            into[name] = _kit_included(kit()[name], into)
    return _OF_KIT.sub(lambda line: "" if line[1] in kit() else line[0], source)


def literal(value: bool | int | float | str) -> str:
    """A parameter's value as macro text."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def specialise(template: Template, config: Config, types: Mapping[str, str]) -> Specialised:
    """The source of `template` at `config` for a workload's `types` (type name -> data type, and more, as of
    `code_key`).

    Each type name T becomes a macro for the C type, and T_IS_FLOAT16 (and so on) is defined to 1; each parameter
    except the `launch_only` ones becomes a macro of its value, so that configurations which differ in nothing else
    have one source and one machine code. `#line` keeps the compiler's line numbers those of the template. Headers of
    the kit that a CUDA source includes stand in front of the macros, whose names they may use for something else.
    """
    hidden = {parameter.name for parameter in template.parameters if parameter.launch_only}
    if BACKENDS[template.backend].python:
        passed = {name: value for name, value in config.items() if name not in hidden}
        made = python_text(template.source, template.entry, passed, types)
        return Specialised(template.backend, template.entry, made)
    lines = [f"// {template.name}: specialised by Tunesmith"]
    source, of_kit = template.source, dict[str, str]()
    if BACKENDS[template.backend].makes_cubins:
        source = _kit_included(source, of_kit)
        needed = {DTYPES[dtype].cuda_header for dtype in types.values()} - {""}
        if "_IS_" not in template.source:  # one that asks for its types by flags names none itself
            needed |= {header for header, words in _LITERAL.items() if words.search(template.source)}
        headers = sorted(needed)
        # Before the macros below: a header that has a type parameter T would not outlive `#define T float`.
        headers += [name for name in _INCLUDED.findall(source) if name not in headers]
        lines += [*(f"#include <{header}>" for header in headers), *of_kit.values()]
    for name, dtype in sorted(types.items()):
        lines += [f"#define {name} {DTYPES[dtype].c_names[template.backend]}", f"#define {name}_IS_{dtype.upper()} 1"]
    lines += [f"#define {name} {literal(value)}" for name, value in sorted(config.items()) if name not in hidden]
    lines.append(f'#line 1 "{template.name}"')
    names: dict[str, Any] = {**DTYPE_NAMES, **types, **config}
    cap = parse(template.max_registers).integer(names) if template.max_registers else 0
    return Specialised(
        backend=template.backend,
        entry=template.entry,
        source="\n".join(lines) + "\n" + source,
        max_registers=cap or None,
        fast_math=bool(parse(template.fast_math).evaluate(names)),
    )


@contextmanager
def silent_compiler() -> Iterator[None]:
    """Leaves out what a compiler inside this process writes to its standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
