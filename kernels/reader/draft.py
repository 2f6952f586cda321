"""Drafts a task from a source: task.toml, the start of a reference, and the part of the source that the kernel uses.

Owns how a kernel is written down as a task; its unknown parts are lines with the mark of
`tunesmith.kernels.spec.taskfile`, which the task's reader refuses until they are filled in. Of a structure that a
kernel takes by value, each member that it uses becomes a parameter: before anything else is read of it, the text of its
body begins with the structure, made of these parameters. Members that no function of the device uses are zero.
"""

from __future__ import annotations

import itertools
import keyword
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.guard import refuse_text, without_comments
from tunesmith.kernels.reader.accessors import without_accessors
from tunesmith.kernels.reader.facts import (
    Facts,
    Parameter,
    cast_to,
    parameters_of,
    product,
    read_facts,
    scalar_value,
    task_type,
)
from tunesmith.kernels.reader.launch import CALL, marked
from tunesmith.kernels.reader.parse import FUNCTIONS as FUNCTION_KINDS
from tunesmith.kernels.reader.parse import (
    MAX_SECONDS,
    Entry,
    SourceError,
    Unit,
    Unknown,
    body,
    closed,
    doubt,
    kind,
    library,
    shortened,
    split,
    uncommented,
    unquoted,
    walk,
)
from tunesmith.kernels.reader.signature import refused
from tunesmith.kernels.reader.slice import Slice, listed, sliced
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.expression import FUNCTIONS, parse
from tunesmith.kernels.spec.taskfile import MARK
from tunesmith.kernels.spec.template import BACKENDS, BackendName

_BEHIND_ELEMENT = r"\bconst\b\s*|\s*\*.*|\s*\b\w+\s*\[.*"
MAX_INCLUDING = 2
"""Files that include a header whose kernel they may complete, of which each is read in turn."""
_PLURAL = {"is": "are", "has": "have", "holds": "hold", "points": "point"}

Draft = tuple[str, dict[str, str]]
"""A drafted task: the kernel's name, and the text of its files by their names."""


@dataclass(frozen=True, slots=True)
class ReadKernel:
    """A kernel as it was read, and the part of the source that it uses."""

    name: str
    backend: BackendName
    slice: Slice
    facts: Facts

    @property
    def parameters(self) -> list[Parameter]:
        """Those that become arguments of a task, in their order."""
        return [one for one in self.facts.parameters if not one.local]

    @property
    def read(self) -> list[str]:
        """The arrays that the kernel reads, in the order of its parameters."""
        return [name for name, role in self.facts.roles.items() if role != "out"]

    @property
    def written(self) -> list[str]:
        return [name for name, role in self.facts.roles.items() if role != "in"]

    @property
    def scalars(self) -> list[str]:
        return [one.name for one in self.parameters if one.name not in self.facts.roles]


def language_of(code: str, place: str) -> BackendName:
    """CUDA C++, or OpenCL C where a text has its kernels, and none of CUDA's or a name of OpenCL's."""
    marks = r"\b__kernel\b|\bkernel\s+(?:void|__attribute__)\b|\bvoid\s+kernel\s+\w+\s*\("
    text = uncommented(code)
    own = "__global__" not in text or place.endswith((".cl", ".opencl"))
    return "opencl" if own and re.search(marks, text) else "cuda"


def _passable(code: str) -> str:
    """OpenCL C whose kernels take no type that a host cannot pass, but that which a device of 64 bits has for it."""
    passed = {"size_t": "ulong", "uintptr_t": "ulong", "ptrdiff_t": "long", "intptr_t": "long", "bool": "uchar"}
    refused = re.compile(rf"\b({'|'.join(passed)})(?=\s+\w)")
    heads = r"\b(?:__kernel|kernel\s+void|void\s+kernel)\b[^;{}]*"
    return re.sub(heads, lambda head: refused.sub(lambda one: passed[one[1]], head[0]), code)


def read_kernel(
    code: str,
    entry: str | None,
    place: str,
    folders: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
    option: str = "--entry",
) -> ReadKernel:
    """The kernel `entry` of a source, or the only one. Raises `SourceError` that names all that keeps it from being a
    task."""
    installed = re.compile(r'(#[ \t]*include[ \t]*")(/[^"\n]*/)')
    code = installed.sub(lambda at: at[0] if Path(at[2]).is_dir() else at[1], unquoted(code))
    backend = language_of(code, place)
    if hole := re.search(r"\{%.*?%\}|(?<=\s)\{\{ *[A-Za-z_]\w* *\}\}", code):
        why = "before this file is a source: give the text that it makes of it"
        raise SourceError(f"{place}: a program fills in {hole[0]} {why}.")
    # PyTorch's types of 16 bits have CUDA's layout.
    for theirs, own in (("Half", "__half"), ("BFloat16", "__nv_bfloat16")) if backend == "cuda" else ():
        code = re.sub(rf"(?:::)?\b(?:c10|at|torch)::{theirs}\b", own, code)
    text = marked(without_accessors(code)) if backend == "cuda" else _passable(code)
    unit = Unit(text, Path(place), backend, folders, defines)
    if backend == "cuda" and "PackedTensorAccessor" in (headers := "\n".join(unit.texts[1:])):
        unit = Unit(marked(without_accessors(code, headers)), Path(place), backend, folders, defines)
    found = unit.entry(entry, option)
    part = first = sliced(unit, found)
    while unit.adopts(part.unknown, guesses=not unit.absent):
        found = unit.entry(entry, option)
        part = sliced(unit, found)
    wrong = bool({*part.doubts} - {*first.doubts})
    others, guessed = found.others, found.guessed
    if (flat := with_members(unit, found)) is not None:
        unit = unit.rewritten(flat)
        # The source's launches, which have the structures, do not say any more what its template is over.
        unit.bound = found.particular | unit.bound
        found = replace(unit.entry(entry, option), others=others, guessed=guessed)
    for one in parameters_of(unit, found):
        if one.whole and (keyword.iskeyword(one.name) or one.name in FUNCTIONS or one.name in DTYPES):
            kernel = unit.written(found.declared)
            named = re.sub(rf"(?<![.>])\b{one.name}\b", f"{one.name}_", kernel)
            unit = unit.rewritten(unit.code.replace(kernel, named))
            found = replace(unit.entry(entry, option), others=others, guessed=guessed)
    part = sliced(unit, found)
    if f"{CALL}(" in part.text:
        raise SourceError(f"{place}: {found.name} launches kernels, which no kernel of a task can: let the host do it.")
    # Where proposals do not help, all that the source lacks is named.
    lacking = {one.name for one in part.unknown} | (unit.proposed.keys() if part.unknown else set())
    unknown = [one for one in (*first.unknown, *part.unknown) if wrong or one.name in lacking]
    if obstacles := _obstacles(unit, found, part, unknown, backend):
        raise SourceError(f"{place}: " + "; ".join(dict.fromkeys(obstacles)) + ".", incomplete=bool(unknown))
    facts, text = read_facts(unit, found, part.doubts), part.text
    if {*facts.roles.values()} <= {"in"} and "the role" not in str(facts.questions):
        why = "is an array that it writes: a task compares such arrays, so pass its results as one"
        raise SourceError(f"{place}: no parameter of {found.name} {why}.")
    if any(one.local for one in facts.parameters):
        text = _with_local_memory(text, found.name, facts, [unit.written(one.cursor) for one in facts.parameters])
    if re.search(r"\bprintf\s*\(", without_comments(text)):
        facts.ask("source", "the printf in it: take it out, as no kernel of a task may print")
    if len(passed := [name for name, elements in facts.local.items() if not elements]) > 1:
        why = "are not constant, but a launch gives the bytes of one: declare the others inside the kernel"
        raise SourceError(f"{place}: the elements of the local memory {' and '.join(passed)} {why}.")
    renamed = dict(zip((one for one, bound in found.types.items() if bound is None), part.types, strict=True))
    facts.parameters = [replace(one, dtype=renamed.get(one.dtype, one.dtype)) for one in facts.parameters]
    facts.static = re.sub(r"(?<=sizeof\()\w+", lambda one: renamed.get(one[0], one[0]), facts.static)
    written = [one.type.spelling for one in found.declared.get_children() if kind(one) == "PARM_DECL"]
    for name, new in renamed.items():
        known_types = dict.fromkeys(C_TYPES[one] for one in found.launched.get(name, ()) if one in C_TYPES)
        # A structure of the type, such as complex<T>, is an array of numbers of the first launch's type.
        inside = any(
            re.search(rf"\b{name}\b", at) and one.dtype != new
            for at, one in zip(written, facts.parameters, strict=True)
        )
        facts.types[new] = tuple(known_types)[: 1 if inside else None] or ("float32",)
    for name in (one for one in found.untold if one in renamed):
        facts.ask(renamed[name], f"the types of {renamed[name]}, which no launch in the source names")
    return ReadKernel(found.name, backend, Slice(text, part.unknown, part.types), facts)


def _obstacles(unit: Unit, found: Entry, part: Slice, unknown: Sequence[Unknown], backend: BackendName) -> list[str]:
    """All that keeps a kernel from being a task, as far as its text tells, with remedies. unknown: undeclared names."""
    undeclared, parameters = {one.name for one in unknown}, parameters_of(unit, found)
    known = [one for one in parameters if not undeclared & {*re.findall(r"\w+", one.cursor.type.spelling)}]
    reasons, members = dict[str, list[str]](), used_members(found.function)
    for one in known:
        reasons.setdefault(refused(one, members), []).append(one.name)
    obstacles = list[str]()
    for (verb, *rest), names in ((why.split(" ", 1), names) for why, names in reasons.items() if why):
        noun, verb = ("parameters", _PLURAL[verb]) if len(names) > 1 else ("parameter", verb)
        all_names = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        obstacles.append(f"the {noun} {all_names} of {found.name} {' '.join([verb, *rest])}")
    of_type = rf"\b(?:{'|'.join(one.name for one in unknown if one.what == 'type') or '(?!)'})\b[^;(){{}}=]*\b"
    unknown = [one for one in unknown if one.what == "type" or not re.search(rf"{of_type}{one.name}\b", unit.code)]
    # Clang leaves out a variable of an unknown type, and a call with it.
    kept = [part.text, *(unit.texts if any(one.name == "texture" for one in unit.unknown.values()) else [])]
    bound = re.findall(r"(?:\btexture\s*<[^;{}()]*>|\b__device__ cudaTextureObject_t)\s*(\w+)\s*[,;]", "\n".join(kept))
    read = r"\btex\w+\s*(?:<[^()]*>)?\(\s*{}\b"
    if textures := [one for one in dict.fromkeys(bound) if re.search(read.format(one), part.text)]:
        why = "which no launch of a task binds: read an array that it takes as a parameter instead"
        obstacles.append(f"it reads the texture {' and '.join(textures)}, {why}")
        unknown = [one for one in unknown if one.name != "texture"]
    if unknown:
        obstacles.append(f"it uses undeclared names: {listed(unknown)}; {unit.remedy}")
    if part.undefined:
        obstacles.append(f"it declares, but does not define, {shortened(part.undefined)}: include the file that does")
    wrong_text = re.compile(r"unexpected|expected (?:'|expr)|subscripted")
    syntax = [one for one in unit.faults(lambda *_: True) if wrong_text.match(one.spelling)]
    ends = [one for one in syntax if not unit.text(one.location.file.name)[one.location.offset :].strip()]
    broken = [one for one in syntax if doubt(one) in part.doubts or (one in ends and one.spelling == "expected '}'")]
    # What is wrong with a line may be a name in it that is not known.
    obstacles += [text for text in map(unit.refusal, broken[:1]) if not unknown or "macros" in text]
    if (objection := refuse_text(part.text, backend)) is not None:
        remedy = "" if objection.rule == "includes" else "; remove it or write out what you need of it"
        obstacles.append(f"{objection.detail.rstrip('.')}{remedy}")
    return obstacles


def _including(file: Path, code: str) -> list[tuple[str, str]]:
    """The sources beside a file that include it, each with the file's text in the place of the line and as it is."""
    beside = sorted(file.parent.glob("*.c*")) if file.is_file() else []
    texts = {one: one.read_text("utf-8-sig", errors="replace") for one in beside if one != file}
    line = re.compile(rf'^[ \t]*#[ \t]*include[ \t]*[<"](?:[^>"\n]*/)?{re.escape(file.name)}[>"]', re.MULTILINE)
    found = [(one, text) for one, text in texts.items() if line.search(text)][:MAX_INCLUDING]
    return [(str(one), made) for one, text in found for made in (line.sub(lambda _: code, text, count=1), text)]


def _with_local_memory(text: str, name: str, facts: Facts, declared: Sequence[str]) -> str:
    """The source with the kernel's local memory declared inside it, or passed last, as a task does. declared: its
    parameters, without those that the preprocessor leaves out."""
    found = re.search(rf"\b(?:__)?kernel\b[^;{{}}]*?\b{name}\s*\(", text)
    assert found is not None
    head, rest = text[: found.end()], text[closed(text, found.end() - 1) :]
    moved = {one.name: at for one, at in zip(facts.parameters, declared, strict=True) if one.local}
    kept = [one for one in declared if one not in moved.values()]
    kept += [moved[one] for one, elements in facts.local.items() if not elements]
    before, brace, after = rest.partition("{")
    fixed = [(re.sub(_BEHIND_ELEMENT, "", moved[one]), one, count) for one, count in facts.local.items() if count]
    lines = [f"\n    {element} {one}[{count}];" for element, one, count in fixed]
    return f"{head}{', '.join(kept)}){before}{brace}{''.join(lines)}{after}"


def draft(
    code: str, entry: str | None, place: str, folders: Sequence[Path] = (), defines: Mapping[str, str] | None = None
) -> Draft:
    """The draft of a task for the kernel `entry`, or the only one; as a file that includes this one has it, where it
    says more. place: the source's file. Raises `SourceError`."""
    begun, waiting = time.process_time(), [(place, code)]
    while True:
        where, text = waiting.pop(0)
        try:
            return written(read_kernel(text, entry, where, folders, defines), where)
        except SourceError as error:
            waiting += _including(Path(where), text) if entry and error.incomplete else []
            if not waiting or time.process_time() - begun > MAX_SECONDS:
                raise


def written(read: ReadKernel, place: str, sources: Sequence[str] = (), more: Mapping[str, str] | None = None) -> Draft:
    """The draft of a kernel. sources: lines of task.toml on sources beside the baseline; more: their files, by name."""
    facts, file = read.facts, f"baseline{BACKENDS[read.backend].suffix}"
    parameters = read.parameters
    names = {one.name: one.name + "_" * keyword.iskeyword(one.name) for one in parameters}
    first = {one.name: scalar_value(one.default) for one in parameters}
    least, pointers = _least(facts), [one for one in parameters if one.pointer]
    arrays = [(facts.roles[one.name], _shape(facts, one), one.dtype) for one in pointers]
    known = all(one.name in facts.shapes for one in pointers)
    unknown = () if known else ("the bytes that must be read and written at least",)
    begun = {size: first.get(size, facts.values.get(size, "")) for size in facts.sizes}
    sizes = ", ".join(
        f"{one} = {text if re.fullmatch('0*[1-9][0-9]*', text) else least}" for one, text in begun.items()
    )
    lines = [
        f"# Drafted from {place}. Lines with a FILL comment need your answer; delete the comment when it is there.",
        "",
        f'name = "{read.name}"',
        'summary = ""',
        f'entry = "{read.name}"',
        f'reference = "reference.py:{read.name}"',
        "",
        "# Least traffic: each input read once, each output written once.",
        f'bytes = "{least_bytes(arrays)}"{_mark(unknown)}',
        *([f"requires = [{_quoted(facts.requires)}]"] if facts.requires else []),
        "",
        "arguments = [",
        *(f"    {_argument(facts, one, names)}" for one in parameters),
        "]",
        "",
        *_types(facts),
        "# How far a result may be from the reference: |got - expected| <= atol + rtol * |expected|.",
        "# [tolerance]",
        f"# float32 = {{ rtol = {DTYPES['float32'].rtol:g}, atol = {DTYPES['float32'].atol:g} }}",
        "",
        f"[backends.{read.backend}.baseline]",
        f'source_file = "{file}"{_unset(read)}',
        'label = "plain"',
        *_launch(facts),
        *([f"[backends.{read.backend}]", *sources] if sources else []),
        "",
        "# The sizes that you use the kernel with; more [[workloads]] as you like. With `held_out = true` one is only",
        "# checked and compared.",
        "[[workloads]]",
        f"sizes = {{ {sizes} }}{_mark(['the sizes you use', *facts.questions.get('sizes', [])])}"
        if sizes
        else "sizes = {}",
        *(['devices = ["gpu"]'] if read.backend != "opencl" else []),
        "",
    ]
    files = {"task.toml": "\n".join(lines), "reference.py": _reference(read, parameters, names), file: read.slice.text}
    return read.name, files | {**(more or {})}


def _mark(questions: Sequence[str], between: str = "; ") -> str:
    return f"  {MARK} {between.join(questions)}" if questions else ""


def _least(facts: Facts) -> int:
    """The least power of two that all sizes may have, and that leaves no grid, block or array without an element."""
    dims = [one for dims in (facts.grid, facts.block, *facts.shapes.values()) for one in dims]
    for value in (2**power for power in range(11)):
        sizes = dict.fromkeys(facts.sizes, value)
        if all(parse(one).names - sizes.keys() or parse(one).evaluate(sizes) > 0 for one in (*dims, *facts.requires)):
            return int(value)
    return 1


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f'"{one}"' for one in texts)


def _types(facts: Facts) -> list[str]:
    if not facts.types:
        return []
    lines = ["# The data types that you use the template with; the first one is meant where a workload names none."]
    asked = {name: _mark(facts.questions.get(name, ())) for name in facts.types}
    return [*lines, "[types]", *(f"{name} = [{_quoted(of)}]{asked[name]}" for name, of in facts.types.items()), ""]


def _unset(read: ReadKernel) -> str:
    """A mark on what the source does not say, and where the kernel reads variables that it does not set: tables in
    constant memory are zero then, and others keep what a launch before left in them."""
    asked = [*read.facts.questions.get("source", ())]
    unset = "memory that is read but never set: give an initialiser in the source, or"
    for declared, why in (("__constant__[^;{}]*;", unset), ("__device__[^;{}()]*;", "memory that no launch sets:")):
        found = [
            name
            for text in re.findall(rf"^(?![ \t]*#)[^\n/]*{declared}", read.slice.text, re.MULTILINE)
            for name in re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=[,;])", text)
            if not re.search(rf"\b{name}\b[^,;]*=", text) and len(re.findall(rf"\b{name}\b", read.slice.text)) > 1
        ]
        memory = declared.partition("[")[0]
        asked += [f"the values of {', '.join(found)}, {memory} {why} make an argument of it"] if found else []
    return _mark(asked)


def _launch(facts: Facts) -> list[str]:
    block = ", ".join(one if one.isdigit() else f'"{one}"' for one in facts.block)
    given = facts.shared != "0" or "shared_bytes" in str(facts.questions)
    shared = f', shared_bytes = "{facts.shared}"' if given else ""
    mark = _mark(facts.questions.get("launch", ()), " and ")
    lines = [f"launch = {{ grid = [{_quoted(facts.grid)}], block = [{block}]{shared} }}{mark}"]
    return [*lines, *([f'static_shared_bytes = "{facts.static}"'] if facts.static != "0" else [])]


def _shape(facts: Facts, one: Parameter) -> tuple[str, ...]:
    """The drafted shape; where it is not known, the extents that an accessor has, or that of another array."""
    if one.name not in facts.shapes and (extents := facts.extents(one)):
        return extents
    like = next(
        (facts.shapes[other.name] for other in facts.parameters if other.name in facts.shapes and other.lanes == 1),
        ("1",),
    )
    return facts.shapes.get(one.name) or (like if one.lanes == 1 else ("1", str(one.lanes)))


def _argument(facts: Facts, one: Parameter, names: Mapping[str, str]) -> str:
    dtype, questions = one.dtype, list(facts.questions.get(one.name, ()))
    if not one.pointer:
        value = facts.values.get(one.name, one.name)
        if one.name not in facts.sizes and one.name not in facts.values:
            default = scalar_value(one.default)
            value = default or ("1" if one.kind.what == "number" else "1.0")
            questions.append(f"the value of {one.name}" + (f", of which {value} is the default" if default else ""))
        fields = f'name = "{names[one.name]}", role = "scalar", dtype = "{dtype}", value = "{value}"'
    else:
        role = facts.roles[one.name]
        shape = _quoted(_shape(facts, one))
        fields = f'name = "{names[one.name]}", role = "{role}", dtype = "{dtype}", shape = [{shape}]'
        if role != "out" and dtype == "bool":
            fields += ", fill = { low = 0, high = 1 }"
            questions.append(f"what {one.name} holds: `fill` draws as many false as true")
        elif role != "out" and dtype in DTYPES and not DTYPES[dtype].is_float:
            fields += ', fill = { kind = "uniform", mean = 50, scale = 50 }'
            questions.append(f"what {one.name} holds: `fill` draws whole numbers from mean - scale to mean + scale")
    return f"{{ {fields} }},{_mark(questions)}"


def least_bytes(arrays: Iterable[tuple[str, Sequence[str], str]]) -> str:
    """The bytes that arrays, by role, shape and type, must be read and written at least."""
    sizes = (("2 * " * (role == "inout"), product((*shape, f"sizeof({dtype})"))) for role, shape, dtype in arrays)
    return " + ".join(f"{twice}{size}" for twice, size in sizes) or "0"


def _reference(read: ReadKernel, parameters: Sequence[Parameter], names: Mapping[str, str]) -> str:
    roles = read.facts.roles
    given = [names[one.name] for one in parameters if not one.pointer or roles[one.name] != "out"]
    outputs = [names[one.name] for one in parameters if one.pointer and roles[one.name] != "in"]
    shapes = [f"    {names[one.name]}: [{', '.join(_shape(read.facts, one))}]" for one in parameters if one.pointer]
    returned = ", ".join(f'"{name}": ...' for name in outputs)
    return "\n".join(
        [
            f'"""What {read.name} computes, in float64."""',
            "",
            "import numpy as np",
            "",
            "",
            f"def {read.name}({', '.join(given)}):",
            '    """Arrays come as float64, in the shapes of task.toml:',
            "",
            *shapes,
            '    """',
            f"    return {{{returned}}}  {MARK} an array for each, computed with NumPy (np) from the arguments",
            "",
        ]
    )


MAX_ELEMENTS = 32
"""Elements of a member that is an array, each of which becomes a parameter."""


def with_members(unit: Unit, entry: Entry) -> str | None:
    """The source with members in the place of structures; None without any, or where one cannot be a parameter."""
    code, made, spread = unit.code.encode(), list[str](), dict[int, list[str]]()
    # By place, of which a macro's has several parameters.
    texts, edited = dict[tuple[int, int], list[str]](), set[tuple[int, int]]()
    used = used_members(entry.function)
    names = [one.spelling for one in entry.function.get_arguments()]
    generic = [one for one in entry.declared.get_children() if kind(one) == "PARM_DECL"]
    for at, (one, written) in enumerate(zip(entry.function.get_arguments(), generic, strict=True)):
        type_ = one.type.get_canonical()
        start, end = written.extent.start, written.extent.end.offset
        text = texts.setdefault((start.offset, end), [])
        if type_.kind.name not in ("RECORD", "EXTVECTOR") or task_type(type_):
            text.append(f"{written.type.spelling} {one.spelling}")
            continue
        parameters, value = _flat(type_, one.spelling, "", used, entry.declared, unit.language) or ({}, "")
        taken = {one.rpartition(" ")[2] for one in parameters} & {*names}
        if start.file is None or start.file.name != unit.where or not parameters or taken:
            return None
        edited.add((start.offset, end))
        text += parameters
        named = written.type.spelling.removeprefix("__private ")
        each = "".join(f" {one.spelling}{path} = {name.rpartition(' ')[2]};" for name, path in parameters.items())
        unset = f" {named.removeprefix('const ')} {one.spelling};{each}"
        made.append(f" {named} {one.spelling} = {value};" if value else unset)
        spread[at] = [*parameters.values()]
    begin = body(entry.declared)
    if not edited or begin is None:
        return None
    edits = [(*place, ", ".join(texts[place])) for place in edited]
    edits.append((begin.extent.start.offset + 1, begin.extent.start.offset + 1, "".join(made)))
    for first, last, made_of in sorted(edits, reverse=True):
        code = code[:first] + made_of.encode() + code[last:]
    calls = re.compile(rf'(?<={CALL}\("{entry.name}", )([^;]*)(?=\); )')
    return calls.sub(lambda call: _spread(call[1], spread), code.decode(errors="replace"))


def _spread(call: str, members: dict[int, list[str]]) -> str:
    """The arguments of a launch, with the members of structures in their place."""
    parts = split(call)
    for at, names in sorted(members.items(), reverse=True):
        given = parts[at + 3] if at + 3 < len(parts) else "0"
        parts[at + 3 : at + 4] = [f"{given}{name}" if given != "0" else "0" for name in names]
    return ", ".join(parts)


def _flat(
    record: Any, name: str, path: str, used: Mapping[str, Any], function: Any, language: str
) -> tuple[dict[str, str], str] | None:
    """Parameters for the members of a structure called `name`, with their paths in it behind `path`, and the
    initialiser that makes it of them, empty where constructors or bases leave assignments alone; None where a member
    cannot be a parameter. function: the kernel."""
    parameters, values = dict[str, str](), list[str]()
    if record.kind.name == "EXTVECTOR":
        names = [f"{name}_{'xyzw'[at] if record.element_count <= 4 else at}" for at in range(record.element_count)]
        element = record.element_type.spelling
        made = f"({element.replace('unsigned ', 'u')}{len(names)})({', '.join(names)})"
        return {f"{element} {one}": "" for one in names}, made
    members, plain = _members(record, used)
    if not plain and any(one.access_specifier.name != "PUBLIC" for one in members if one.get_usr() in used):
        # A constructor that takes the only member sets it; of several the order is not known.
        if len(members) > 1:
            return None
        plain = True
    for member in members:
        called, type_ = f"{name}_{member.spelling}", member.type.get_canonical()
        at = f"{path}.{member.spelling}"
        lengths, inner_type = list[int](), type_
        while inner_type.kind.name == "CONSTANTARRAY":
            lengths, inner_type = [*lengths, inner_type.element_count], inner_type.element_type
        if member.get_usr() not in used:
            in_c = "{0}" if type_.kind.name in ("RECORD", "CONSTANTARRAY") else "0"
            values.append("{}" if language == "cuda" else in_c)
        elif type_.kind.name in ("RECORD", "EXTVECTOR") and not task_type(type_):
            if (inner := _flat(type_, called, at, used, function, language)) is None:
                return None
            parameters |= inner[0]
            values.append(inner[1])
            plain = plain and bool(inner[1])
        elif lengths and _is_plain(inner_type) and prod(lengths) <= MAX_ELEMENTS:
            places = [*itertools.product(*map(range, lengths))]
            names = ["_".join([called, *map(str, place)]) for place in places]
            parameters |= {
                f"{inner_type.spelling} {one}": at + "".join(f"[{index}]" for index in place)
                for one, place in zip(names, places, strict=True)
            }
            values.append(f"{{{', '.join(names)}}}")
        elif _is_plain(type_):
            to_void = type_.kind.name == "POINTER" and type_.get_pointee().kind.name == "VOID"
            into = cast_to(function, member) if to_void else None
            parameters[f"{member.type.spelling if into is None else f'{into.spelling} *'} {called}"] = at
            values.append(called)
        else:
            return None
    return parameters, f"{{{', '.join(values)}}}" if plain else ""


def _members(record: Any, used: Mapping[str, Any]) -> tuple[list[Any], bool]:
    """The members of a structure, with those of its bases that are used, and whether a list initialises it."""
    declared = record.get_declaration()
    parts = [*(library().clang_getSpecializedCursorTemplate(declared) or declared).get_children()]
    names = [one.spelling for one in parts if kind(one).startswith("TEMPLATE_")]
    given = {name: record.get_template_argument_type(at).spelling for at, name in enumerate(names)}
    found, owners = [*record.get_fields()], {one.semantic_parent for one in used.values()}
    for base in parts:
        # Of a template's base the text is known, and its instance by the members of it that are used.
        text = base.type.spelling if kind(base) == "CXX_BASE_SPECIFIER" else ""
        called = re.sub(r"\w+", lambda word: given.get(word[0], word[0]), text)
        for owner in owners:
            if called and re.sub(r"\w+::", "", owner.type.spelling) == re.sub(r"\w+::", "", called):
                found += _members(owner.type, used)[0]
    return found, not {"CXX_BASE_SPECIFIER", "CONSTRUCTOR"} & {*map(kind, parts)}


def _is_plain(type_: Any) -> bool:
    """Whether it is a number, or a pointer to something else than a function."""
    inner = type_.get_canonical().get_pointee()
    return bool(task_type(type_)) if inner.kind.name == "INVALID" else inner.kind.name != "FUNCTIONPROTO"


def used_members(function: Any) -> dict[str, Any]:
    """All members that the function, or a function that it calls, reads or writes, by their identifiers."""
    waiting, seen, used = [function], set[int](), dict[str, Any]()
    while waiting:
        for one, target in ((one, one.referenced) for one in walk(waiting.pop())):
            if target is not None and kind(one) == "MEMBER_REF_EXPR":
                used[target.get_usr()] = target
            if target is not None and kind(target) in (*FUNCTION_KINDS, "CXX_METHOD") and target.hash not in seen:
                seen.add(target.hash)
                waiting.append(target.get_definition() or target)
    return used
