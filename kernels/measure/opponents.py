"""Opponents: library functions in Python, and kernels, timed on the same buffers as the candidates.

With CUDA, calls of functions are captured as graphs, so that the time is the device's, without Python's. Their
framework allocates their memory. Opponents that are kernels are checked and launched as candidates are; a Triton kernel
with a list of configurations is called as a function is, and Triton's autotuner chooses.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from tunesmith.kernels.backends import DeviceError, HostCall
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.check.compare import deviation
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.reference import on_host
from tunesmith.kernels.measure.timing import Comparison, Rotation, window_for
from tunesmith.kernels.outcome import Outcome, versus
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import AnyOpponent, FunctionOpponent
from tunesmith.kernels.spec.template import BACKENDS, Config

WARM_UP_CALLS = 3
"""Calls before the first that is timed, in which a library compiles, chooses an algorithm or allocates."""
_NUMBERS = itertools.count(1)
OPPONENT_TOLERANCE_FACTOR = 4.0
"""An opponent's tolerance over a kernel's: it rounds in other places, and is not judged."""


@dataclass(frozen=True, slots=True)
class Encounter:
    """An opponent on one workload. comparison: its time over the baseline's; against: the time of each candidate over
    its, None for a candidate that was not timed; why: the reason for which it was not timed itself, as a clause.
    first_seconds: of the first call of a function, in which a library compiles and chooses; choice: the configuration
    that Triton's autotuner chose in it."""

    name: str
    label: str
    comparison: Comparison | None = None
    against: tuple[Comparison | None, ...] = ()
    why: str = ""
    first_seconds: float | None = None
    choice: Config | None = None


Rival = tuple[AnyOpponent, Candidate | Outcome | None]
"""An opponent of a comparison, with its kernel, compiled, or why it is not; None where it is called, as a function is,
and a kernel under `triton.autotune`."""


def forget_compiled() -> None:
    """Clears PyTorch's compile cache: after eight shapes of a function it would run further ones uncompiled."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.compiler.reset()


def prepare_opponent(opponent: AnyOpponent, data: WorkloadData, sample_seconds: float) -> Prepared | str:
    """The opponent on `data`, or why it cannot be timed, as a clause. sample_seconds: how long a sample should last."""
    device, traits = data.device, BACKENDS[data.device.limits.backend]
    known, framework = traits.frameworks, _framework(opponent)
    if framework not in known or (device.limits.kind == "gpu" and traits.on_host):
        return f"functions of {framework} do not run on this device; functions of {', '.join(known)} do"
    try:
        calls = Prepared(opponent, data)
        data.restore()
        started = time.monotonic()
        calls.once(0)
        calls.first_seconds = time.monotonic() - started
        for _ in range(1, WARM_UP_CALLS):
            calls.once(0)
        # Arrays that are changed in place are judged after one call.
        data.restore()
        results = calls.once(0)
        if (wrong := _wrong(data, calls.on_host(results))) is not None:
            return wrong
        # Memory that it takes is found by now, and capturing finds it again.
        seconds = device.once(calls.launch(0))
    except DeviceError as error:
        if error.sticky:
            raise
        return f"it fails on the device: {error}"
    except Exception as error:  # noqa: BLE001 - it is the user's code, or a library's: whatever it raises is the answer
        return f"it raises {type(error).__name__}: {error}"
    calls.window = window_for(seconds, data.sets, sample_seconds, rounds=device.has_graph_overhead)
    return calls


def _framework(opponent: AnyOpponent) -> str:
    return opponent.framework if isinstance(opponent, FunctionOpponent) else "torch"


def _function_of(opponent: FunctionOpponent) -> Any:
    # torch.compile imports the module of the function that it compiles, by its name. Each workload has a module of its
    # own, whose functions are compiled for its sizes alone.
    module = ModuleType(f"tunesmith_opponent_{next(_NUMBERS)}")
    sys.modules[module.__name__] = module
    exec(compile(opponent.source, f"<opponent {opponent.name}>", "exec"), module.__dict__)
    if not hasattr(module, opponent.function):
        raise NameError(f"there is no function {opponent.function} in its file")
    return getattr(module, opponent.function)


class Prepared:
    """An opponent that can be timed: its calls on the sets of `data`. choice: see `Encounter`."""

    first_seconds = 0.0
    window = 1

    def __init__(self, opponent: AnyOpponent, data: WorkloadData) -> None:
        self._device, self._framework, self._data = data.device, _framework(opponent), data
        # One that takes every output writes where the kernels do, so that it does the same work in the same memory.
        if isinstance(opponent, FunctionOpponent):
            self.function = _function_of(opponent)
            named = inspect.signature(self.function).parameters
            self._takes_outputs = all(one.name in named for one in data.task.arguments if one.role == "out")
        else:
            from tunesmith.kernels.backends.triton.autotune import Autotuned

            self.function, self._takes_outputs = Autotuned(opponent, data.workload), True
        # A graph goes on writing where it wrote when it was captured: that memory belongs to these calls alone.
        self._pool: Any = None

    @property
    def choice(self) -> Config | None:
        return getattr(self.function, "choice", None)

    def load(self) -> Rotation:
        """A sampler of its launches on the places that the arrays have now."""
        return Rotation(self._device, [self.launch(index) for index in range(self._data.sets)], self.window)

    def launch(self, index: int) -> HostCall:
        """The call on set `index`, as something that a device runs."""
        return partial(self._run, self._given(index))

    def once(self, index: int) -> Any:
        """The result of a call."""
        given = self._given(index)
        found = self._run(given)
        self._device.synchronize()
        if found is None and self._takes_outputs:
            return {argument.name: given[argument.name] for argument in self._data.task.outputs}
        return found

    def on_host(self, results: Any) -> dict[str, Any]:
        """Results by output as flat arrays of float64. Raises `ValueError` for others than the outputs."""
        outputs = [argument.name for argument in self._data.task.outputs]
        if not isinstance(results, Mapping):
            values = list(results) if isinstance(results, tuple | list) else [results]
            results = dict(zip(outputs, values, strict=False))
        if set(results) != set(outputs):
            raise ValueError(f"it gives {', '.join(map(str, results)) or 'nothing'} instead of {', '.join(outputs)}")
        found = {}
        for name, value in results.items():
            host = value.detach().double().cpu().numpy() if hasattr(value, "detach") else value
            found[name] = on_host(host).astype(np.float64).reshape(-1)
        return found

    def _run(self, given: Mapping[str, Any]) -> Any:
        """A call, with the framework's own memory and on the device's stream."""
        on_host = BACKENDS[self._device.limits.backend].on_host
        with ExitStack() as stack:
            stack.enter_context(self._device.foreign_code())
            if self._framework == "cupy":
                import cupy

                self._pool = self._pool or cupy.cuda.MemoryPool()
                stack.enter_context(cupy.cuda.using_allocator(self._pool.malloc))
            elif self._framework == "torch":
                import torch

                if not on_host:
                    stream = self._device.stream  # type: ignore[attr-defined]
                    self._pool = self._pool or torch.cuda.MemPool()
                    stack.enter_context(torch.cuda.use_mem_pool(self._pool))
                    stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)))
                stack.enter_context(torch.no_grad())
            return self.function(**given)

    def _given(self, index: int) -> dict[str, Any]:
        """The opponent's arguments: arrays in their storage types, and scalars."""
        task, workload = self._data.task, self._data.workload
        scalars = {one.name: task.scalar_of(one, workload) for one in task.scalars}
        arrays = {
            place.argument.name: self._array(place.dtype, self._data.view(place, index)).reshape(place.shape)
            for place in self._data.places
            if place.argument.role != "out" or self._takes_outputs
        }
        return arrays | scalars

    def _array(self, dtype: str, buffer: Any) -> Any:
        raw, kind, on_host = self._device.array(buffer, dtype), DTYPES[dtype], self._device.backend == "opencl"
        foreign = kind.array != kind.storage
        if self._framework == "cupy" and foreign:
            raise TypeError(f"CuPy has no {dtype}")
        if self._framework != "torch":
            return raw.view(kind.storage) if on_host else raw
        import torch

        bits = raw.view(f"i{kind.size}") if foreign else raw.view(kind.storage) if on_host else raw
        tensor = torch.from_numpy(bits) if on_host else torch.as_tensor(bits, device="cuda")
        return tensor.view(getattr(torch, kind.numpy_name or kind.name)) if foreign else tensor


def _wrong(data: WorkloadData, results: Mapping[str, Any]) -> str | None:
    """Why results are wrong, as a clause; None where they are right."""
    for place in data.outputs:
        name = place.argument.name
        expected = on_host(data.expected_of(0)[name])
        if results[name].shape != expected.shape:
            return f"its {name} has {results[name].size} elements, not {expected.size}"
        tolerance = data.task.tolerance_of(place.dtype, name)
        off = deviation(np, results[name], expected, tolerance) > OPPONENT_TOLERANCE_FACTOR
        if off.any():
            at = int(np.argmax(off))
            return f"it computes something else: {name}[{at}] is {versus(results[name][at], expected[at])}"
    return None
