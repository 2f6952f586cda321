"""Files of Triton's own autotune cache, so that a kernel decorated with `triton.autotune` finds its configuration there.

The name of a file is a digest over Triton's build, the device, the kernel with all that it calls, the environment, the
tuning key and the decorator's list; only Triton computes it, from the module with the kernel. So that is imported, in a
process of its own, as production imports it: its kernel is called under a stand-in for a driver with stand-ins for
arrays, and when it is about to time its list, it is given what the tuning found and writes the file by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.python_source import FIXED, SPECIALISED
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.template import TRITON_OPTIONS
from tunesmith.kernels.triton.exports import kernel_body

SECONDS = 600.0
"""For the import of the user's module, and the calls of its kernel."""
_TORCH = {"float8_e4m3": "float8_e4m3fn"}


def calls_of(task: Task, about: Mapping[str, Any], best: Path) -> list[dict[str, Any]]:
    """The call of each measured shape, with the source of the kernel that serves it. about: dispatch.json of `best`."""
    found = []
    for row in about["shapes"]:
        workload = task.workload(row["workload"])
        file = "-".join(["kernel", *(dtype for _, dtype in sorted(row["types"].items()))]) + ".py"
        sources = [path for name in (row["folder"], "general") if (path := best / name / file).is_file()]
        arguments = {
            one.name: task.scalar_of(one, workload)
            if one.role == "scalar"
            else {"dtype": task.dtype_of(one, workload), "shape": task.shape_of(one, workload)}
            for one in task.arguments
        }
        times = [(row.get("seconds") or row["ratio"]) * 1e3] * 3
        found.append({"shape": row["workload"], "sources": [*map(str, sources)], "arguments": arguments, "ms": times})
    return found


def write_cache(kernel: str, arch: str, calls: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """Writes `<digest>/<function>.autotune.json` into `folder` for `calls`, and returns what to know, as sentences.

    kernel: FILE.py:NAME, the decorated kernel; arch: of the device, "sm_90". Raises `TunesmithError`."""
    file, _, name = kernel.rpartition(":")
    if not file or not Path(file).is_file():
        raise TunesmithError(f"--kernel: there is no file '{file}'; name the decorated kernel as FILE.py:NAME.")
    folder.mkdir(parents=True, exist_ok=True)
    given = {"file": str(Path(file).resolve()), "kernel": name, "arch": arch, "calls": calls}
    given["answer"] = str(folder / "notes.json")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_CACHE_AUTOTUNING": "1"}
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, input=json.dumps(given), env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise TunesmithError(f"--kernel: {file} has not been imported for {SECONDS:g} s: export where it can be.") from error
    answer = Path(given["answer"])
    if done.returncode or not answer.is_file():
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise TunesmithError(f"--kernel: {kernel} cannot be had as in production ({last}); export where it is imported.")
    notes = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    if isinstance(notes, str):
        raise TunesmithError(f"--kernel: {kernel}: {notes}")
    return [str(note) for note in notes]


# In the process with the user's module


class _Refused(Exception):
    """Why there is no file, as a sentence."""


class _Answered(Exception):
    """Ends a call of the kernel before its launch."""


@dataclass(frozen=True, slots=True)
class _Driver:
    target: Any

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Array:
    """Where there is no PyTorch. dtype: as PyTorch shows it."""

    dtype: str
    shape: tuple[int, ...]

    def data_ptr(self) -> int:
        return 0


def _main() -> None:
    given = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: Any = _write(given)
        except _Refused as refused:
            answer = str(refused)
    Path(given["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _write(given: Mapping[str, Any]) -> list[str]:
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", int(given["arch"][3:].rstrip("af")), 32)
    triton.runtime.driver.set_active(_Driver(target))
    outer = tuner = getattr(_imported(Path(given["file"])), given["kernel"], None)
    while tuner is not None and not isinstance(tuner, triton.runtime.Autotuner):
        tuner = getattr(tuner, "fn", None)
    if tuner is None:
        raise _Refused("it is not decorated with triton.autotune: use tuned.py of best/, or put the lines of configs.txt.")
    if any(one.pre_hook for one in tuner.configs):
        raise _Refused("a configuration of its list has a pre_hook, with which Triton keeps no choice.")
    if len(tuner.configs) < 2:
        raise _Refused("its list has one configuration, which Triton takes without a look into its cache.")
    notes, keys = list[str](), dict[Any, list[Any]]()
    for call in given["calls"]:
        with _noted(call["shape"], notes):
            found = [_configuration(Path(source), tuner, given["kernel"]) for source in call["sources"]]
            if not found:
                raise _Refused("no source of it is in best/.")
            keys.setdefault(_asked(outer, tuner, call, found[0]), []).append((call, found))
    for (key, _), group in keys.items():
        call, found = group[0]
        # One of several shapes that Triton does not tell apart, or the general configuration, which serves all.
        winner = found[0][0] if all(others[0][0] == found[0][0] for _, others in group) else found[-1][0]
        if len(group) > 1 and winner != found[0][0]:
            shapes = ", ".join(one["shape"] for one, _ in group)
            notes.append(f"{shapes}: they have the tuning key {key} in common, and take one configuration.")
        _asked(outer, tuner, call, found[0], winner)
    if not keys:
        raise _Refused(" ".join(notes))
    return notes


@contextlib.contextmanager
def _noted(shape: str, notes: list[str]) -> Iterator[None]:
    try:
        yield
    except _Refused as refused:
        notes.append(f"{shape} has no entry: {refused}")


def _imported(file: Path) -> Any:
    """The module of a file, by the name that it has in its package."""
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    sys.path.insert(0, str(folder))
    return importlib.import_module(".".join(names))


def _configuration(source: Path, tuner: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """The `triton.Config` of a source of best/ for the kernel's list, and what else the call gives."""
    import triton

    made = runpy.run_path(str(source))
    entry, fn = made[SPECIALISED]["kernel"], tuner.fn
    while not isinstance(fn, triton.JITFunction):
        fn = fn.fn
    if kernel_body(source.read_text(encoding="utf-8"), entry) != kernel_body(fn.src, fn.__name__):
        raise _Refused(f"the text of {name} is not that of {source}.")
    values = {**made.get(FIXED, {}), **made[SPECIALISED]["values"]}
    listed = {key for config in tuner.configs for key in config.kwargs}
    if missing := sorted(listed - values.keys()):
        raise _Refused(f"the tuning has no value of {', '.join(missing)}, which the list has.")
    if stray := sorted(made[SPECIALISED]["values"].keys() - listed - {*TRITON_OPTIONS}):
        raise _Refused(f"{', '.join(stray)} was tuned, and the list does not have it: add it there, or use tuned.py.")
    options = {key: values[key] for key in TRITON_OPTIONS if key in values}
    rest = {key: value for key, value in values.items() if key not in listed and key not in TRITON_OPTIONS}
    return triton.Config({key: values[key] for key in tuner.configs[0].kwargs}, **options), rest


def _asked(outer: Any, tuner: Any, call: Mapping[str, Any], found: Any, winner: Any = None) -> Any:
    """Calls the kernel up to where it looks for its choice, and returns the tuning key and the list that is left; with
    `winner`, Triton writes that into its cache."""
    own, prune, asked = type(tuner), type(tuner).prune_configs, list[Any]()

    def pruned(kwargs: Any) -> Any:
        if len(left := prune(tuner, kwargs)) == 1:
            raise _Refused("its pruning leaves one configuration, which Triton takes without a look into its cache.")
        return left

    def check(key: Any, configs: Any, bench: Any) -> bool:
        def instead() -> None:
            tuner.cache[key], tuner.configs_timings = winner, {winner: call["ms"]}

        if not key:
            raise _Refused("its call has an empty tuning key, with which Triton keeps no choice.")
        asked.append((key, tuple(map(str, configs))))
        if winner is not None:
            own.check_disk_cache(tuner, key, configs, instead)
        raise _Answered

    tuner.cache, tuner.cache_results, tuner.prune_configs, tuner.check_disk_cache = {}, True, pruned, check
    values = {**found[1], **{name: _stand_in(value) for name, value in call["arguments"].items()}}
    # By place as far as it goes, as most callers do: a list's pruning sees those under `named_args`.
    leading = list(itertools.takewhile(values.__contains__, tuner.arg_names))
    ordered = {name: values[name] for name in tuner.arg_names[len(leading) :] if name in values}
    try:
        outer.run(*map(values.__getitem__, leading), grid=(1,), warmup=False, **ordered)
    except _Answered:
        return asked[0]
    raise _Refused("it did not ask for a choice.")


def _stand_in(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name, torch = _TORCH.get(value["dtype"], value["dtype"]), sys.modules.get("torch")
    if torch is not None:
        return torch.empty(value["shape"], dtype=getattr(torch, name), device="meta")
    return _Array(f"torch.{name}", tuple(value["shape"]))


if __name__ == "__main__":
    _main()
