"""Measures on a GPU what a process does to the time between two launches of one stream.

    python scripts/measure/streams.py --out FILE [--commit COMMIT] [--repeats N]

Each action runs in a process of its own, between two measurements of the same captured graphs: kernels that do
nothing, and kernels that work in place on 2 MB with cold caches; some actions are measured in the middle as well. The
last is a comparison of ours, with opponents.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Found without an installation, also by the processes that are started from here.
sys.path[:0] = [str(ROOT)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

SOURCE = r"""
extern "C" __global__ void nothing() {}
extern "C" __global__ void in_place(uint4* a) {
    const int i = blockIdx.x * 4 * blockDim.x + threadIdx.x;
    uint4 x[4];
    for (int k = 0; k < 4; ++k) x[k] = a[i + k * blockDim.x];
    for (int k = 0; k < 4; ++k) { x[k].x += 1; a[i + k * blockDim.x] = x[k]; }
}
"""
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")
SET_BYTES = 128 * 256 * 4 * 16
SETS = 128
MANY = 3000
Work = Callable[[], object]


class Clock:
    """Graphs of launches on one stream, and what a launch of each takes, in microseconds."""

    def __init__(self, action: str) -> None:
        self.cupy = cupy = import_module("cupy")
        module = cupy.RawModule(code=SOURCE)
        self.nothing, in_place = module.get_function("nothing"), module.get_function("in_place")
        self.other = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        self.kept: list[Any] = []
        self.during: list[dict[str, float]] = []
        """What an action measured in the middle."""
        capturing = _our_stream() if action == "our_comparison" else cupy.cuda.Stream(non_blocking=True)
        self._capturing = capturing
        # A graph cannot be captured on the default stream, but runs there.
        self.stream = cupy.cuda.Stream.null if action.startswith("torch") else capturing
        self.data = cupy.zeros(SETS * SET_BYTES, cupy.uint8)
        starts = [self.data[index * SET_BYTES :] for index in range(SETS)]
        self.idle: Work = partial(self.nothing, (1,), (32,), (), stream=capturing)
        busy: list[Work] = [partial(in_place, (128,), (256,), (start,), stream=capturing) for start in starts]
        launches: dict[str, list[Work]] = {"nothing": [self.idle] * 1000, "in_place": busy * 8}
        cupy.cuda.Device().synchronize()
        self.graphs = {name: (self.captured(calls), len(calls)) for name, calls in launches.items()}

    def captured(self, calls: Sequence[Work]) -> Any:
        """A graph of these launches."""
        self._capturing.begin_capture()
        for call in calls:
            call()
        return self._capturing.end_capture()

    def __call__(self) -> dict[str, float]:
        self.cupy.cuda.Device().synchronize()
        begin, end, found = self.cupy.cuda.Event(), self.cupy.cuda.Event(), {}
        for name, (graph, count) in self.graphs.items():
            taken = []
            for _ in range(10):
                begin.record(self.stream)
                graph.launch(self.stream)
                end.record(self.stream)
                end.synchronize()
                taken.append(self.cupy.cuda.get_elapsed_time(begin, end) * 1e3 / count)
            found[name] = round(statistics.median(taken[1:]), 3)
        return found

    def launches(self, streams: Sequence[Any], times: int) -> None:
        """Launches on each of these streams, in turn, that nobody waits for."""
        for _ in range(times):
            for stream in streams:
                self.nothing((1,), (32,), (), stream=stream)


def _our_stream() -> Any:
    from tunesmith.hw.probe import probe
    from tunesmith.kernels.backends import open_device

    device: Any = probe().device("cuda")
    opened: Any = open_device(device.limits, device.index)
    return opened.stream


def one_stream(clock: Clock) -> None:
    clock.launches([clock.stream], MANY)


def in_turn(clock: Clock) -> None:
    clock.launches([clock.stream, clock.other[0]], MANY)


def one_after_the_other(clock: Clock) -> None:
    for stream in (clock.stream, *clock.other):
        clock.launches([stream], MANY)
        stream.synchronize()


def kept_graphs(clock: Clock) -> None:
    """As a tuning keeps those of its samples."""
    for _ in range(64):
        clock.kept.append(clock.captured([clock.idle] * 100))
        clock.kept[-1].launch(clock.stream)


def kept_modules(clock: Clock) -> None:
    """As a tuning loads candidates."""
    for number in range(64):
        module = clock.cupy.RawModule(code=f'extern "C" __global__ void kernel_{number}(int* a) {{ *a = {number}; }}')
        module.get_function(f"kernel_{number}")((1,), (1,), (clock.data,), stream=clock.stream)
        clock.kept.append(module)


def kept_events(clock: Clock) -> None:
    """As many as the samples of a comparison have."""
    for _ in range(MANY):
        clock.kept.append(clock.cupy.cuda.Event())
        clock.kept[-1].record(clock.stream)


def uploaded_graphs(clock: Clock) -> None:
    """Measured when eight are uploaded, and when the first of them was launched."""
    clock.kept += [clock.captured([clock.idle] * 100) for _ in range(8)]
    for graph in clock.kept:
        graph.upload(clock.stream)
    clock.during.append(clock())
    clock.kept[0].launch(clock.stream)
    clock.during.append(clock())


def cache_resets(clock: Clock) -> None:
    """Measured after each."""
    from cuda.bindings import driver

    for _ in range(32):
        (status,) = driver.cuCtxResetPersistingL2Cache()
        if status:
            raise SystemExit(f"cuCtxResetPersistingL2Cache answers with {status.name}")
        clock.during.append(clock())


def torch_default_stream(clock: Clock) -> None:
    torch = import_module("torch")
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    compiled = torch.compile(lambda y: torch.nn.functional.silu(y) + 1)
    for _ in range(100):
        compiled(torch.relu(x @ x))


def torch_graph(clock: Clock) -> None:
    """As PyTorch's documentation captures one: warmed up on a stream of its own, replayed on the default one."""
    torch = import_module("torch")
    x, side = torch.randn(2048, 2048, device="cuda", dtype=torch.float16), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            x @ x
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x @ x
    for _ in range(100):
        graph.replay()


def torch_copies_beside(clock: Clock) -> None:
    torch = import_module("torch")
    host, side = torch.randn(1 << 22).pin_memory(), torch.cuda.Stream()
    target = torch.empty(1 << 22, device="cuda")
    for _ in range(50):
        with torch.cuda.stream(side):
            target.copy_(host, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        target.mul_(2)


def torch_kernels_beside(clock: Clock) -> None:
    torch = import_module("torch")
    x, sides = torch.randn(1 << 22, device="cuda"), [torch.cuda.Stream() for _ in range(2)]
    for _ in range(100):
        for side in sides:
            with torch.cuda.stream(side):
                x.mul(2)


def our_comparison(clock: Clock) -> None:
    """softmax's smallest workload, plain kernel and template, with the task's opponents."""
    from tunesmith.cli.measure.trust import compiled, template_of
    from tunesmith.hw.probe import probe
    from tunesmith.kernels.backends import open_compiler
    from tunesmith.kernels.measure.bench import Bench
    from tunesmith.kernels.spec.files.taskfile import load_task

    device, task = probe().device("cuda"), load_task("softmax")
    compiler = open_compiler(device.limits, device.index)
    workload = min(task.workloads_for(device.limits.kind, held_out=False), key=task.bytes_of)
    plain, ours = (
        compiled(compiler, task, template, template.default_config, workload.name)
        for template in (template_of(task, "baseline"), template_of(task, "template"))
    )
    opponents = tuple(one for one in task.opponents if find_spec(one.framework))
    found = Bench(task, device.limits, device.index).compare(
        plain, [ours], workload.name, rounds=9, budget_seconds=1.0, opponents=opponents
    )
    for one in found.opponents:
        print(f"{one.name}: {one.why or one.comparison}", file=sys.stderr)


ACTIONS: tuple[Callable[[Clock], None], ...] = (
    one_stream,
    in_turn,
    one_after_the_other,
    kept_graphs,
    kept_modules,
    kept_events,
    uploaded_graphs,
    cache_resets,
    torch_default_stream,
    torch_graph,
    torch_copies_beside,
    torch_kernels_beside,
    our_comparison,
)


def child(name: str) -> None:
    """Prints what launches took before and after the action, as JSON."""
    clock = Clock(name)
    clock()
    before = clock()
    {action.__name__: action for action in ACTIONS}[name](clock)
    during = {"during": clock.during} if clock.during else {}
    print(json.dumps({"before": before, **during, "after": clock()}))


def _installed(package: str) -> bool:
    return any(one.name == package for one in metadata.distributions())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"))
    parser.add_argument("--repeats", type=int, default=2, help="processes for each action")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        child(options.child)
        return 0
    if options.out is None:
        parser.error("--out is needed.")
    from tunesmith.hw.probe import probe

    rows: list[dict[str, Any]] = []
    record = {
        "command": "python scripts/measure/streams.py " + " ".join(arguments or sys.argv[1:]),
        "commit": options.commit,
        "device": probe().device("cuda").to_json(),
        "versions": {name: metadata.version(name) for name in PACKAGES if _installed(name)},
        "unit": "microseconds a launch",
        "rows": rows,
    }
    for action in ACTIONS:
        if action.__name__.startswith("torch") and find_spec("torch") is None:
            continue
        for _ in range(options.repeats):
            command = [sys.executable, __file__, "--child", action.__name__]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            row: dict[str, Any] = {"action": action.__name__}
            row |= json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {"error": done.stderr[-500:]}
            rows.append(row)
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
