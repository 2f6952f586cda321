"""Triton's own autotuner: a kernel below `triton.autotune`, called as people call it, so that Triton compiles and times
its list at the first call; and the files of its cache, where a decorated kernel finds its configuration.

The name of such a file is a digest over Triton's build, the device, the kernel with all that it calls, the environment,
the tuning key and the decorator's list; only Triton computes it, from the module with the kernel. So that is imported,
in a process of its own, as production imports it: its kernel is called under a stand-in for a driver with stand-ins for
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
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends.triton.compiler import FILE, imported, pretend_device
from tunesmith.kernels.build.python_source import FIXED, SPECIALISED
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import KernelOpponent, Task, Workload
from tunesmith.kernels.spec.template import Config, without_options
from tunesmith.kernels.triton.exports import kernel_body


class Autotuned:
    """A function of the kernel's arguments by name, tensors among them. Raises `ImportError` without PyTorch, by which
    Triton measures."""

    def __init__(self, opponent: KernelOpponent, workload: Workload) -> None:
        try:
            import torch
            import triton
        except ImportError as error:
            raise ImportError(f"{error}; Triton's autotuner measures by PyTorch: `pip install torch`") from error
        # A reference that is compiled in this process leaves a stand-in for the driver.
        triton.runtime.driver.reset_active()
        # For kernels that make descriptors of tensors.
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        self._launch, self._sizes = opponent.template.launch, workload.names
        module = _module(opponent.template.source)
        self._fixed, options = without_options(getattr(module, FIXED, {}))
        listed = [triton.Config(own, **{**options, **more}) for own, more in map(without_options, opponent.configs)]
        self.tuner = triton.autotune(configs=listed, key=[])(getattr(module, opponent.template.entry))
        self._names, self._chosen = [one.name for one in opponent.template.parameters], False

    def __call__(self, **given: Any) -> None:
        def grid(meta: Any) -> tuple[int, ...]:
            return tuple(parse(text).integer({**meta, **self._sizes}) for text in self._launch.grid)

        from triton import knobs

        if self._chosen:
            self.tuner[grid](**given, **self._fixed)
            return
        # What earlier programs compiled does not shorten the first call.
        with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder, knobs.cache.scope():
            knobs.cache.dir = folder
            self.tuner[grid](**given, **self._fixed)
        self._chosen = True

    @property
    def choice(self) -> Config:
        """The configuration that the first call has chosen."""
        chosen = self.tuner.best_config.all_kwargs()
        return {name: chosen[name] for name in self._names if name in chosen}


@cache
def _module(source: str) -> Any:
    """A kernel's module, one for all shapes: in one process Triton compiles once for shapes that need the same code."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder:
        path = Path(folder, FILE)
        path.write_text(source, encoding="utf-8")
        return imported(path)


SECONDS = 600.0
"""For the import of the user's module, and the calls of its kernel."""


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
        # An argument that the kernel does not use may still be a size of its tuning key.
        arguments = {**workload.sizes, **arguments}
        times = [(row["seconds"] or 0.0) * 1e3] * 3  # for the three quantiles of Triton's own files
        found.append({"shape": row["workload"], "sources": [*map(str, sources)], "arguments": arguments, "ms": times})
    return found


def write_cache(kernel: str, arch: str, calls: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """Writes `<digest>/<function>.autotune.json` into `folder` for `calls`, and returns what to know, as sentences.

    kernel: FILE.py:NAME, the decorated kernel; arch: of the device, "sm_90". Raises `TunesmithError`."""
    file, _, name = kernel.rpartition(":")
    if not file or not Path(file).is_file():
        raise TunesmithError(f"--kernel: there is no file '{file}'; name the decorated kernel as FILE.py:NAME.")
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "notes.json"
    given = {"file": str(Path(file).resolve()), "kernel": name, "arch": arch, "calls": calls, "answer": str(answer)}
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_CACHE_AUTOTUNING": "1"}
    command, text = [sys.executable, "-m", __name__], json.dumps(given)
    try:
        done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TunesmithError(f"--kernel: importing {file} takes longer than {SECONDS:g} s here.") from error
    if done.returncode or not answer.is_file():
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise TunesmithError(
            f"--kernel: {kernel} cannot be called here as in production ({last}): export where it can."
        )
    notes: list[str] | str = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    if isinstance(notes, str):
        raise TunesmithError(f"--kernel: {kernel}: {notes}")
    return notes


# In the process with the user's module


class _Answered(Exception):
    """Ends a call of the kernel before its launch."""


def _main() -> None:
    given = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: list[str] | str = _write(given)
        except TunesmithError as refused:
            answer = str(refused)
    Path(given["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _write(given: Mapping[str, Any]) -> list[str]:
    import triton

    pretend_device(given["arch"])
    outer = tuner = getattr(_imported(Path(given["file"])), given["kernel"], None)
    while tuner is not None and not isinstance(tuner, triton.runtime.Autotuner):
        tuner = getattr(tuner, "fn", None)
    if tuner is None:
        raise TunesmithError("it is not decorated with triton.autotune: take tuned.py or configs.txt of best/.")
    if any(one.pre_hook for one in tuner.configs):
        raise TunesmithError("a configuration of its list has a pre_hook, with which Triton keeps no choice.")
    if len(tuner.configs) < 2:
        raise TunesmithError("its list has one configuration, which Triton takes without a look into its cache.")
    notes, keys = list[str](), dict[Any, list[Any]]()
    for call in given["calls"]:
        try:
            found = [_configuration(Path(source), tuner) for source in call["sources"]]
            keys.setdefault(_asked(outer, tuner, call, found[0][1]), []).append((call, found))
        except TunesmithError as refused:
            notes.append(f"{call['shape']} has no entry: {refused}")
    for (key, _), group in keys.items():
        call, found = group[0]
        winner = found[0][0]
        if any(others[0][0] != winner for _, others in group):
            winner = found[-1][0]  # the general configuration, if there is one
            shapes = ", ".join(one["shape"] for one, _ in group)
            notes.append(f"{shapes} have one tuning key, {key}, and take one configuration: {winner}.")
        _asked(outer, tuner, call, found[0][1], winner)
    if not keys:
        raise TunesmithError(" ".join(notes))
    return notes


def _imported(file: Path) -> Any:
    """The module of a file, by the name that it has in its package."""
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    sys.path.insert(0, str(folder))
    return importlib.import_module(".".join(names))


def _configuration(source: Path, tuner: Any) -> tuple[Any, dict[str, Any]]:
    """The `triton.Config` of a source of best/ for the kernel's list, and what else the call gives."""
    import triton

    made, fn = runpy.run_path(str(source)), tuner.fn
    while not isinstance(fn, triton.JITFunction):
        fn = fn.fn
    tuned = made[SPECIALISED]["values"]
    if kernel_body(source.read_text(encoding="utf-8"), made[SPECIALISED]["kernel"]) != kernel_body(fn.src, fn.__name__):
        raise TunesmithError(f"the kernel's text is not that of {source}.")
    values, options = without_options({**made.get(FIXED, {}), **tuned})
    listed = dict.fromkeys(name for config in tuner.configs for name in config.kwargs)
    if missing := [name for name in listed if name not in values]:
        raise TunesmithError(f"the tuning has no value of {', '.join(missing)}, which the list has.")
    if stray := sorted(tuned.keys() - listed.keys() - options.keys()):
        raise TunesmithError(
            f"{', '.join(stray)} was tuned, and the list does not have it: add it there, or take tuned.py."
        )
    rest = {name: value for name, value in values.items() if name not in listed}
    return triton.Config({name: values[name] for name in listed}, **options), rest


def _asked(outer: Any, tuner: Any, call: Mapping[str, Any], rest: Mapping[str, Any], winner: Any = None) -> Any:
    """Calls the kernel up to where it looks for its choice, and returns the tuning key with the list that is left by
    its pruning. With `winner`, Triton writes that into its cache. rest: values of arguments beside the task's."""
    asked = list[Any]()

    def pruned(given: Any) -> Any:
        if len(left := type(tuner).prune_configs(tuner, given)) == 1:
            raise TunesmithError(
                "its pruning leaves one configuration, which Triton takes without a look into its cache."
            )
        return left

    def instead() -> None:
        tuner.configs_timings = {winner: call["ms"]}

    def check(key: Any, configs: Any, bench: Any) -> bool:
        if not key:
            raise TunesmithError("its call has an empty tuning key, with which Triton keeps no choice.")
        asked.append((key, tuple(map(str, configs))))
        if winner is not None:
            type(tuner).check_disk_cache(tuner, key, configs, instead)
        raise _Answered

    tuner.cache, tuner.cache_results, tuner.prune_configs, tuner.check_disk_cache = {}, True, pruned, check
    values = {**rest, **{name: _stand_in(value) for name, value in call["arguments"].items()}}
    if unknown := [name for name in tuner.keys if values.get(name) is None]:
        raise TunesmithError(f"the tuning does not tell {', '.join(unknown)}, which its tuning key has.")
    # By place as far as it goes, as most callers do: a list's pruning sees those under `named_args`.
    leading = list(itertools.takewhile(values.__contains__, tuner.arg_names))
    ordered = {name: values[name] for name in tuner.arg_names[len(leading) :] if name in values}
    try:
        outer.run(*map(values.__getitem__, leading), grid=(1,), warmup=False, **ordered)
    except _Answered:
        return asked[0]
    raise TunesmithError("it does not look for a choice.")


def _stand_in(value: Any) -> Any:
    """An argument; an array is one without memory where PyTorch is imported, else what Triton asks of it."""
    if not isinstance(value, dict):
        return value
    name, torch = value["dtype"].replace("e4m3", "e4m3fn"), sys.modules.get("torch")
    if torch is not None:
        return torch.empty(value["shape"], dtype=getattr(torch, name), device="meta")
    return SimpleNamespace(dtype=f"torch.{name}", shape=tuple(value["shape"]), data_ptr=lambda: 0)


if __name__ == "__main__":
    _main()
