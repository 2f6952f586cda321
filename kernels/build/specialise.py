"""The source a compiler sees: a template with its parameters and the workload's types written in as macros.

What is compiled is exactly what is handed to the user in the end, so a winner can be rebuilt from its text alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tunesmith.kernels.build.shared_code import stand_in, uses
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.template import BackendName, Template

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([A-Za-z0-9_./-]+)>", re.MULTILINE)
_UNDEFINED = re.compile(r"^[ \t]*#[ \t]*undef[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Specialised:
    """A complete translation unit.

    max_registers: cap per thread or None; fast_math: relaxed arithmetic allowed; alike: equal for sources that differ
    in nothing that reaches the machine code (`tunesmith.kernels.build.shared_code`), empty where that is not known.
    """

    backend: BackendName
    entry: str
    source: str
    max_registers: int | None = None
    fast_math: bool = False
    alike: str = ""

    @property
    def digest(self) -> str:
        """Content hash of everything that decides the machine code, compiler and architecture apart."""
        what = self.alike or self.source
        text = "\0".join((self.backend, self.entry, str(self.max_registers), str(self.fast_math), what))
        return hashlib.sha256(text.encode()).hexdigest()


@lru_cache
def _undefined(source: str) -> frozenset[str]:
    """The names that a template's source undefines; asked for every configuration."""
    return frozenset(_UNDEFINED.findall(source))


def literal(value: bool | int | float | str) -> str:
    """A parameter's value as macro text."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def specialise(template: Template, config: Config, types: Mapping[str, str]) -> Specialised:
    """The source of `template` at `config` for a workload's `types` (type name -> data type).

    Each type name T becomes a macro for the C type, and T_IS_FLOAT16 (and so on) is defined to 1; each parameter
    becomes a macro of its value. `#line` keeps the compiler's line numbers those of the template. A source with
    `#undef T` says what T is by itself: the header of its 16-bit float is left out, as it takes long to compile.
    """
    lines = [f"// {template.name}: specialised by Tunesmith"]
    if template.backend == "cuda":
        own = _undefined(template.source)
        headers = sorted({DTYPES[dtype].cuda_header for name, dtype in types.items() if name not in own} - {""})
        # Before the macros below: a header that has a type parameter T would not outlive `#define T float`.
        headers += [name for name in _INCLUDED.findall(template.source) if name not in headers]
        lines += [f"#include <{header}>" for header in headers]
    for name, dtype in sorted(types.items()):
        lines += [f"#define {name} {DTYPES[dtype].c_name(template.backend)}", f"#define {name}_IS_{dtype.upper()} 1"]
    head = list(lines)
    lines += [f"#define {name} {literal(value)}" for name, value in sorted(config.items())]
    lines.append(f'#line 1 "{template.name}"')
    names: dict[str, Any] = {**{dtype: dtype for dtype in DTYPES}, **types, **config}
    cap = parse(template.max_registers).integer(names) if template.max_registers else 0
    return Specialised(
        backend=template.backend,
        entry=template.entry,
        source="\n".join(lines) + "\n" + template.source,
        max_registers=cap or None,
        fast_math=bool(parse(template.fast_math).evaluate(names)),
        alike=_alike(template.source, head, config),
    )


def _alike(source: str, head: Sequence[str], config: Config) -> str:
    """A digest of the source with those values left out that it cannot tell apart; empty where it tells all apart."""
    names = uses(source)
    # The text of a value may name anything.
    if names is None or any(isinstance(value, str) for value in config.values()):
        return ""
    stand_ins = {name: stand_in(value, names.get(name, frozenset())) for name, value in config.items()}
    if not any(stand_ins.values()):
        return ""
    lines = [f"{name} {stand_ins[name] or '= ' + literal(value)}" for name, value in sorted(config.items())]
    return hashlib.sha256("\n".join([*head, *lines, source]).encode()).hexdigest()
