"""Definitions of FlashInfer-Bench (its Trace schema) as a task of Tunesmith.

Owns which part of a definition becomes which part of a task: axes that vary are sizes and arguments behind the outputs,
constant ones are numbers; the reference is the definition's own, in PyTorch. Workloads are those of the data set's file
beside it. A definition has no kernel: the baseline is the user's to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tunesmith.kernels.spec.dtypes import DTYPES, DataType
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Identifier, TaskError
from tunesmith.kernels.spec.taskfile import MARK, explain, read_source

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
            about = f'name = "{name}", role = "{role if tensor.shape is not None else "scalar"}"'
            about += f', dtype = "{tensor.kind.name}"'
            if tensor.shape is None:
                values = dict.fromkeys(str(row["inputs"][name]["value"]) for row in rows)
                asked = "" if len(values) == 1 else f"  {MARK} the value of {name}"
                arguments.append(f'    {{ {about}, value = "{next(iter(values), "1")}" }},{asked}')
                continue
            shape = definition.shape(tensor)
            moved.append(" * ".join([*shape, f"sizeof({tensor.kind.name})"]))
            data = role == "in" and not tensor.kind.is_float
            unknown |= data
            asked = f"  {MARK} what {name} holds, such as fill = {{ low = 0, high = ... }}" if data else ""
            arguments.append(f"    {{ {about}, shape = {json.dumps(shape)} }},{asked}")
    arguments += [
        f'    {{ name = "{name}", role = "scalar", dtype = "int32", value = "{equal}" }},'
        for name, equal in definition.variable.items()
    ]
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
        f"summary = {json.dumps(definition.description or '')}",
        f'entry = "{definition.entry}"',
        'reference = "reference.py:reference"\nframework = "torch"',
        f"bytes = {json.dumps(' + '.join(moved))}{asked}",
        *([f"requires = {json.dumps(kept)}"] if kept else []),
        *("arguments = [", *arguments, "]"),
        "\n[backends.cuda.baseline]",
        'source_file = "baseline.cu"',
        f'launch = {{ grid = ["1"], block = [256] }}  {MARK} the launch of the kernel that you write into baseline.cu',
    ]
    return "\n".join([*lines, *_sizes(definition, rows)]) + "\n"


def _sizes(definition: _Definition, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables of workloads."""
    if not rows or not definition.sizes:
        sizes = ", ".join(f"{name} = 1" for name in definition.sizes)
        yield f"\n[[workloads]]\nsizes = {{ {sizes} }}  {MARK} the sizes you use" if sizes else "\n[[workloads]]"
        return
    chosen = dict.fromkeys(tuple((name, int(row["axes"][name])) for name in definition.sizes) for row in rows)
    ordered = sorted(
        (one for one in chosen if all(value > 0 for _, value in one)), key=lambda one: [value for _, value in one]
    )
    step = max(1, (len(ordered) - 1) / max(1, min(MAX_TUNED, len(ordered)) - 1))
    tuned = {round(turn * step) for turn in range(min(MAX_TUNED, len(ordered)))}
    for at, row in enumerate(ordered):
        text = ", ".join(f"{name} = {value}" for name, value in row)
        held = "" if at in tuned else "\nheld_out = true"
        yield f'\n[[workloads]]\nsizes = {{ {text} }}\ndevices = ["gpu"]{held}'


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
