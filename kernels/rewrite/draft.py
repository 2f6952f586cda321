"""Drafts a task from a CUDA source: task.toml, the start of a reference, and the source as Tunesmith takes it.

Owns what can be read from the code and how it is written down; what cannot be read stands in lines with the mark of
`tunesmith.kernels.spec.taskfile`, which the task's reader refuses until they are filled in.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.rewrite.arguments import require_arguments
from tunesmith.kernels.rewrite.device_code import device_code
from tunesmith.kernels.rewrite.extent import Polynomial, extents
from tunesmith.kernels.rewrite.host_launch import HostBlock, block_of_host
from tunesmith.kernels.rewrite.source import Kernel, Parameter, Source, SourceError, text, walk
from tunesmith.kernels.rewrite.threads import Cells, Rows, block_stride, loop_of, rows_of_threads, sharing
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.expression import FUNCTIONS
from tunesmith.kernels.spec.taskfile import MARK

if TYPE_CHECKING:
    from tree_sitter import Node

BLOCKS = {1: ("256",), 2: ("32", "8"), 3: ("32", "4", "2")}
"""Threads of a block by its number of axes, where the source does not say."""
_BOUND = re.compile(r"[\w\s+*/()-]+")


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted task. name: of the kernel; files: text by file name; left: lines that are still to be filled in; notes:
    what its author should know, a sentence each."""

    name: str
    files: dict[str, str]
    left: int
    notes: tuple[str, ...] = ()


def draft(code: str, entry: str | None, where: str) -> Draft:
    """The draft of a task for the kernel `entry`, or the only one. where: the source's file. Raises `SourceError`."""
    if "__global__" not in code and re.search(r"\b__kernel\b|\bkernel\s+void\b", code):
        raise SourceError(
            f"{where}: this is OpenCL C, and `init` drafts CUDA sources alone: write a task.toml for it as in "
            "docs/tasks.md."
        )
    device = device_code(code)
    host = code
    code = device.text
    kernel = Source(code).kernel(entry, where)
    code, types = _without_template(code, kernel, where)
    kernel = Source(code).kernel(kernel.name, where)
    source = _source(code, kernel, where, types)
    names = {one.name: _python_name(one.name) for one in kernel.parameters}
    work = sharing(kernel)
    launch = ReadLaunch(kernel, work, block_of_host(host, kernel.name))
    found = extents(kernel, launch.coordinates, launch.blocks)
    values = _default_values(kernel, launch, found)
    sizes = [one.name for one in kernel.parameters if is_size(one) and one.name not in values] + launch.new_sizes
    first = {one.name: _number(one.default) for one in kernel.parameters}
    for size in sizes:
        if keyword.iskeyword(size) or size in FUNCTIONS or size in DTYPES:
            raise SourceError(
                f"{where}: the parameter {size} of {kernel.name} has a reserved name; rename it, as to {size}_."
            )
    guess = next(iter(found.values()), None)
    arrays = {one.name: found.get(one.name, guess) for one in kernel.parameters if one.pointer}
    lines = [
        f"# Drafted from {where}. Lines with a FILL comment need your answer; delete the comment when it is there.",
        "",
        f'name = "{kernel.name}"',
        'summary = ""',
        f'entry = "{kernel.name}"',
        f'reference = "reference.py:{kernel.name}"',
        "",
        "# Least traffic: each input read once, each output written once.",
        _bytes(kernel, arrays, found),
        "",
        "arguments = [",
        *(f"    {_argument(kernel, one, names, found, arrays, values)}" for one in kernel.parameters),
        "]",
        "",
        *_types(types),
        "# How far a result may be from the reference: |got - expected| <= atol + rtol * |expected|.",
        "# [tolerance]",
        f"# float32 = {{ rtol = {DTYPES['float32'].rtol:g}, atol = {DTYPES['float32'].atol:g} }}",
        "",
        "[backends.cuda.baseline]",
        f'source_file = "baseline.cu"{_unset(kernel)}',
        'label = "plain"',
        *launch.lines,
        "",
        "# The sizes that you use the kernel with; more [[workloads]] as you like. With `held_out = true` one is only",
        "# checked and compared.",
        "[[workloads]]",
        f"sizes = {{ {', '.join(f'{size} = {first.get(size) or 1}' for size in sizes)} }}  {MARK} the sizes you use",
        'devices = ["gpu"]',
        "",
    ]
    files = {
        "task.toml": "\n".join(lines),
        "reference.py": _reference(kernel, names, arrays),
        "baseline.cu": source,
    }
    left = sum(
        line.count(f" {MARK}") for name, one in files.items() if name != "baseline.cu" for line in one.splitlines()
    )
    odd = (f"The rules leave this kernel as it is: {one.why}." for one in kernel.oddities)
    return Draft(kernel.name, files, left, (*device.notes, *_not_understood(kernel), *odd))


def _not_understood(kernel: Kernel) -> list[str]:
    """A note on the first line that the parser does not understand."""
    wrong = next((node for node in walk(kernel.function) if node.is_error or node.is_missing), None)
    if wrong is None:
        return []
    line = kernel.code.decode().splitlines()[wrong.start_point[0]].strip()
    return [f"`{line:.80}` is not C++ that the parser understands; correct it if it is a mistake."]


def _types(types: tuple[str, ...]) -> list[str]:
    if not types:
        return []
    lines = ["# The data types that you use the template with; the first one is meant where a workload names none."]
    return [*lines, "[types]", *(f'{name} = ["float32"]' for name in types), ""]


def _without_template(code: str, kernel: Kernel, where: str) -> tuple[str, tuple[str, ...]]:
    """The source with a templated kernel as a plain one over types of the task, and these; any other as it is. Values
    are macros: raises `SourceError` where a value is not a number."""
    above: Node | None = kernel.function
    while above is not None and above.type != "template_declaration":
        above = above.parent
    given = None if above is None else above.child_by_field_name("parameters")
    if above is None or given is None:
        return code, ()
    types, edits = list[str](), [(given.start_byte, given.end_byte, "")]
    edits.append((above.start_byte, given.start_byte, ""))
    elsewhere = {
        text(node)
        for node in walk(kernel.root)
        if node.type in ("identifier", "type_identifier") and not above.start_byte <= node.start_byte < above.end_byte
    }
    for one in given.named_children:
        name = next((text(node) for node in walk(one) if node.type in ("type_identifier", "identifier")), "")
        if one.type in ("type_parameter_declaration", "optional_type_parameter_declaration"):
            new = name
            while new in elsewhere:
                # Another template has a parameter of this name, which a macro would replace.
                new = f"{new}_"
            types.append(new)
            edits += [
                (node.start_byte, node.end_byte, new)
                for node in walk(kernel.function)
                if node.type in ("identifier", "type_identifier") and text(node) == name
            ]
        elif one.type.startswith("variadic"):
            raise SourceError(
                f"{where}: {kernel.name} is a template over any number of parameters ({text(one)}): write out the "
                "parameters that you use."
            )
        elif one.type != "comment":
            value = next((text(node) for node in walk(one) if node.type == "identifier"), text(one))
            if not re.search(rf"^[ \t]*#[ \t]*define[ \t]+{value}\b", code, re.MULTILINE):
                raise SourceError(
                    f"{where}: {kernel.name} is a template over the value {value}: say which one you launch, "
                    f"with -D {value}=VALUE."
                )
    data = code.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode(), tuple(types)


def _source(code: str, kernel: Kernel, where: str, types: tuple[str, ...]) -> str:
    """The source with the kernel as `extern "C"`; raises `SourceError` with what has to be changed."""
    if not kernel.extern_c:
        code = _external(code, kernel)
    refused = refuse_text(code, "cuda")
    if refused is not None:
        remedy = "" if refused.rule == "includes" else "; remove it or write out what you need of it"
        raise SourceError(f"{where}: {refused.detail.rstrip('.')}{remedy}.")
    require_arguments(kernel, types, where)
    return code


def _external(code: str, kernel: Kernel) -> str:
    """The source with the kernel as `extern "C"`, which no `static` and no earlier declaration contradicts."""
    edits = [(kernel.start, kernel.start, b'extern "C" ')]
    edits += [(one.start_byte, one.end_byte, b"") for one in kernel.function.children if text(one) == "static"]
    for node in walk(kernel.root):
        if node.type == "declaration" and any(text(one) == "__global__" for one in node.children):
            declarator = node.child_by_field_name("declarator")
            name = None if declarator is None else declarator.child_by_field_name("declarator")
            above = node.parent if node.parent is not None and node.parent.type == "template_declaration" else node
            if name is not None and text(name) == kernel.name:
                edits.append((above.start_byte, above.end_byte, b""))
    data = code.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new + data[end:]
    return data.decode()


def _unset(kernel: Kernel) -> str:
    """A mark where the kernel reads tables in constant memory that the source does not set, as then they are zero."""
    found = []
    for node in walk(kernel.root):
        if node.type == "declaration" and any(text(one) == "__constant__" for one in node.children):
            for one in node.children_by_field_name("declarator"):
                name = next((text(at) for at in walk(one) if at.type == "identifier"), "")
                if one.type != "init_declarator" and re.search(rf"\b{name}\b", kernel.plain):
                    found.append(name)
    if not found:
        return ""
    return (
        f"  {MARK} the values of {', '.join(found)}, __constant__ memory that is read but never set: give an "
        "initialiser in baseline.cu, or make an argument of it"
    )


class ReadLaunch:
    """The launch as far as the code tells it. coordinates: by axis, the bound of global coordinates; blocks: by axis,
    the number of blocks; new_sizes: sizes that no parameter gives; grid, block: expressions of task.toml; unknown: what
    the code does not tell; lines: of task.toml."""

    def __init__(self, kernel: Kernel, work: object, host: HostBlock | None = None) -> None:
        self.coordinates: dict[str, str] = {}
        self.blocks: dict[str, str] = {}
        self.new_sizes: list[str] = []
        grid, unknown = ["1", "1", "1"], list[str]()
        block = ["1", "1", "1"]
        declared = next((one for one in kernel.function.children if one.type == "launch_bounds"), None)
        given = re.search(r"\(\s*(\d+)\s*[,)]", text(declared)) if declared is not None else None
        if isinstance(work, Cells):
            extents_ = BLOCKS[len(work.axes)] if given is None or len(work.axes) > 1 else (given.group(1),)
            for axis, threads in zip(work.axes, extents_, strict=True):
                at = "xyz".index(axis.name)
                if host is not None and host.threads:
                    threads = str(host.threads[at]) if at < len(host.threads) else "1"
                bound = _expression(axis.bound or (_stride_bound(kernel) if axis.strided else ""), kernel)
                block[at] = threads
                if bound:
                    self.coordinates[axis.name] = bound
                    blocks = f"ceil_div({bound}, {threads})"
                    grid[at] = f"min({blocks}, 1056)" if axis.strided else blocks
                else:
                    unknown.append(f"the number of blocks along {axis.name}")
        else:
            # Where shared memory has an element for each thread, its size is that of the block.
            rows = rows_of_threads(kernel) if not isinstance(work, Rows) else ""
            block[0] = given.group(1) if given is not None else rows or "256"
            for at, threads in enumerate(host.threads if host is not None else ()):
                block[at] = str(threads)
            if rows:
                work = Rows()
            if not isinstance(work, Rows):
                unknown.append("the launch (grid in blocks, block in threads)")
        if host is not None and not host.threads:
            unknown.append(f"the block, which the source launches as {' and '.join(host.written)}")
        self._bare_blocks(kernel, work, grid)
        unknown += [f"a grid that suits {one}" for one in kernel.attributes if not one.startswith("__maxnreg__")]
        mark = f"  {MARK} {' and '.join(unknown)}" if unknown else ""
        used = max((at + 1 for at in range(3) if grid[at] != "1" or block[at] != "1"), default=1)
        self.grid, self.block, self.unknown = tuple(grid[:used]), tuple(block[:used]), unknown
        shown = ", ".join(f'"{one}"' for one in grid[:used])
        self.lines = [f"launch = {{ grid = [{shown}], block = [{', '.join(block[:used])}] }}{mark}"]
        static = _static_shared(kernel)
        if static is None:
            self.lines.append(f'static_shared_bytes = "0"  {MARK} bytes of shared memory that the source declares')
        elif static:
            self.lines.append(f'static_shared_bytes = "{static}"')
        if re.search(r"\bextern\s+__shared__", kernel.plain):
            last = self.lines[0].split(" }")[0]
            self.lines[0] = f'{last}, shared_bytes = "0" }}  {MARK} ' + " and ".join(
                [*unknown, "shared_bytes, the bytes of dynamic shared memory"]
            )

    def _bare_blocks(self, kernel: Kernel, work: object, grid: list[str]) -> None:
        """Axes along which a block is a row, a plane or the like: parameters that nothing else uses count them."""
        axes = {axis.name for axis in work.axes} if isinstance(work, Cells) else set()
        bare = sorted(
            {kernel.builtin(one)[-1] for one in kernel.builtin_uses() if kernel.builtin(one).startswith("blockIdx.")}
            - axes
        )
        bounds = set(re.findall(r"\w+", " ".join(self.coordinates.values())))
        words = re.findall(r"[A-Za-z_]\w*", kernel.plain)
        unused = [
            one.name for one in kernel.parameters if is_size(one) and one.name not in words and one.name not in bounds
        ]
        if not isinstance(work, Cells | Rows):
            return
        for axis in bare:
            if len(bare) == 1 and len(unused) == 1:
                size = unused[0]
            else:
                size = "rows" if len(bare) == 1 else f"blocks_{axis}"
                taken = {one.name for one in kernel.parameters}
                size = size if size not in taken else f"{size}_"
                self.new_sizes.append(size)
            self.blocks[axis] = grid["xyz".index(axis)] = size


def _stride_bound(kernel: Kernel) -> str:
    """The bound of the only loop over the grid."""
    found = set()
    for node in walk(kernel.body):
        loop = loop_of(node) if node.type == "for_statement" and block_stride(kernel, node) is None else None
        if loop is None:
            continue
        if any(kernel.builtin(one).startswith("blockIdx") for one in walk(loop[1])) or "gridDim" in text(loop[3]):
            found.add(loop[2])
    return found.pop() if len(found) == 1 else ""


def _expression(bound: str, kernel: Kernel) -> str:
    """A C expression of integer parameters as an expression of a task; empty where it is not one."""
    sizes = {one.name for one in kernel.parameters if is_size(one)}
    names = set(re.findall(r"[A-Za-z_]\w*", bound))
    return bound.replace("/", "//") if _BOUND.fullmatch(bound) and names and names <= sizes else ""


def is_size(parameter: Parameter) -> bool:
    return not parameter.pointer and "int" in C_TYPES.get(parameter.c_type, "")


def _default_values(kernel: Kernel, launch: ReadLaunch, found: dict[str, Polynomial]) -> dict[str, str]:
    """The default values of scalars, those excepted that shapes or the launch depend on, which are sizes."""
    needed = {name for count in found.values() for names in count for name in names}
    needed |= set(re.findall(r"[A-Za-z_]\w*", " ".join([*launch.grid, *launch.block])))
    return {
        one.name: value
        for one in kernel.parameters
        if not one.pointer and (value := _number(one.default)) and not (is_size(one) and one.name in needed)
    }


def _number(literal: str) -> str:
    """A number of C as an expression of a task; empty where it is none."""
    plain = {"true": "1", "false": "0"}.get(literal, literal).replace("'", "")
    if re.fullmatch(r"[-+]?0[xX][0-9a-fA-F]+[uUlL]*|[-+]?\d+[uUlL]*", plain):
        digits = plain.rstrip("uUlL")
        octal = re.fullmatch(r"[-+]?0[0-7]+", digits) is not None
        return str(int(digits, 8 if octal else 0))
    if re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFlL]?", plain):
        return repr(float(plain.rstrip("fFlL")))
    return ""


def _static_shared(kernel: Kernel) -> int | None:
    """Bytes of the shared memory that the kernel declares statically; None where their number is not written out."""
    total = 0
    for body in (kernel.body, *kernel.functions):
        for node in walk(body):
            if node.type != "declaration" or not re.match(r"(?:static\s+)?__shared__", text(node)):
                continue
            kind = node.child_by_field_name("type")
            dtype = C_TYPES.get("" if kind is None else " ".join(text(kind).split()))
            for declarator in node.children_by_field_name("declarator"):
                dims = re.findall(r"\[([^\]]*)\]", text(declarator))
                if dtype is None or not all(dim.strip().isdigit() for dim in dims):
                    return None
                count = 1
                for dim in dims:
                    count *= int(dim)
                total += count * DTYPES[dtype].size
    return total


def _python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _product(names: tuple[str, ...], factor: int) -> str:
    return " * ".join([*([str(factor)] if factor != 1 or not names else []), *names])


def _sum(count: Polynomial) -> str:
    """A polynomial as an expression of a task, the largest powers first."""
    terms = sorted(count.items(), key=lambda one: (-len(one[0]), one[0]))
    return " + ".join(_product(names, factor) for names, factor in terms).replace("+ -", "- ")


def shape_of(kernel: Kernel, array: str, count: Polynomial) -> list[str]:
    """A product of sizes as the dimensions of an array, anything else as one. Sizes that stand in an index are strides,
    so they come last; of equals, in the order of the parameters."""
    if len(count) != 1:
        return [_sum(count)]
    ((names, factor),) = count.items()
    order = [one.name for one in kernel.parameters]
    parts = [part for one in kernel.accesses if one.root == array for part in one.path]
    strides = {text(node) for part in parts for node in walk(part) if node.type == "identifier"}
    dims = sorted(names, key=lambda name: (name in strides, order.index(name) if name in order else -1))
    if factor != 1 or not dims:
        dims = [*dims[:-1], _product(tuple(dims[-1:]), factor)]
    return dims


def _argument(
    kernel: Kernel,
    one: Parameter,
    names: dict[str, str],
    found: dict[str, Polynomial],
    arrays: dict[str, Polynomial | None],
    values: dict[str, str],
) -> str:
    dtype, questions = C_TYPES.get(one.c_type, one.c_type), list[str]()
    if not one.pointer:
        value = one.name
        if one.name in values:
            value = values[one.name]
            questions.append(f"the value of {one.name}, of which {value} is the default")
        elif not is_size(one):
            value = "1.0"
            questions.append(f"the value of {one.name}")
        fields = f'name = "{names[one.name]}", role = "scalar", dtype = "{dtype}", value = "{value}"'
    else:
        role: str = kernel.role(one.name)
        if role == "unknown":
            role = "inout"
            questions.append(f"the role of {one.name} (in, out or inout), which a function of yours uses")
        count = arrays[one.name]
        shape = ["1"] if count is None else shape_of(kernel, one.name, count)
        if one.name not in found:
            questions.append(f"the shape of {one.name}, an expression for each dimension")
        shown = ", ".join(f'"{dim}"' for dim in shape)
        fields = f'name = "{names[one.name]}", role = "{role}", dtype = "{dtype}", shape = [{shown}]'
        if role != "out" and dtype == "bool":
            fields += ", fill = { low = 0, high = 1 }"
            questions.append(f"what {one.name} holds: `fill` draws as many false as true")
        elif role != "out" and dtype in DTYPES and not DTYPES[dtype].is_float:
            fields += ', fill = { kind = "uniform", mean = 50, scale = 50 }'
            questions.append(f"what {one.name} holds: `fill` draws whole numbers from mean - scale to mean + scale")
    mark = f"  {MARK} {'; '.join(questions)}" if questions else ""
    return f"{{ {fields} }},{mark}"


def _bytes(kernel: Kernel, arrays: dict[str, Polynomial | None], found: dict[str, Polynomial]) -> str:
    terms, unknown = [], False
    for one in kernel.parameters:
        if one.pointer:
            count = arrays[one.name]
            unknown |= one.name not in found
            shape = (
                "1"
                if count is None
                else " * ".join(f"({dim})" if " " in dim else dim for dim in shape_of(kernel, one.name, count))
            )
            twice = "2 * " if kernel.role(one.name) in ("inout", "unknown") else ""
            terms.append(f"{twice}{shape} * sizeof({C_TYPES.get(one.c_type, one.c_type)})")
    mark = f"  {MARK} the bytes that must be read and written at least" if unknown else ""
    return f'bytes = "{" + ".join(terms)}"{mark}'


def _reference(kernel: Kernel, names: dict[str, str], arrays: dict[str, Polynomial | None]) -> str:
    read = [names[one.name] for one in kernel.parameters if not one.pointer or kernel.role(one.name) != "out"]
    outputs = [names[one.name] for one in kernel.parameters if one.pointer and kernel.role(one.name) not in ("in",)]
    shapes = [
        f"    {names[one.name]}: [{', '.join(shape_of(kernel, one.name, count))}]"
        for one in kernel.parameters
        if one.pointer and (count := arrays[one.name]) is not None
    ]
    returned = ", ".join(f'"{name}": ...' for name in outputs)
    return "\n".join(
        [
            f'"""What {kernel.name} computes, in float64."""',
            "",
            "import numpy as np",
            "",
            "",
            f"def {kernel.name}({', '.join(read)}):",
            '    """Arrays come as float64, in the shapes of task.toml:',
            "",
            *shapes,
            '    """',
            f"    return {{{returned}}}  {MARK} an array for each, computed with NumPy (np) from the arguments",
            "",
        ]
    )
