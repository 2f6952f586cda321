"""One run's PyTorch operator: is it what PyTorch asks of an operator, and what does a call of it cost.

    python scripts/measure/taken_home/export_calls.py checks|calls RUN FILE [--no-own-test]

Exports RUN as torch into a folder beside FILE, imports the package from there, and adds what it finds to FILE, as JSON.
checks: results against the reference of the function and of torch.ops, torch.library.opcheck, torch.compile, another
stream, a captured CUDA graph, the sentences for wrong arguments, and the export's own test. calls: microseconds from
call to call on the shape with the least traffic, of the package's function (`operator`) and of the registered operator,
which always goes through PyTorch's dispatcher (`torch.ops`), beside PyTorch's own expression and launches of the same
machine code by hand, through cuda-bindings and CuPy, with the output allocated in each call (`allocating`) or once
(`bare`).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tunesmith.graph.results.exports.package import Package
from tunesmith.graph.results.exports.writing import export_run
from tunesmith.kernels.spec.task import Workload

CALLS, ROUNDS = 1000, 21
OWN_TEST_SECONDS = 150


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("checks", "calls"))
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--no-own-test", action="store_true")
    options = parser.parse_args()
    folder = options.file.with_suffix("")
    if not folder.exists():
        export_run(options.run, "torch", folder)
    package = Package(options.run)
    module_name = f"{package.name}_tuned"
    sys.path.insert(0, str(folder))
    operator = Operator(package, folder / module_name, importlib.import_module(module_name))
    found = json.loads(options.file.read_text(encoding="utf-8")) if options.file.is_file() else {}
    if options.step == "checks":
        found["machine_code_is_what_was_measured"] = package.provenance["machine_code_is_what_was_measured"]
        found["checks"] = checks(operator)
        _write(options.file, found)
        if not options.no_own_test:
            found["own_test"] = own_test(folder)
    else:
        found["calls"] = calls(operator)
    _write(options.file, found)
    return 0


def _write(file: Path, found: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


class Operator:
    """An export's package that was imported, and the task that it computes."""

    def __init__(self, package: Package, folder: Path, module: Any) -> None:
        self.package, self.folder, self.module = package, folder, module
        self.call: Callable[..., Any] = getattr(module, package.name)
        self.registered = _registered(package.name)
        self.task = package.task

    def shapes(self) -> list[Workload]:
        """The measured ones, least traffic first."""
        rows = self.package.dispatch["shapes"]
        found = [Workload(name=row["workload"], sizes=row["sizes"], types=row["types"]) for row in rows]
        return sorted(found, key=self.task.bytes_of)

    def inputs(self, shape: Workload) -> dict[str, Any]:
        """Random tensors for the arrays that a call passes, by name."""
        import torch

        torch.manual_seed(0)
        made = {}
        for one in self.package.given:
            kind = getattr(torch, self.task.dtype_of(one, shape))
            made[one.name] = torch.randn(self.task.shape_of(one, shape), device="cuda").to(kind)
        return made

    def expected(self, arrays: Mapping[str, Any], shape: Workload) -> dict[str, Any]:
        """The reference's results in float64, by name."""
        import runpy

        read = {name: one.double().cpu().numpy() for name, one in arrays.items()}
        for one in self.task.arguments:
            if one.role == "scalar":
                read[one.name] = self.task.scalar_of(one, shape)
        source = runpy.run_path(str(self.folder / "reference.py"))
        results: dict[str, Any] = source[self.task.reference_name](**read)
        return results

    def results(self, arrays: Mapping[str, Any], returned: Any) -> dict[str, Any]:
        """By name, whatever a call writes."""
        made = [] if returned is None else [returned] if hasattr(returned, "dtype") else list(returned)
        found = dict(zip((one.name for one in self.package.made), made, strict=True))
        return found | {one.name: arrays[one.name] for one in self.package.given if one.role == "inout"}

    def deviation(self, arrays: Mapping[str, Any], returned: Any, want: Mapping[str, Any], shape: Workload) -> float:
        """The largest error as a share of its tolerance; 1 is the limit."""
        import numpy as np

        worst = 0.0
        for name, got in self.results(arrays, returned).items():
            argument = next(one for one in self.task.arguments if one.name == name)
            tolerance = self.task.tolerance_of(self.task.dtype_of(argument, shape), name)
            value = got.double().cpu().numpy()
            same = (value == want[name]) | (np.isnan(value) & np.isnan(want[name]))
            with np.errstate(invalid="ignore"):
                share = np.abs(value - want[name]) / (tolerance.atol + tolerance.rtol * np.abs(want[name]))
            worst = max(worst, float(np.where(same, 0.0, np.nan_to_num(share, nan=np.inf)).max(initial=0.0)))
        return worst


def _registered(name: str) -> Callable[..., Any]:
    import torch

    found: Callable[..., Any] = getattr(getattr(torch.ops, f"{name}_tuned"), name).default
    return found


def checks(operator: Operator) -> list[dict[str, Any]]:
    """A row for each check: ok, what was found or said."""
    import torch

    shapes = operator.shapes()
    small = shapes[0]
    rows = []

    def row(check: str, run: Callable[[], dict[str, Any]]) -> None:
        try:
            rows.append({"check": check, **run()})
        except Exception as error:  # noqa: BLE001 - a row of its own
            rows.append({"check": check, "ok": False, "error": f"{type(error).__name__}: {str(error)[:2000]}"})

    def compare(shape: Workload, call: Callable[..., Any]) -> dict[str, Any]:
        arrays = operator.inputs(shape)
        want = operator.expected(arrays, shape)
        worst = operator.deviation(arrays, call(*arrays.values()), want, shape)
        return {"shape": shape.name, "share_of_tolerance": worst, "ok": worst <= 1}

    def dispatched(way: Callable[..., Any]) -> int:
        """How many of two calls of a known shape go through the dispatcher, as a profiler lists them."""
        arrays = tuple(operator.inputs(small).values())
        way(*arrays)
        name = f"{operator.package.name}_tuned::{operator.package.name}"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(2):
                way(*arrays)
        return sum(one.count for one in profile.key_averages() if one.key == name)

    def ways() -> dict[str, Any]:
        found = {"function": dispatched(operator.call), "torch.ops": dispatched(operator.registered)}
        return {"dispatched_of_two": found, "ok": found == {"function": 0, "torch.ops": 2}}

    def other_stream() -> dict[str, Any]:
        arrays = operator.inputs(small)
        want = operator.expected(arrays, small)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # The arrays get their values only after other work of this stream.
            late = {name: torch.zeros_like(one) for name, one in arrays.items()}
            busy = torch.ones(4096, 4096, device="cuda")
            for _ in range(20):
                busy = busy @ busy / 4096
            for name, one in arrays.items():
                late[name].copy_(one)
            returned = operator.call(*late.values())
        stream.synchronize()
        worst = operator.deviation(late, returned, want, small)
        return {"share_of_tolerance": worst, "ok": worst <= 1}

    def opcheck() -> dict[str, Any]:
        found = torch.library.opcheck(operator.registered, tuple(operator.inputs(small).values()))
        return {"found": found, "ok": all(text == "SUCCESS" for text in found.values())}

    def compiled_with_others() -> dict[str, Any]:
        arrays = operator.inputs(small)
        want = operator.expected(arrays, small)

        def around(*given: Any) -> Any:
            own = [one * 1 for one in given]
            return operator.call(*own), own

        returned, own = torch.compile(around, fullgraph=True)(*arrays.values())
        worst = operator.deviation(dict(zip(arrays, own, strict=True)), returned, want, small)
        return {"share_of_tolerance": worst, "ok": worst <= 1}

    def captured() -> dict[str, Any]:
        arrays = operator.inputs(small)
        operator.module.load()
        operator.call(*(one.clone() for one in arrays.values()))
        want = operator.expected(arrays, small)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            returned = operator.call(*arrays.values())
        # Capturing does not run anything; a replay works on the arrays as they are.
        graph.replay()
        torch.cuda.synchronize()
        worst = operator.deviation(arrays, returned, want, small)
        return {"share_of_tolerance": worst, "ok": worst <= 1}

    def refused(wrong: Callable[[list[Any]], list[Any]], *, by_torch: bool = False) -> dict[str, Any]:
        given = wrong(list(operator.inputs(small).values()))
        try:
            operator.call(*given)
        except (ValueError, RuntimeError, TypeError) as error:
            text = str(error)
            ok = by_torch or text.startswith(f"{operator.package.name}: ")
            return {"kind": type(error).__name__, "said": text[:1000], "ok": ok}
        return {"said": "", "ok": False, "error": "it was not refused"}

    for shape in shapes[:3]:
        row("against the reference, the first call", partial(compare, shape, operator.call))
        row("against the reference, a later call", partial(compare, shape, operator.call))
        row("against the reference, torch.ops", partial(compare, shape, operator.registered))
    row("a known shape goes past the dispatcher", ways)
    row("opcheck", opcheck)
    row("torch.compile, fullgraph", lambda: compare(small, torch.compile(operator.call, fullgraph=True)))
    row("torch.compile, other operations around it", compiled_with_others)
    row("another stream", other_stream)
    row("captured graph", captured)
    row("wrong shape", lambda: refused(lambda given: [given[0].unsqueeze(0), *given[1:]]))
    row("wrong size", lambda: refused(lambda given: [given[0][..., :-1].contiguous(), *given[1:]]))
    row("wrong type", lambda: refused(lambda given: [one.to(torch.complex64) for one in given]))
    row("mixed types", lambda: refused(lambda given: [given[0].double(), *given[1:]]))
    row("not on the device", lambda: refused(lambda given: [one.cpu() for one in given], by_torch=True))
    row("not contiguous", lambda: refused(lambda given: [_strided(given[0]), *given[1:]]))
    return rows


def _strided(tensor: Any) -> Any:
    """The same shape over memory with gaps."""
    import torch

    wide = torch.empty((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype, device=tensor.device)
    return wide[..., ::2]


def own_test(folder: Path) -> dict[str, Any]:
    """The export's own test, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=OWN_TEST_SECONDS, cwd=folder, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end in {OWN_TEST_SECONDS} s"}
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    found: dict[str, Any] = {"exit_code": done.returncode, "last_line": lines[-1] if lines else ""}
    return found if done.returncode == 0 else found | {"error": "\n".join(lines[-25:])}


def calls(operator: Operator) -> dict[str, Any]:
    """Microseconds from call to call, all ways in turn in random order."""
    import torch

    shape = operator.shapes()[0]
    arrays = list(operator.inputs(shape).values())
    ways: dict[str, Callable[[], Any]] = {
        "operator": lambda: operator.call(*arrays),
        "torch.ops": lambda: operator.registered(*arrays),
    }
    failed = {}
    makers: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
        "eager": lambda: {"PyTorch's expression": _eager(operator, shape, arrays)},
        "cuda-bindings": lambda: _by_bindings(operator, shape, arrays),
        "cupy": lambda: _by_cupy(operator, shape, arrays),
    }
    for name, make in makers.items():
        try:
            made = make()
            for one in made.values():
                one()
            torch.cuda.synchronize()
            ways |= made
        except Exception as error:  # noqa: BLE001 - the others are measured
            failed[name] = f"{type(error).__name__}: {error}"
    rows = call_rows(time_calls(ways, torch.cuda.synchronize), "operator")
    by_hand = [row["us"] for row in rows if row["way"].endswith("allocating")]
    return {
        "shape": shape.name,
        "calls": CALLS,
        "rounds": ROUNDS,
        "ways": rows,
        "over_the_fastest_launch_by_hand_us": None if not by_hand else round(rows[0]["us"] - min(by_hand), 3),
        **({"error": json.dumps(failed)} if failed else {}),
    }


def time_calls(
    ways: Mapping[str, Callable[[], Any]],
    synchronize: Callable[[], Any],
    *,
    calls: int = CALLS,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds from call to call: each round times `calls` calls of every way, in random order."""
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in order.sample(list(ways), len(ways)):
            way = ways[name]
            synchronize()
            started = clock()
            for _ in range(calls):
                way()
            synchronize()
            # The first round only warms up.
            if number:
                found[name].append((clock() - started) / calls)
    return found


def call_rows(seconds: Mapping[str, Sequence[float]], reference: str) -> list[dict[str, Any]]:
    """The median of each way with its quartiles, and how much longer `reference` takes: the median over rounds."""
    rows = []
    for name, times in seconds.items():
        low, middle, high = statistics.quantiles(times, n=4)
        more = [mine - other for mine, other in zip(seconds[reference], times, strict=True)]
        rows.append(
            {
                "way": name,
                "us": round(middle * 1e6, 3),
                "quartiles_us": [round(low * 1e6, 3), round(high * 1e6, 3)],
                f"{reference}_takes_more_us": round(statistics.median(more) * 1e6, 3),
            }
        )
    return rows


def _eager(operator: Operator, shape: Workload, arrays: list[Any]) -> Callable[[], Any]:
    """What one writes in PyTorch instead."""
    import torch
    from torch.nn import functional

    if operator.package.name == "silu_and_mul":
        (x,), d = arrays, shape.sizes["d"]
        return lambda: functional.silu(x[:, :d]) * x[:, d:]
    if operator.package.name == "softmax":
        return lambda: torch.softmax(arrays[0], 1)
    if operator.package.name == "fused_add_rmsnorm":
        x, residual, weight = arrays
        size = (shape.sizes["d"],)

        def add_and_norm() -> None:
            residual.add_(x)
            x.copy_(functional.rms_norm(residual, size, weight, 1e-6))

        return add_and_norm
    if operator.package.name == "merge_attn_states":
        prefix, prefix_lse, suffix, suffix_lse = arrays

        def merge() -> Any:
            lse = torch.logaddexp(prefix_lse, suffix_lse)
            share = torch.exp(prefix_lse - lse).T.unsqueeze(-1)
            return (prefix * share + suffix * (1 - share)).to(prefix.dtype), lse

        return merge
    raise ValueError(f"there is no expression of PyTorch for {operator.package.name} here")


class ByHand:
    """What a launch by hand needs: the machine code that the rule chooses, its geometry, and arguments in order."""

    def __init__(self, operator: Operator, shape: Workload) -> None:
        import torch

        package, task, self.empty = operator.package, operator.task, torch.empty
        dispatch = importlib.import_module(f"{package.name}_tuned._dispatch")
        table = importlib.import_module(f"{package.name}_tuned._kernels").KERNELS
        types = tuple(shape.types[name] for name in package.types)
        number, self.grid, self.block, self.shared = dispatch.choose(types, tuple(shape.sizes.values()))
        about = table[types][number]
        if about["cubin"] is None:
            raise ValueError("the export holds no machine code")
        self.code, self.entry = (operator.folder / about["cubin"]).read_bytes(), about["entry"]
        self.scalars = {
            one.name: (task.dtype_of(one, shape), task.scalar_of(one, shape))
            for one in task.arguments
            if one.role == "scalar"
        }
        self.names = [one.name for one in task.arguments]
        self.made = [
            (one.name, task.shape_of(one, shape), getattr(torch, task.dtype_of(one, shape))) for one in package.made
        ]
        self.device = torch.device("cuda", torch.cuda.current_device())

    def outputs(self) -> dict[str, Any]:
        return {name: self.empty(shape, dtype=dtype, device=self.device) for name, shape, dtype in self.made}


def _by_bindings(operator: Operator, shape: Workload, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    import torch
    from cuda.bindings import driver

    hand = ByHand(operator, shape)
    device, raw_stream = hand.device.index, torch._C._cuda_getCurrentRawStream
    stream = raw_stream(device)
    module = _done(driver.cuModuleLoadData(hand.code))
    function = _done(driver.cuModuleGetFunction(module, hand.entry.encode()))
    if hand.shared > 48 * 1024:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.cuFuncSetAttribute(function, attribute, hand.shared)
    c_types: dict[str, Any] = {
        "int32": ctypes.c_int32,
        "int64": ctypes.c_int64,
        "float32": ctypes.c_float,
        "float64": ctypes.c_double,
    }
    slots: list[Any] = [
        ctypes.c_void_p(0) if name not in hand.scalars else c_types[hand.scalars[name][0]](hand.scalars[name][1])
        for name in hand.names
    ]
    packed = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(slot) for slot in slots))
    address, at = ctypes.addressof(packed), {name: number for number, name in enumerate(hand.names)}
    given = dict(zip((one.name for one in operator.package.given), arrays, strict=True))
    kept = hand.outputs()
    for name, tensor in (given | kept).items():
        slots[at[name]].value = tensor.data_ptr()
    launch, fixed = driver.cuLaunchKernel, (*hand.grid, *hand.block, hand.shared)

    def bare() -> Any:
        # `packed`, the slots that it points to and their tensors live as long as this function.
        launch(function, *fixed, stream, address, 0)
        return packed, slots, kept, given

    own = [type(slot)(slot.value) for slot in slots]
    own_packed = (ctypes.c_void_p * len(own))(*(ctypes.addressof(slot) for slot in own))
    own_address = ctypes.addressof(own_packed)

    def allocating() -> Any:
        made = hand.outputs()
        for name, tensor in given.items():
            own[at[name]].value = tensor.data_ptr()
        for name, tensor in made.items():
            own[at[name]].value = tensor.data_ptr()
        launch(function, *fixed, raw_stream(device), own_address, 0)
        return made, own_packed

    return {"cuda-bindings, bare": bare, "cuda-bindings, allocating": allocating}


def _done(answer: Any) -> Any:
    status, *found = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA answers {status.name}")
    return found[0]


def _by_cupy(operator: Operator, shape: Workload, arrays: list[Any]) -> dict[str, Callable[[], Any]]:
    import cupy
    import numpy as np
    import torch

    hand = ByHand(operator, shape)
    module = cupy.cuda.function.Module()
    module.load(hand.code)
    function = module.get_function(hand.entry)
    if hand.shared > 48 * 1024:
        attribute = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        cupy.cuda.driver.funcSetAttribute(function.ptr, attribute, hand.shared)
    scalars = {name: np.dtype(dtype).type(value) for name, (dtype, value) in hand.scalars.items()}
    given = dict(zip((one.name for one in operator.package.given), arrays, strict=True))
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def arguments(tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(scalars[name] if name in scalars else np.uint64(tensors[name].data_ptr()) for name in hand.names)

    kept = hand.outputs()
    prepared = arguments(given | kept)

    def bare() -> Any:
        function(hand.grid, hand.block, prepared, hand.shared, stream)
        return module, kept, given

    def allocating() -> Any:
        made = hand.outputs()
        function(hand.grid, hand.block, arguments(given | made), hand.shared, stream)
        return made

    return {"CuPy, bare": bare, "CuPy, allocating": allocating}


if __name__ == "__main__":
    sys.exit(main())
