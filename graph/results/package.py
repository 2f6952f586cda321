"""The contents of an export: a run's task, its kernels as best/ has them, and the kernel that serves each shape.

`Package` reads the folder of a run, which may have been copied from another machine, and needs no device.
`write_results` writes a run's measurements in the format T4, for other tuners.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from tunesmith import __version__
from tunesmith.graph.journal.events import RunStarted
from tunesmith.graph.journal.log import RunLog, seconds_of, weighted_geomean
from tunesmith.graph.journal.store import Journal, run_around
from tunesmith.graph.results.best import BASELINE, DispatchFile, LaunchFile, MachineCode, RuleNode, call_signature
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search.tables import ConfigResult, write_t4
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Argument, Task
from tunesmith.kernels.spec.translate import folded

M = TypeVar("M", bound=BaseModel)

SCALARS = frozenset(name for name in DTYPES if name in ("float64", "float32") or not DTYPES[name].is_float)
"""The data types of scalars that a caller may pass."""
Types = tuple[str, ...]
"""A data type for each of the task's type names, in their order."""


class ExportError(TunesmithError):
    """A run cannot be exported in a form."""


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel for one combination of types. source: its file in the run's best/; cubin: the machine code's, None
    where there is none; arch: its architecture, such as "sm_90"; measured: whether it is the code that was timed."""

    source: Path
    cubin: Path | None
    arch: str
    measured: bool
    fast_math: bool
    max_registers: int


@dataclass(frozen=True, slots=True)
class ExportedKernel:
    """A folder of best/. grid, block (of three axes), shared_bytes: expressions; requires: what a shape must meet."""

    folder: str
    template: str
    config: Mapping[str, Any]
    grid: Sequence[str]
    block: Sequence[str]
    shared_bytes: str
    requires: Sequence[str]
    codes: Mapping[Types, Code]

    def text(self, expression: str, types: Mapping[str, str]) -> str:
        """An expression over sizes alone: configuration and types written in."""
        return folded(expression, {**{name: name for name in DTYPES}, **types, **self.config})


@dataclass(frozen=True, slots=True)
class Binding:
    """An argument of the kernel as exports pass it. name: legal in Python, C and C++; position: in the kernel's
    signature; shape: for people; dtype: a data type or type name, and types: the same for people; value: a scalar's
    expression; default: of a scalar that a caller may choose, None for any other."""

    name: str
    position: int
    role: Literal["in", "out", "inout", "scalar"]
    shape: str
    dtype: str
    types: str
    value: str
    default: float | int | None


class Package:
    """The exportable contents of a run in `folder`. task: left out, it is read from the journal. Raises `ExportError`,
    `JournalError`."""

    def __init__(self, folder: Path, task: Task | None = None) -> None:
        self.folder = folder
        best = folder / "best"
        if not best.exists() and not (folder / "journal.sqlite").exists():
            problem = f"{folder} is not the folder of a run" if folder.exists() else f"There is no folder {folder}"
            hint = f"name a folder that `tunesmith tune` wrote, as its last lines say{run_around(folder)}"
            raise ExportError(f"{problem}; {hint}")
        try:
            raw = (best / "dispatch.json").read_text(encoding="utf-8")
            found = {path.parent.name: path.read_text("utf-8") for path in best.glob("*/launch.json")}
        except OSError as error:
            raise ExportError(
                f"{folder} has no winners to export ({error.strerror}: {error.filename}): it found nothing right, or "
                f"has not ended, as `tunesmith report` says; or best/ was removed, and `tunesmith resume {folder}` "
                "writes it anew."
            ) from error
        except ValueError as error:
            raise self._damaged("a file", str(error)) from error
        self.dispatch = self._read(DispatchFile, "dispatch.json", raw)
        about = {name: self._read(LaunchFile, f"{name}/launch.json", text) for name, text in sorted(found.items())}
        self.task = _task(folder) if task is None else task
        self.backend: str = self.dispatch.backend
        self._require_known(about)
        used = {one.folder for one in self.dispatch.shapes} | self.dispatch.rule.folders()
        folders = [BASELINE, *sorted(name for name in about if name != BASELINE and name in used)]
        self.kernels = [_kernel(best, name, about[name], self.types) for name in folders]

    def _damaged(self, file: str, why: str) -> ExportError:
        again = f"`tunesmith resume {self.folder}` writes it anew"
        return ExportError(f"{self.folder / 'best'} is damaged or of another version ({file}: {why}); {again}.")

    def _read(self, model: type[M], file: str, text: str) -> M:
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._damaged(f"{file}, {where}" if where else file, first["msg"].partition("\n")[0]) from error

    def _require_known(self, about: Mapping[str, LaunchFile]) -> None:
        """That all files name one another, and what the task has."""
        known, best = {one.name for one in self.task.workloads}, self.folder / "best"
        for name in sorted({BASELINE, *self.dispatch.rule.folders(), *(one.folder for one in self.dispatch.shapes)}):
            if name not in about:
                raise self._damaged("dispatch.json", f"there is no folder {name!r} with a launch.json")
        if self.dispatch.signature != call_signature(self.task):
            raise self._damaged("dispatch.json", "its signature is not that of the task")
        for one in self.dispatch.shapes:
            if one.workload not in known or set(one.sizes) != set(self.sizes) or set(one.types) != set(self.types):
                raise self._damaged("dispatch.json", f"the task has no workload like {one.workload!r}")
        self._require_expressions("dispatch.json", self.dispatch.rule.tests())
        for name, launch in about.items():
            of = launch.launch
            self._require_expressions(f"{name}/launch.json", [*of.grid, *of.block, of.shared_bytes, *launch.requires])
            for source in launch.sources:
                code = source.machine_code.file if source.machine_code is not None else None
                for file in (source.source, *([code] if code is not None else [])):
                    if Path(file).name != file or not (best / name / file).is_file():
                        raise self._damaged(f"{name}/launch.json", f"there is no file {file!r} beside it")
                if set(source.types) != set(self.types):
                    raise self._damaged(f"{name}/launch.json", "its types are not the types of the task")

    def _require_expressions(self, file: str, texts: Iterable[str]) -> None:
        for text in texts:
            try:
                folded(text, {name: name for name in DTYPES})
            except ExpressionError as error:
                raise self._damaged(file, f"{json.dumps(text)[:80]} is not an expression") from error

    @property
    def name(self) -> str:
        return self.task.name

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The task's type names, in the order of `Types`."""
        return tuple(self.task.types)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        return tuple(self.task.workloads[0].sizes)

    @cached_property
    def combinations(self) -> list[Types]:
        """The combinations of types that have a baseline."""
        return list(self.kernels[0].codes)

    def named(self, types: Types) -> dict[str, str]:
        return dict(zip(self.types, types, strict=True))

    @cached_property
    def arguments(self) -> list[Binding]:
        """In the order of the kernel's signature."""
        return [self._binding(position, one) for position, one in enumerate(self.task.arguments)]

    def _binding(self, position: int, one: Argument) -> Binding:
        default, types = None, one.dtype
        if one.dtype in self.types:
            types = f"{one.dtype} of {', '.join(self.task.types[one.dtype])}"
        # A caller may choose the scalars that follow from no size.
        if one.value is not None and one.dtype in SCALARS and not parse(one.value).names:
            number = parse(one.value).number({})
            default = float(number) if DTYPES[one.dtype].is_float else int(number)
        shape, value = ", ".join(one.shape), one.value or ""
        return Binding(identifier(one.name), position, one.role, shape, one.dtype, types, value, default)

    @property
    def arrays(self) -> list[Binding]:
        return [one for one in self.arguments if one.role != "scalar"]

    @property
    def given(self) -> list[Binding]:
        """The arrays that a caller passes."""
        return [one for one in self.arrays if one.role != "out"]

    @property
    def made(self) -> list[Binding]:
        """The arrays that a call returns."""
        return [one for one in self.arrays if one.role == "out"]

    @property
    def chosen(self) -> list[Binding]:
        """The scalars that a caller may choose."""
        return [one for one in self.arguments if one.default is not None]

    @property
    def explicit_sizes(self) -> list[str]:
        """The sizes that no array tells."""
        return [one["name"] for one in self.dispatch.signature["sizes"] if one["argument"] is None]

    def rule(self, types: Types) -> dict[str, Any]:
        """The rule for one combination of types: {"use": number} or {"test", "yes", "no"}, over sizes alone."""
        return self._rule(self.dispatch.rule, types)

    def exact(self, types: Types) -> dict[tuple[int, ...], int]:
        """The measured shapes: sizes in their order, and the number of the kernel."""
        numbers = {kernel.folder: number for number, kernel in enumerate(self.kernels)}
        return {
            tuple(row.sizes[size] for size in self.sizes): numbers[row.folder]
            for row in self.dispatch.shapes
            if tuple(row.types[name] for name in self.types) == types
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The origin of the kernels, and the times that were measured."""
        with Journal(self.folder, create=False, reading=True) as journal:
            begun = RunLog(journal).entries(RunStarted)[-1]
        measured = [code.measured for kernel in self.kernels for code in kernel.codes.values() if code.cubin]
        return {
            "task": self.name,
            "summary": self.task.summary,
            "device": self.dispatch.device,
            "driver": self.dispatch.driver,
            "compiler": self.dispatch.compiler,
            "tunesmith": __version__,
            # An ISO date, and the commit of the task's files, empty where there is none.
            "tuned_at": datetime.fromtimestamp(begun.at, UTC).isoformat(timespec="seconds"),
            "commit": begun.event.origin.commit,
            "command": begun.event.origin.command,
            "verdict": self.dispatch.verdict,
            "machine_code_is_what_was_measured": bool(measured) and all(measured),
            "kernels": [
                {"kernel": kernel.folder, "template": kernel.template, "config": dict(kernel.config)}
                for kernel in self.kernels
            ],
            "shapes": [shape.model_dump() for shape in self.dispatch.shapes],
            "policies": self.dispatch.policies,
        }

    def _rule(self, node: RuleNode, types: Types) -> dict[str, Any]:
        if node.test is None or node.yes is None or node.no is None:
            return {"use": next(n for n, kernel in enumerate(self.kernels) if kernel.folder == node.folder)}
        test = folded(node.test, {**{name: name for name in DTYPES}, **self.named(types)})
        if test in ("True", "False"):
            return self._rule(node.yes if test == "True" else node.no, types)
        return {"test": test, "yes": self._rule(node.yes, types), "no": self._rule(node.no, types)}


def _task(folder: Path) -> Task:
    with Journal(folder, create=False, reading=True) as journal:
        started = RunLog(journal).started
    if started is None:
        raise ExportError(f"{folder} has a journal without a beginning; tune again.")
    return started.task


def identifier(text: str) -> str:
    """`text` as a name that Python, C and C++ take."""
    name = re.sub(r"\W", "_", text)
    return f"{name}_" if keyword.iskeyword(name) or name in _C_WORDS else name


_C_WORDS = frozenset(
    ["auto", "bool", "case", "char", "const", "default", "do", "double", "enum", "extern", "float", "goto", "inline"]
    + ["int", "long", "new", "private", "public", "register", "short", "signed", "sizeof", "static", "struct", "switch"]
    + ["template", "this", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile"]
)


def _kernel(best: Path, name: str, about: LaunchFile, types: Types) -> ExportedKernel:
    codes = {}
    for source in about.sources:
        code = source.machine_code or MachineCode()
        codes[tuple(source.types[one] for one in types)] = Code(
            source=best / name / source.source,
            cubin=None if code.file is None else best / name / code.file,
            arch=code.architecture,
            measured=code.measured,
            fast_math=source.fast_math,
            max_registers=source.max_registers or 0,
        )
    grid, block = ((*texts, "1", "1")[:3] for texts in (about.launch.grid, about.launch.block))
    shared, requires = about.launch.shared_bytes, about.requires
    return ExportedKernel(name, about.template, about.config, grid, block, shared, requires, codes)


def write_results(package: Package, out: Path) -> None:
    """`<task>-<template>.json` for each template of the run that was evaluated.

    `time` is that of a launch in milliseconds, `runtimes` has one for each tuned workload; of several, `time` is the
    weighted geometric mean, which the search minimises up to a constant factor. What was measured on some workloads
    only is left out. Raises `ExportError`.
    """
    with Journal(package.folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        names = list(log.baseline_seconds or {})
        weights = {workload.name: workload.weight for workload in package.task.workloads}
        found: dict[str, list[ConfigResult]] = {}
        for evaluation in log.evaluations():
            record = _record(evaluation, names, weights)
            if record is not None:
                found.setdefault(log.template(evaluation.template).name, []).append(record)
    if not found:
        raise ExportError(f"{package.folder} has no evaluation on all its workloads to export.")
    out.mkdir(parents=True)
    for template, records in found.items():
        write_t4(out / f"{identifier(package.name)}-{identifier(template)}.json", records)


def _record(evaluation: Evaluation, names: list[str], weights: dict[str, float]) -> ConfigResult | None:
    failure, seconds = evaluation.failure, seconds_of(evaluation)
    times = {name: seconds[name] * 1e3 for name in names if name in seconds}
    if failure is None and len(times) < len(names):
        return None
    return ConfigResult(
        config=evaluation.config,
        time=None if failure is not None else weighted_geomean(times, weights),
        failure=None if failure is None else failure.kind,
        times=() if failure is not None else tuple(times.values()),
        compile_time=evaluation.compile_seconds * 1e3,
        benchmark_time=evaluation.lane_seconds * 1e3,
    )
