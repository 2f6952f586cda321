"""Files of other programs as tasks of Tunesmith: tuning problems in the format T1 of Kernel Tuner, KTT and BAT, and
definitions of FlashInfer-Bench (its Trace schema). Owns which part of a file becomes which part of a task.

T1: the launch is that of Kernel Tuner, the problem's size divided by GridDivX and its like, in blocks of `block_size_x`
and its like. The kernel's source is taken as it is; its baseline is the kernel with the parameters' defaults. The
format has no right results: the reference is the user's.

Definitions: axes that vary are sizes and arguments behind the outputs, constant ones are numbers; the reference is the
definition's own, in PyTorch. Workloads are those of the data set's file beside it. A definition has no kernel: the
baseline is the user's to write.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from tunesmith.kernels.spec.dtypes import DTYPES, DataType
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Identifier, TaskError
from tunesmith.kernels.spec.taskfile import MARK, explain, read_source
from tunesmith.kernels.spec.template import BACKENDS, NAME_PATTERN

Known = TypeVar("Known")
AXES = ("x", "y", "z")
TYPES = {"half": "float16", "float": "float32", "double": "float64", "bool": "bool"} | {
    f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
ROLES = {"ReadOnly": "in", "WriteOnly": "out", "ReadWrite": "inout"}
LANGUAGES = {traits.language: name for name, traits in BACKENDS.items() if not traits.python}
THREADS = {"block_size_x": 256, "block_size_y": 1, "block_size_z": 1}
"""Threads of a block along an axis that no parameter decides, as Kernel Tuner has them."""


def _toml(value: object) -> str:
    """A table or another value in TOML, on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


def read_t1(path: Path, reference: str | None = None) -> tuple[str, dict[str, str]]:
    """The name and the files, by theirs, of the task that the T1 file at `path` describes. reference:
    "FILE.py:FUNCTION"; left out, a draft of one is made, to be filled in. Raises `TaskError`."""
    try:
        return _T1Reader(path, json.loads(read_source(path, ""))).task(reference)
    except KeyError as error:
        why = f"the key {error.args[0]} is missing; add it"
    except (TypeError, AttributeError) as error:
        why = f"a value has another type than the format's ({error})"
    except ValueError as error:
        why = str(error)
    raise TaskError(f"{path} is not a tuning problem in the format T1: {why}.")


class _T1Reader:
    def __init__(self, path: Path, data: Mapping[str, Any]) -> None:
        self.path, self.kernel = path, data["KernelSpecification"]
        self.space = data["ConfigurationSpace"]
        self.backend = self._known(LANGUAGES, self.kernel["Language"], "key Language")
        self.suffix = BACKENDS[self.backend].suffix
        self.entry = self._identifier("KernelName", self.kernel["KernelName"])
        if self.kernel.get("SharedMemory"):
            raise TaskError(f"{path}, key SharedMemory: dynamic shared memory has no expression in T1; write a task.")
        self.parameters = [self._parameter(one) for one in self.space["TuningParameters"]]
        self.defaults = {one["name"]: one["default"] for one in self.parameters}
        size = self.kernel["ProblemSize"]
        extents = size if isinstance(size, list) else [size]
        self.sizes = {f"size_{axis}": int(extent) for axis, extent in zip(AXES, extents, strict=False)}

    def _known(self, table: Mapping[str, Known], value: str, where: str) -> Known:
        if value not in table:
            raise TaskError(f"{self.path}, {where}: {value} is not known here; use one of {', '.join(table)}.")
        return table[value]

    def task(self, reference: str | None) -> tuple[str, dict[str, str]]:
        arguments = [self._argument(one) for one in self.kernel["Arguments"]]
        if not any(one["role"] in ("out", "inout") for one in arguments):
            raise TaskError(
                f"{self.path}: no argument has the AccessType WriteOnly or ReadWrite, so nothing can be checked."
            )
        source = self._source()
        values = {name: int(value) if isinstance(value, bool) else value for name, value in self.defaults.items()}
        macros = "".join(f"#define {name} {value}\n" for name, value in values.items())
        files = {
            f"kernel{self.suffix}": source,
            f"baseline{self.suffix}": f"// The kernel with the parameters' defaults.\n{macros}{source}",
            "template.toml": self._template(),
        }
        file, _, function = (reference or f":{self.entry}").rpartition(":")
        if reference is not None and not file:
            raise TaskError(f"--reference: give FILE.py:FUNCTION, not {reference!r:.80}.")
        files["reference.py"] = read_source(Path(file), "--reference") if file else self._draft(arguments)
        files["task.toml"] = self._task(arguments, function)
        return self.entry, files

    def _identifier(self, key: str, text: str) -> str:
        if not re.fullmatch(NAME_PATTERN, text):
            raise TaskError(f"{self.path}, key {key}: {text!r} cannot be a name in a kernel here.")
        return text

    def _parameter(self, one: Mapping[str, Any]) -> dict[str, Any]:
        name = self._identifier("TuningParameters", one["Name"])
        text = re.sub(r"^\s*list\((.*)\)\s*$", r"\1", str(one["Values"]))
        found = re.fullmatch(r"\s*range\(([-\d\s,]+)\)\s*", text)
        try:
            values = list(range(*map(int, found[1].split(",")))) if found else list(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError) as error:
            raise TaskError(
                f"{self.path}, parameter {name}: the values `{one['Values']}` are neither a list nor a range; write "
                "them out."
            ) from error
        return {"name": name, "values": values, "default": one.get("Default", values[0])}

    def _argument(self, one: Mapping[str, Any]) -> dict[str, Any]:
        name = self._identifier("Arguments", one["Name"])
        if one.get("MemType") == "Constant":
            raise TaskError(
                f"{self.path}, argument {name}: constant memory is filled by no argument here; pass an array."
            )
        where = f"argument {name}, key"
        dtype = self._known(TYPES, one["Type"], f"{where} Type")
        if one["MemoryType"] == "Scalar":
            return {"name": name, "role": "scalar", "dtype": dtype, "value": str(one["FillValue"])}
        constant: Mapping[str, Any] = {"kind": "constant", "mean": float(one.get("FillValue", 0))}
        fills = {"Constant": constant, "Random": {"kind": "normal"}}
        return {
            "name": name,
            "role": self._known(ROLES, one.get("AccessType", "ReadWrite"), f"{where} AccessType"),
            "dtype": dtype,
            "shape": [self._size(name, one["Size"])],
            "fill": self._known(fills, one["FillType"], f"{where} FillType"),
        }

    def _size(self, name: str, size: int | str) -> str:
        """The number of elements as an expression of the task."""
        axes = dict(enumerate(AXES))
        text = re.sub(r"ProblemSize\[(\d)\]", lambda found: f"size_{axes.get(int(found[1]), found[1])}", str(size))
        for one in self.parameters:
            if numbers := [value for value in one["values"] if isinstance(value, int | float)]:
                text = text.replace(f"min({one['name']})", str(min(numbers)))
                text = text.replace(f"max({one['name']})", str(max(numbers)))
        try:
            parse(text).require(self.sizes.keys())
        except ExpressionError as error:
            raise TaskError(f"{self.path}, argument {name}, key Size: {error}") from error
        return text

    def _source(self) -> str:
        name = self.kernel["KernelFile"]
        file = self.path.parent / name
        above = self.path.parent.parent / name
        source = read_source(above if above.is_file() and not file.is_file() else file, f"{self.path}, key KernelFile")
        if BACKENDS[self.backend].makes_cubins and 'extern "C"' not in source:
            # Kernel Tuner adds it, too.
            source = re.sub(rf"(__global__\s[^;{{]*\b{self.entry}\s*\()", r'extern "C" \1', source, count=1)
        return source

    def _grid(self) -> list[str]:
        grid = []
        for axis, size in zip(AXES, self.sizes, strict=False):
            divisors = self.kernel.get(f"GridDiv{axis.upper()}") or (["block_size_x"] if axis == "x" else [])
            product = " * ".join(f"({self._threads(str(one))})" for one in divisors)
            grid.append(f"ceil_div({size}, {product})" if product else size)
        return grid

    def _threads(self, text: str) -> str:
        known = {one["name"] for one in self.parameters}
        return str(THREADS[text]) if text in THREADS and text not in known else text

    def _launch(self, values: Mapping[str, Any]) -> dict[str, list[str]]:
        def with_values(text: str) -> str:
            return re.sub(r"[A-Za-z_]\w*", lambda found: str(values.get(found[0], found[0])), text)

        block = map(self._threads, THREADS)
        return {"grid": list(map(with_values, self._grid())), "block": list(map(with_values, block))}

    def _template(self) -> str:
        lines = [f'name = "{self.entry}"', f'source_file = "kernel{self.suffix}"', "parameters = ["]
        lines += [*(f"    {_toml(one)}," for one in self.parameters), "]", f"launch = {_toml(self._launch({}))}"]
        for one in self.space.get("Conditions", []):
            lines.append(f"\n[[constraints]]\nexpression = {_toml(one['Expression'])}")
        return "\n".join(lines) + "\n"

    def _task(self, arguments: list[dict[str, Any]], function: str) -> str:
        moved = " + ".join(f"({one['shape'][0]}) * sizeof({one['dtype']})" for one in arguments if "shape" in one)
        rows, launch = "".join(f"    {_toml(one)},\n" for one in arguments), self._launch(self.defaults)
        baseline = {"source_file": f"baseline{self.suffix}", "label": "defaults", "launch": launch}
        return f"""\
# Imported from {self.path.name}, a tuning problem in the format T1.
name = "{self.entry}"
entry = "{self.entry}"
reference = "reference.py:{function}"
bytes = {_toml(moved)}

arguments = [
{rows}]

[backends.{self.backend}]
baseline = {_toml(baseline)}
templates = ["template.toml"]

[[workloads]]
sizes = {_toml(self.sizes)}
"""

    def _draft(self, arguments: list[dict[str, Any]]) -> str:
        read = ", ".join(one["name"] for one in arguments if one["role"] != "out")
        made = ", ".join(f'"{one["name"]}": ...' for one in arguments if one["role"] in ("out", "inout"))
        return (
            f'"""What {self.entry} computes, on flat float64 arrays."""\n\n\n'
            f"def {self.entry}({read}):\n"
            f"    return {{{made}}}  {MARK} the right results, as NumPy arrays\n"
        )


MAX_TUNED = 6
"""Workloads that are tuned on, spread evenly by their sizes; the others are held out."""


class _Axis(BaseModel):
    value: int | None = None


class _Tensor(BaseModel):
    shape: list[str] | None
    dtype: str

    @property
    def kind(self) -> DataType:
        name = self.dtype.replace("e4m3fn", "e4m3")
        if name not in DTYPES:
            raise TaskError(f"SOURCE: the dtype {self.dtype} is not known here; use one of {', '.join(DTYPES)}.")
        return DTYPES[name]


class _Definition(BaseModel):
    name: str
    description: str | None = None
    axes: dict[Identifier, _Axis]
    inputs: dict[Identifier, _Tensor]
    outputs: dict[Identifier, _Tensor]
    reference: str
    constraints: list[str] = []

    @property
    def entry(self) -> str:
        return re.sub(r"\W", "_", self.name)

    @property
    def variable(self) -> dict[str, str]:
        """The axes that vary, each with its expression: its name, or what a constraint says that it equals."""
        axes = {name: name for name, axis in self.axes.items() if axis.value is None}
        for text in self.constraints:
            if (found := re.fullmatch(r"\s*(\w+)\s*==\s*([\w\s+*/()-]+)", text)) and found[1] in axes:
                names = set(re.findall(r"[A-Za-z_]\w*", found[2]))
                if names <= set(self.axes) - {one for one, equal in axes.items() if equal != one or one == found[1]}:
                    axes[found[1]] = f"({self.with_numbers(found[2].strip())})"
        return axes

    @property
    def sizes(self) -> list[str]:
        return [name for name, equal in self.variable.items() if equal == name]

    def with_numbers(self, text: str) -> str:
        """An expression with the constant axes as numbers."""
        known = {name: str(axis.value) for name, axis in self.axes.items() if axis.value is not None}
        return re.sub(r"[A-Za-z_]\w*", lambda found: known.get(found[0], found[0]), text)

    def shape(self, tensor: _Tensor) -> list[str]:
        """Its extents, as expressions of the sizes."""
        variable = self.variable
        return [variable.get(one, self.with_numbers(one)) for one in tensor.shape or ()]


def read_definition(path: Path) -> tuple[str, dict[str, str]] | None:
    """The name and the files, by theirs, of a draft of the task that the definition at `path` describes; None for JSON
    of another format. Raises `TaskError`."""
    try:
        data = json.loads(read_source(path, "SOURCE"))
    except ValueError:
        return None
    if not isinstance(data, dict) or not {"axes", "inputs", "outputs"} <= set(data):
        return None
    try:
        definition = _Definition.model_validate(data)
        task = _task(path, definition, list(_workloads(path, definition.name)))
        return definition.entry, {
            "task.toml": task,
            "baseline.cu": _kernel(definition),
            "reference.py": _reference(definition),
        }
    except ValidationError as error:
        raise TaskError(f"{path} is not a definition of FlashInfer-Bench: {explain(error, data)}.") from error
    except (ValueError, KeyError) as error:
        raise TaskError(f"{path} or a workload beside it cannot be read: {error!r}.") from error


def _workloads(path: Path, name: str) -> Iterator[Mapping[str, Any]]:
    """The workloads of the data set, which has folders `definitions` and `workloads` side by side."""
    parts = ["workloads" if part == "definitions" else part for part in path.absolute().parts]
    file = Path(*parts).with_name(f"{name}.jsonl")
    if file.is_file():
        yield from (json.loads(line)["workload"] for line in read_source(file, "").splitlines() if line.strip())


def _task(path: Path, definition: _Definition, rows: Sequence[Mapping[str, Any]]) -> str:
    arguments, moved, unknown = list[str](), list[str](), False
    for role, tensors in (("in", definition.inputs), ("out", definition.outputs)):
        for name, tensor in tensors.items():
            about = {"name": name, "role": role, "dtype": tensor.kind.name}
            if tensor.shape is None:
                values = dict.fromkeys(str(row["inputs"][name]["value"]) for row in rows)
                asked = "" if len(values) == 1 else f"  {MARK} the value of {name}"
                scalar = about | {"role": "scalar", "value": next(iter(values), "1")}
                arguments.append(f"    {_toml(scalar)},{asked}")
                continue
            shape = definition.shape(tensor)
            moved.append(" * ".join([*shape, f"sizeof({tensor.kind.name})"]))
            data = role == "in" and not tensor.kind.is_float
            unknown |= data
            asked = f"  {MARK} what {name} holds, such as fill = {{ low = 0, high = ... }}" if data else ""
            arguments.append(f"    {_toml({**about, 'shape': shape})},{asked}")
    for name, equal in definition.variable.items():
        arguments.append(f"    {_toml({'name': name, 'role': 'scalar', 'dtype': 'int32', 'value': equal})},")
    asked = (
        f"  {MARK} the bytes that must be read and written at least, as indices choose among them" if unknown else ""
    )
    kept, left = list[str](), list[str]()
    for text in definition.constraints:
        try:
            parse(text).require(definition.axes.keys())
        except ExpressionError:
            left.append(" ".join(text.split()))
        else:
            of_sizes = re.sub(r"[A-Za-z_]\w*", lambda found: definition.variable.get(found[0], found[0]), text)
            derived, _, equal = of_sizes.partition(" == ")
            if derived != f"({equal})":  # else it is what an axis is derived by
                kept.append(definition.with_numbers(of_sizes))
    lines = [
        f"# Drafted from {path.name}, a definition of FlashInfer-Bench. Lines with a FILL comment need your answer.",
        *(f"# It also demands: {text}" for text in left),
        f'name = "{definition.entry}"',
        f"summary = {_toml(definition.description or '')}",
        f'entry = "{definition.entry}"',
        'reference = "reference.py:reference"\nframework = "torch"',
        f"bytes = {_toml(' + '.join(moved))}{asked}",
        *([f"requires = {_toml(kept)}"] if kept else []),
        *("arguments = [", *arguments, "]"),
        "\n[backends.cuda.baseline]",
        'source_file = "baseline.cu"',
        f'launch = {{ grid = ["1"], block = [256] }}  {MARK} the launch of the kernel that you write into baseline.cu',
    ]
    return "\n".join([*lines, *_sizes(definition, rows)]) + "\n"


def _sizes(definition: _Definition, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables of workloads."""
    if not rows or not definition.sizes:
        sizes = _toml(dict.fromkeys(definition.sizes, 1))
        yield f"\n[[workloads]]\nsizes = {sizes}  {MARK} the sizes you use" if definition.sizes else "\n[[workloads]]"
        return
    chosen = dict.fromkeys(tuple((name, int(row["axes"][name])) for name in definition.sizes) for row in rows)
    ordered = sorted(
        (one for one in chosen if all(value > 0 for _, value in one)), key=lambda one: [value for _, value in one]
    )
    tuned = {*np.linspace(0, len(ordered) - 1, MAX_TUNED).round()}
    for at, row in enumerate(ordered):
        held = "" if at in tuned else "\nheld_out = true"
        yield f'\n[[workloads]]\nsizes = {_toml(dict(row))}\ndevices = ["gpu"]{held}'


def _kernel(definition: _Definition) -> str:
    taken = list[str]()
    for tensors, constant in ((definition.inputs, "const "), (definition.outputs, "")):
        for name, tensor in tensors.items():
            kind = tensor.kind.c_names["cuda"]
            taken.append(f"{kind} {name}" if tensor.shape is None else f"{constant}{kind}* {name}")
    taken += [f"int {name}" for name in definition.variable]
    return (
        "// A plain kernel: candidates are compared with it, and rules or a model make templates of it.\n"
        f'extern "C" __global__ void {definition.entry}({", ".join(taken)}) {{\n}}\n'
    )


def _reference(definition: _Definition) -> str:
    whole = {
        name: one.dtype for name, one in definition.inputs.items() if one.shape is not None and not one.kind.is_float
    }
    return f'''{definition.reference.rstrip()}


def reference(**arguments):
    """The outputs by name. Arrays come in float64; indices go on in their own types."""
    import torch

    for name, dtype in {whole}.items():
        arguments[name] = arguments[name].to(getattr(torch, dtype))
    results = run(*(arguments[name] for name in {list(definition.inputs)}))
    if isinstance(results, dict):
        return results
    return dict(zip({list(definition.outputs)}, results if isinstance(results, (tuple, list)) else [results]))
'''
