"""Tunes a kernel from Python, without a file: source, reference and examples in, a callable kernel out."""

from __future__ import annotations

import base64
import inspect
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from tunesmith.graph.progress import Listener, silent
from tunesmith.graph.results.runtime import ARRAY_TYPES, KernelError, Kernels, numpy_type
from tunesmith.graph.run import RunResult, tune
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.reader.draft import ReadKernel
from tunesmith.kernels.reader.examples import read_signature, required, task_from
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import FunctionOpponent, KernelOpponent, Task
from tunesmith.kernels.spec.taskfile import sentence
from tunesmith.kernels.spec.template import BACKENDS
from tunesmith.kernels.triton.draft import plain_function, read_function, typed

Framework = Literal["numpy", "torch", "cupy"]
Example = Any
"""The arguments of one call: an array, a tuple of them, or a dict by the kernel's names, which may hold scalars too."""
_REFERENCE = """\
import base64

from ray import cloudpickle

reference = cloudpickle.loads(base64.b64decode("{pickled}"))()
"""


@dataclass(frozen=True, slots=True)
class TunedWorkload:
    """The tuned kernel on one workload. seconds: of a launch with cold caches; baseline_seconds: of the kernel as it
    came; speedup, low, high: over it, with the 99 % interval; opponents: speed-ups by name and label."""

    workload: str
    seconds: float
    baseline_seconds: float
    speedup: float
    low: float
    high: float
    opponents: dict[str, float]


class TunedKernel:
    """The result of `tune_kernel`. source: of the best kernel; a call takes arrays in order, and scalars by name."""

    def __init__(self, result: RunResult, task: Task, signature: ReadKernel) -> None:
        self.result, self.task, self._signature = result, task, signature
        self._kernels: Kernels | None = None

    @property
    def rows(self) -> tuple[TunedWorkload, ...]:
        """A row for each workload for which something right was found."""
        rows = []
        for one in self.result.summary.tuned:
            best = one.general or one.best
            if best is None or one.baseline_seconds is None:
                continue
            timed = [(f"{entry.name} ({entry.label})", entry.seconds) for entry in one.opponents if entry.seconds]
            speedups = {name: seconds / best.seconds for name, seconds in timed}
            own = (1 / best.ratio, 1 / best.high, 1 / best.low)
            rows.append(TunedWorkload(one.workload, best.seconds, one.baseline_seconds, *own, speedups))
        return tuple(rows)

    @property
    def source(self) -> str:
        """The source of the general configuration, or of the kernel as it came where nothing was found."""
        files = sorted((self.result.folder / "best/general").glob(f"*{BACKENDS[self._signature.backend].suffix}"))
        return files[0].read_text() if files else self.task.sources(self._signature.backend).baseline.template.source

    def __repr__(self) -> str:
        lines = [
            f"{row.workload}: {row.seconds * 1e6:.2f} us, {row.speedup:.2f}x the kernel as it came "
            f"({row.low:.2f} to {row.high:.2f})"
            + "".join(f"; {speedup:.2f}x {name}" for name, speedup in row.opponents.items())
            for row in self.rows
        ]
        failed = {entry.name: entry for one in self.result.summary.tuned for entry in one.opponents if entry.why}
        lines += [f"{one.name} ({one.label}) was not timed: {one.why}" for one in failed.values()]
        return "\n".join([self.result.summary.sentence, *lines])

    def __call__(self, *arrays: Any, **scalars: Any) -> Any:
        """The output, or a tuple of them, as arrays of the framework of the given ones. Raises `TunesmithError`."""
        example = _by_name(self._signature, (*arrays,) if arrays else {}, scalars)
        # Copies, as the launch changes them.
        given = {name: np.array(_to_numpy(value), order="C", ndmin=1) for name, value in example.items()}
        given |= {name: given[name].item() for name in self._signature.scalars if name in given}
        try:
            outputs = self._launch(given)
        except (ValueError, KernelError) as error:
            raise TunesmithError(str(error)) from error
        like = next((example[name] for name in self._signature.read), None)
        found = [_like(outputs[name], like) for name in self._signature.written]
        return found[0] if len(found) == 1 else tuple(found)

    def _launch(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments after a launch on `given` by the kernel that best/ has for their shape."""
        if self._kernels is None:
            if not (best := self.result.folder / "best").is_dir():
                raise TunesmithError(f"{self.result.folder} has no kernel to call: {self.result.summary.sentence}")
            if BACKENDS[self._signature.backend].python:
                raise TunesmithError(f"Triton launches its kernels: decorate yours by `tuned` of {best / 'tuned.py'}.")
            self._kernels = Kernels(best)
        kernels = self._kernels
        for size in kernels.explicit:
            if size not in given:
                raise TunesmithError(f"The size {size} does not follow from the arrays; give it by name: {size}=...")
        read = [given[one["name"]] for one in kernels.given]
        shapes, dtypes = [one.shape for one in read], [str(one.dtype) for one in read]
        explicit = [int(given[size]) for size in kernels.explicit]
        sizes, types = kernels.read(shapes, dtypes, explicit, storage=ARRAY_TYPES)
        passed = dict(given)
        for argument, one in zip(self.task.arguments, kernels.bind(types, sizes), strict=True):
            if argument.role == "out":
                passed[argument.name] = np.empty(one["shape"], numpy_type(one["dtype"]))
            elif argument.role == "scalar" and parse(argument.value or "0").names:
                told, value = given.get(argument.name, one["value"]), one["value"]
                if told != value:
                    raise TunesmithError(f"{argument.name} is {told}, but by the shapes of the arrays it is {value}.")
        kernels.run(types, sizes, passed, device=self.result.summary.device.index)
        return passed


def tune_kernel(
    source: Any,
    reference: Callable[..., Any] | Literal["baseline"],
    inputs: Sequence[Example],
    *,
    entry: str | None = None,
    grid: Sequence[str | int] | Callable[..., Any] | None = None,
    block: Sequence[str | int] | None = None,
    tolerance: Mapping[str, tuple[float, float]] | None = None,
    fills: Mapping[str, Any] = MappingProxyType({}),
    opponents: Mapping[str, Callable[..., Any]] | None = None,
    run_dir: str | Path | None = None,
    listener: Listener = silent,
    **settings: Any,
) -> TunedKernel:
    """Tunes the kernel of `source` (the text of CUDA C++ or OpenCL C, or a kernel of Triton as a program has it) and
    returns it.

    reference: a function of what the kernel reads, by position or by the kernel's names, in the framework of the
    inputs, which gives the output or outputs; it is called in float64. Or "baseline": the kernel as it came, where
    results can only agree with it. inputs: examples of what the kernel reads; each becomes a workload. An example is an
    array, a tuple of arrays in the order of the kernel's parameters, or a dict by their names; scalars that shapes do
    not tell must be among them, or be defaults of the reference. entry: the kernel's name, where there are several.
    grid, block: of the launch, as expressions of sizes, where the code does not tell; of Triton the call's grid, and
    constants of the kernel stand in an example by name, such as {"ACTIVATION": "relu"}. tolerance: (rtol, atol) by data
    type or output. fills: of arrays, as in task files, where more is known than the range of the examples, such as
    {"index": {"low": 0, "high": "n - 1"}, "starts": "sorted"}. opponents: functions like the reference, timed beside
    the kernel, by name; functions of torch.compile are compiled anew, with its default settings. run_dir, listener,
    settings: of `tunesmith.graph.tune`. Raises `TunesmithError`.
    """
    if not callable(reference) and not (isinstance(reference, str) and reference == "baseline"):
        wanted = 'give a function of the arrays that the kernel reads, or "baseline" for the kernel as it came'
        raise TunesmithError(f"reference: {wanted}, not {reference!r:.80}.")
    of_triton = plain_function(source) is not None
    if not of_triton and (not isinstance(source, str) or "(" not in source):
        raise TunesmithError(f"source: give the kernel's text, as Path.read_text() does, not {source!r:.80}.")
    if "task" in settings:
        raise TunesmithError("task: the kernel and the examples are the task here; leave it out.")
    triton = None
    if of_triton:
        if entry is not None or block is not None:
            raise TunesmithError("entry, block: a kernel of Triton has its name and its num_warps; leave them out.")
        triton, inputs = read_function(source, inputs, grid)
        signature, grid = required(triton.read), None
    else:
        signature = read_signature(source, entry)
    defaults = {name: one.default for name, one in _parameters(reference).items() if name in signature.scalars}
    scalars = {name: value for name, value in defaults.items() if isinstance(value, int | float)}
    examples = [_by_name(signature, one, scalars) for one in _several(signature, inputs)]
    frameworks: list[Framework] = [_framework_of(value) for value in examples[0].values()]
    framework = next((one for one in frameworks if one != "numpy"), frameworks[0])
    text: tuple[str, str, Literal["numpy", "torch"]] = ("", "baseline", "numpy")
    if reference != "baseline":
        text = (_text(signature, reference, framework), "reference", "torch" if framework == "torch" else "numpy")
    completed = [{**_outputs(signature, reference, one), **one} for one in examples]
    on_host = [{name: _to_numpy(value) for name, value in one.items()} for one in completed]
    own: dict[str, Any] = {"grid": grid, "block": block}
    if triton is not None:
        typed(triton, on_host[0])
        own = {"template": triton.template, "first": triton.first}
    try:
        task = task_from(signature, signature.slice.text, text, on_host, tolerance=tolerance, fills=fills, **own)
        task = task.model_copy(update={"opponents": _opponents(signature, opponents, framework)})
        if triton is not None:
            task = _with_choices(task, triton.opponents)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        options = {"Tolerance": ["tolerance"], "Argument": ["fills"], "FunctionOpponent": ["opponents"]}
        where = [*options.get(error.title, []), *map(str, first["loc"])]
        raise TunesmithError(": ".join([*where, f"{sentence(first)}."])) from error
    settings.setdefault("backend", signature.backend)
    return TunedKernel(tune(task, run_dir=run_dir, listener=listener, **settings), task, signature)


def _with_choices(task: Task, opponents: Sequence[KernelOpponent]) -> Task:
    """A task with Triton kernels beside it, which are launched as its template is."""
    sources = task.sources("triton")
    launch = {"launch": sources.templates[0].launch}
    made = tuple(one.model_copy(update={"template": one.template.model_copy(update=launch)}) for one in opponents)
    return task.model_copy(update={"backends": {"triton": sources.model_copy(update={"opponents": made})}})


def _opponents(signature: ReadKernel, opponents: Any, framework: Framework) -> tuple[FunctionOpponent, ...]:
    if not isinstance(opponents or {}, Mapping) or not all(map(callable, (opponents or {}).values())):
        raise TunesmithError(f"opponents: give a dict of functions by their names, not {opponents!r:.80}.")
    return tuple(
        FunctionOpponent(
            name=name,
            label="eager" if _uncompiled(function) is function else "compiled",
            source=_text(signature, function, "numpy", name),
            function="reference",
            framework=framework,
        )
        for name, function in (opponents or {}).items()
    )


def _several(signature: ReadKernel, inputs: Sequence[Example]) -> list[Example]:
    """The examples. A plain list of arrays is one example for a kernel of several arrays, else one example each."""
    if isinstance(inputs, Mapping) or _is_array(inputs):
        return [inputs]
    given = list(inputs) if isinstance(inputs, Iterable) else []
    if not given:
        raise TunesmithError(f"inputs: give a list of at least one example of the kernel's inputs, not {inputs!r:.80}.")
    return [tuple(given)] if all(map(_is_array, given)) and len(signature.read) > 1 else given


def _by_name(signature: ReadKernel, example: Example, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """An example by the kernel's names. scalars: values that it need not have."""
    known, name = (*signature.read, *signature.scalars), signature.name
    if isinstance(example, Mapping):
        given = dict(example)
    elif not _is_array(example) and not isinstance(example, list | tuple):
        raise TunesmithError(f"inputs: give each example as an array, a tuple of them or a dict, not {example!r:.80}.")
    else:
        values = [example] if _is_array(example) else list(example)
        every = [one.name for one in signature.parameters if one.name in known]
        if len(values) != len(names := signature.read if len(values) == len(signature.read) else every):
            reads = f"{', '.join(signature.read)} (and takes the scalars {', '.join(signature.scalars) or 'none'})"
            raise TunesmithError(f"inputs: an example has {len(values)} values, but {name} reads {reads}.")
        given = dict(zip(names, values, strict=True))
    given = {**scalars, **given}
    if unknown := sorted(given.keys() - set(known), key=str):
        raise TunesmithError(f"inputs: {name} reads no {unknown[0]}; it reads {', '.join(known)}.")
    if missing := [one for one in signature.read if one not in given]:
        raise TunesmithError(f"inputs: an example lacks the array {missing[0]}, which {name} reads.")
    for key, value in given.items():
        elements = math.prod(value.shape) if _is_array(value) else 0
        is_number = elements == 1 or isinstance(value, int | float | np.number | np.bool_)
        if not (elements if key in signature.read else is_number):
            wanted = "an array of NumPy, CuPy or PyTorch with elements" if key in signature.read else "a number"
            raise TunesmithError(f"inputs: {key} is {' '.join(repr(value).split()):.80}; give {wanted}.")
    return given


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have none, nor has "baseline"
        return {}


def _names_taken(signature: ReadKernel, function: Callable[..., Any]) -> list[str] | None:
    """The kernel's names by which the function takes its arguments; None where it takes the arrays by position."""
    parameters, known = _parameters(function), (*signature.read, *signature.scalars)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return list(known)
    named = [name for name in parameters if name in known]
    return named if set(signature.read) <= set(named) else None


def _outputs(
    signature: ReadKernel, reference: Callable[..., Any] | Literal["baseline"], example: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The reference's results, for the shapes of the outputs; "baseline" takes the shape of the first array."""
    kernel, read, written = signature.name, ", ".join(signature.read), ", ".join(signature.written)
    if reference == "baseline":
        shape = example[signature.read[0]].shape if signature.read else (1,)
        storage = {one.name: DTYPES[one.dtype].storage for one in signature.parameters if one.name in signature.written}
        return {name: np.zeros(shape, storage[name]) for name in signature.written}
    names = _names_taken(signature, reference)
    given = {name: _copied(example[name]) for name in names or signature.read if name in example}
    try:
        results = reference(*given.values()) if names is None else reference(**given)
    except Exception as error:  # the user's code may raise anything
        lacking = ", ".join(one for one in names or () if one not in example)
        remedy = f"; the examples have no {lacking}: give them as a dict, by name" if lacking else ""
        raise TunesmithError(
            f"reference: called with {read} it raises {type(error).__name__}: {error}{remedy}."
        ) from error
    if not isinstance(results, Mapping):
        values = list(results) if isinstance(results, tuple | list) else [results]
        if len(values) != len(signature.written):
            raise TunesmithError(f"reference: it gives {len(values)} results, but {kernel} writes {written}.")
        results = dict(zip(signature.written, values, strict=True))
    if set(results) != set(signature.written):
        given_back = ", ".join(map(str, results)) or "nothing"
        raise TunesmithError(f"reference: it gives {given_back}, but {kernel} writes {written}.")
    for name, value in results.items():
        if not _is_array(value):
            raise TunesmithError(f"reference: its {name} is {value!r:.80}; return an array.")
    return dict(results)


def _text(signature: ReadKernel, function: Callable[..., Any], framework: Framework, name: str = "reference") -> str:
    """The source of a module whose `reference` calls `function`; name: for messages."""
    from ray import cloudpickle

    plain, names = _uncompiled(function), _names_taken(signature, function)
    read, written = signature.read, signature.written
    is_compiled, takes_cupy = plain is not function, framework == "cupy"

    def make() -> Callable[..., Any]:
        """Goes to processes without Tunesmith, so it uses no name of this module."""
        called = plain
        if is_compiled:
            import torch

            called = torch.compile(plain)

        def reference(**given: Any) -> dict[str, Any]:
            on_host = all(not hasattr(value, "get") for value in given.values())
            if takes_cupy:
                # A function of CuPy arrays gets CuPy arrays, even where the task's own are on the host.
                import cupy

                given = {key: cupy.asarray(one) if getattr(one, "ndim", 0) else one for key, one in given.items()}
            if names is None:
                results = called(*(given[one] for one in read))
            else:
                results = called(**{one: given[one] for one in names if one in given})
            if not isinstance(results, dict):
                results = dict(zip(written, results if isinstance(results, tuple | list) else [results], strict=False))
            return {key: one.get() for key, one in results.items()} if takes_cupy and on_host else results

        return reference

    try:
        pickled = base64.b64encode(cloudpickle.dumps(make)).decode()  # type: ignore[no-untyped-call,unused-ignore]
    except (TypeError, pickle.PicklingError) as error:
        raise TunesmithError(
            f"{name}: the function cannot be sent to another process ({error}); leave out of it what belongs to this "
            "one, such as locks and open files."
        ) from error
    return _REFERENCE.format(pickled=pickled)


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that torch.compile was given, or the function itself: compiled code cannot go to another process."""
    return getattr(function, "_torchdynamo_orig_callable", function)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _framework_of(value: Any) -> Framework:
    module = type(value).__module__.partition(".")[0]
    return module if module in ("torch", "cupy") else "numpy"  # type: ignore[return-value]


def _to_numpy(value: Any) -> Any:
    """An array of any framework on the host; a bfloat16 of PyTorch by its bits, as NumPy has no such type."""
    framework = _framework_of(value)
    if framework == "torch" and hasattr(value, "detach"):
        host = value.detach().cpu()
        if str(host.dtype) == "torch.bfloat16":
            return host.view(sys.modules["torch"].uint16).numpy().view(DTYPES["bfloat16"].storage)
        return host.numpy()
    return value.get() if framework == "cupy" else value


def _copied(value: Any) -> Any:
    copy = getattr(value, "clone", None) or getattr(value, "copy", None)
    return value if copy is None else copy()


def _like(array: Any, like: Any) -> Any:
    """A NumPy array in the framework, and on the device, of another array."""
    framework = _framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        bits = str(array.dtype) == "bfloat16"
        tensor = torch.from_numpy(array.view(np.uint16) if bits else array)
        return (tensor.view(torch.bfloat16) if bits else tensor).to(like.device)
    return sys.modules["cupy"].asarray(array) if framework == "cupy" else array
