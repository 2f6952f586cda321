"""Accessors of PyTorch's tensors, in the text of a source, as pointers with sizes.

A kernel of a PyTorch extension takes `torch::PackedTensorAccessor32<float, 3, ...> x`, which has a pointer, sizes and
strides. Before anything else is read of the source, it becomes `float* x` with an argument for each size in use, and
`x[i][j][k]` an element of a contiguous array. Lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tunesmith.kernels.reader.parse import closed, split

_ACCESSOR = re.compile(r"(?:\bconst\s+)?\b(?:(?:torch|at)::)?(?:Generic)?PackedTensorAccessor(32|64)?\s*<")
_NAME = re.compile(r"\s*&?\s*(\w+)\s*(?=[,)])")
_METHOD = re.compile(r"\s*\.\s*(size|stride|data)\s*\(\s*(\d*)\s*\)")
_ALIAS = re.compile(r"(?:\bconst\s+)?\bauto\b(?:\s*&)*\s*(\w+)\s*=\s*$")
_PACKED = re.compile(r"\s*\.\s*(?:generic_)?packed_accessor(?:32|64)?\b")
_NAMED = re.compile(
    r"^[ \t]*(?:#[ \t]*define[ \t]+|(?:template\s*<([^<>]*)>\s*)?using\s+)(\w+)\s*[= \t]\s*"
    r"(\S*PackedTensorAccessor\w*\s*<[^\n;]*>)[ \t]*;?[ \t]*$",
    re.MULTILINE,
)
"""A macro or an alias, of a template too: its parameters, its name, and its text."""
_SIZE = re.compile(r"(?<![\w.>])(\w+)\.size\((\d)\)")
_FIRST = re.compile(r"^[ \t]*(?=(?:template|namespace|using|static|inline|extern|const|void|__\w+__)\b)", re.MULTILINE)


def without_accessors(code: str, headers: str = "") -> str:
    """The source in which no function takes accessors, as far as its text can say it without them. headers: with names
    for accessors that it has from elsewhere."""
    kernels = dict[str, Mapping[int, list[int]]]()
    for generic, name, written in _NAMED.findall(f"{code}\n{headers}"):
        code = _unnamed(code, generic, name, written)
    limit = len(code)
    while found := [*_ACCESSOR.finditer(code, 0, limit)]:
        limit = found[-1].start()
        if (begin := _opened(code, limit)) is None:
            continue
        end, limit = closed(code, begin), begin
        head, function = re.compile(r"\s*\{").match(code, end), re.search(r"(\w+)\s*$", code[:begin])
        commented = "//" in code[code.rfind("\n", 0, begin) + 1 : begin]
        if head is None or function is None or commented:
            continue
        is_kernel = "__global__" in re.split(r"[;}]", code[: function.start()])[-1]
        close = closed(code, head.end() - 1)
        made = _function(code[begin:end], code[end:close], is_kernel)
        if made is not None:
            kernels |= {function[1]: made[2]} if is_kernel else {}
            code = code[:begin] + made[0] + made[1] + code[close:]
    for kernel, of_parameters in kernels.items():
        for launch in reversed([*re.finditer(rf"\b{kernel}\s*(?:<[^;{{}}()]*?>\s*)?<<<[^;{{}}]*?>>>\s*\(", code)]):
            end = closed(code, launch.end() - 1)
            code = code[: launch.end()] + _passed(code[launch.end() : end - 1], of_parameters) + code[end - 1 :]
    # Of the host, where launches are computed from the sizes of its tensors.
    sizes = {f"{tensor}_size{dimension}" for tensor, dimension in _SIZE.findall(code)} if kernels else set()
    declared = f"extern int {', '.join(sorted(sizes))}; " if sizes else ""
    return _FIRST.sub(declared, _SIZE.sub(r"\1_size\2", code), count=1) if sizes else code


def _unnamed(code: str, generic: str, name: str, written: str) -> str:
    """The source with what a name stands for in its place. generic: the parameters of the name's template."""
    names = [one.split()[-1] for one in split(generic) if one]
    used = re.compile(rf"(?<!define )(?<!using )\b{name}\b" + r"\s*<([^<>]*)>" * bool(names))

    def bound(use: re.Match[str]) -> str:
        given = dict(zip(names, split(use[1]) if names else (), strict=False))
        return re.sub(r"\w+", lambda word: given.get(word[0], word[0]), written)

    return used.sub(bound, code)


def _opened(text: str, at: int) -> int | None:
    """The place of the parenthesis that is open at `at`."""
    depth = 0
    for place in range(at - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth < 0:
            return place
    return None


def _function(parameters: str, body: str, is_kernel: bool) -> tuple[str, str, dict[int, list[int]]] | None:
    """The parameters and the body of a function without accessors, and by the place of an accessor the dimensions whose
    sizes follow it: of a kernel those in use, of others all, as a call passes them. None where an accessor cannot be
    taken apart."""
    found, at, made = dict[int, list[int]](), 0, ""
    while (one := _ACCESSOR.search(parameters, at)) is not None:
        end = closed(parameters, one.end() - 1)
        element, rank, *traits = [*split(parameters[one.end() : end - 1]), ""]
        name = _NAME.match(parameters, end)
        if name is None or not rank.isdigit():
            return None
        sizes = [f"{name[1]}_size{dimension}" for dimension in range(int(rank))]
        body = _plain(body, name[1], sizes)
        used = [place for place, size in enumerate(sizes) if not is_kernel or re.search(rf"\b{size}\b", body)]
        count = "int" if one[1] == "32" else "long long"
        pointer = f"{element}* {'__restrict__ ' if 'RestrictPtrTraits' in traits[0] else ''}{name[1]}"
        written = [pointer, *(f"{count} {sizes[place]}" for place in used)]
        lines = "\n" * parameters.count("\n", one.start(), name.end())
        found[len(split(parameters[1 : one.start()])) - 1] = used
        made, at = made + parameters[at : one.start()] + ", ".join(written) + lines, name.end()
    return made + parameters[at:], body, found


def _plain(body: str, name: str, sizes: Sequence[str]) -> str:
    """A function's body in which `name` is a pointer to a contiguous array of `sizes`."""
    made, at, aliases = "", 0, dict[str, Sequence[str]]()
    for one in re.finditer(rf"(?<![\w.]){name}\b(?!\s*\()", body):
        if one.start() < at:
            continue
        end, offset, rest = one.end(), "", list(sizes)
        while rest and (bracket := re.compile(r"\s*\[").match(body, end)):
            end = closed(body, bracket.end() - 1)
            index = _plain(body[bracket.end() : end - 1], name, sizes)
            offset = f"{_grouped(offset)} * {rest[0]} + {_grouped(index)}" if offset else index
            rest.pop(0)
        pointer = f"({name} + {' * '.join([_grouped(offset), *rest])})" if offset else name
        text = f"{name}[{offset}]" if not rest else pointer
        if rest and (method := _METHOD.match(body, end)):
            dimension, end = int(method[2] or 0), method.end()
            stride = f"({' * '.join(rest[dimension + 1 :]) or 1})"
            text = {"size": rest[min(dimension, len(rest) - 1)], "stride": stride, "data": pointer}[method[1]]
        elif rest and (alias := _ALIAS.search(body, at, one.start())):
            aliases[alias[1]] = rest
            made, at = f"{made}{body[at : alias.start()]}auto {alias[1]} = ", one.start()
        elif rest and re.match(r"\s*[,)]", body[end:]):
            text = ", ".join([pointer, *rest])
        made, at = made + body[at : one.start()] + text, end
    made += body[at:]
    for other, of_other in aliases.items():
        made = _plain(made, other, of_other)
    return made


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _passed(given: str, sizes: Mapping[int, list[int]]) -> str:
    """The arguments of a launch, with the sizes that follow an accessor's pointer, by the argument's place."""
    arguments = list[str]()
    for place, one in enumerate(split(given)):
        tensor = _PACKED.split(one)[0]
        arguments += [one] if place not in sizes else [tensor, *(f"{tensor}_size{at}" for at in sizes[place])]
    return ", ".join(arguments) + "\n" * given.count("\n")
