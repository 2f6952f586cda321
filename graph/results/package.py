"""What every form of export is made of: a run's task, its kernels as `best/` has them, and which serves which shape.

Reads the folder of a run, which may have been copied from another machine; needs no device.

All measurements of a run for other tuners: a results file in the format T4 for each template.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tunesmith import __version__
from tunesmith.graph.journal.events import RunStarted
from tunesmith.graph.journal.log import RunLog, seconds_of, weighted_geomean
from tunesmith.graph.journal.store import Journal, run_around
from tunesmith.graph.results.best import DispatchFile, LaunchFile, MachineCode, RuleNode
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search.tables import ConfigResult, write_t4
from tunesmith.kernels.spec.dtypes import DTYPES, DataType
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Argument, Task
from tunesmith.kernels.spec.translate import folded

M = TypeVar("M", bound=BaseModel)

BASELINE = "baseline"

Types = tuple[str, ...]
"""A data type for each of the task's type names, in their order."""


class ExportError(TunesmithError):
    """A run cannot be exported in a form."""


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel for one combination of types. source: its file in the run's best/; cubin: the machine code's, None
    where there is none; measured: whether that is what was timed."""

    source: Path
    cubin: Path | None
    arch: str
    sha256: str
    measured: bool
    fast_math: bool
    max_registers: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A folder of best/. launch: grid, block and shared_bytes as expressions; requires: what a shape must meet."""

    folder: str
    template: str
    config: Mapping[str, Any]
    entry: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    requires: tuple[str, ...]
    codes: Mapping[Types, Code]

    def text(self, expression: str, types: Mapping[str, str]) -> str:
        """An expression over sizes alone: configuration and types written in."""
        return folded(expression, {**{name: name for name in DTYPES}, **types, **self.config})


@dataclass(frozen=True, slots=True)
class SizeSource:
    """Where a size is read: `shape[dimension] / factor` of an argument."""

    size: str
    argument: str
    dimension: int
    factor: int


class Package:
    """The exportable contents of a run in `folder`. task: left out, it is read from the journal. Raises `ExportError`,
    `JournalError`."""

    def __init__(self, folder: Path, task: Task | None = None) -> None:
        self.folder = folder
        best = folder / "best"
        if not best.exists() and not (folder / "journal.sqlite").exists():
            what = f"{folder} is not the folder of a run" if folder.exists() else f"There is no folder {folder}"
            end = f"{what}; name one that `tunesmith tune` wrote, as its last lines say"
            raise ExportError(f"{end}{run_around(folder)}")
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
        self._dispatched = self._read(DispatchFile, "dispatch.json", raw)
        self.dispatch: dict[str, Any] = self._dispatched.model_dump(exclude_unset=True)
        about = {name: self._read(LaunchFile, f"{name}/launch.json", text) for name, text in sorted(found.items())}
        self.task = _task(folder) if task is None else task
        self.backend: str = self._dispatched.backend
        self._require_known(about)
        self.kernels = [_kernel(best, name, about[name], self.types) for name in self._folders(about)]

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
        for name in sorted(
            {BASELINE, *self._dispatched.rule.folders(), *(one.folder for one in self._dispatched.shapes)}
        ):
            if name not in about:
                raise self._damaged("dispatch.json", f"there is no folder {name!r} with a launch.json")
        for one in self._dispatched.shapes:
            if one.workload not in known or set(one.sizes) != set(self.sizes) or set(one.types) != set(self.types):
                raise self._damaged("dispatch.json", f"the task has no workload like {one.workload!r}")
        self._require_expressions("dispatch.json", self._dispatched.rule.tests())
        for name, launch in about.items():
            of = launch.launch
            self._require_expressions(f"{name}/launch.json", [*of.grid, *of.block, of.shared_bytes, *launch.requires])
            for source in launch.sources:
                code = source.machine_code.file if source.machine_code is not None else None
                for file in (source.source, *([code] if code is not None else [])):
                    if Path(file).name != file or not (best / name / file).is_file():
                        raise self._damaged(f"{name}/launch.json", f"there is no file {file!r} beside it")
                if set(source.types) != set(self.types):
                    raise self._damaged(f"{name}/launch.json", "its types are not those of the task")

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
        """Those for which there is a baseline."""
        return list(self.kernels[0].codes)

    def named(self, types: Types) -> dict[str, str]:
        return dict(zip(self.types, types, strict=True))

    @property
    def arrays(self) -> list[Argument]:
        return [one for one in self.task.arguments if one.role != "scalar"]

    @property
    def given(self) -> list[Argument]:
        """The arrays that a caller passes."""
        return [one for one in self.arrays if one.role != "out"]

    @property
    def made(self) -> list[Argument]:
        """The arrays that a call returns."""
        return [one for one in self.arrays if one.role == "out"]

    @cached_property
    def scalars(self) -> list[tuple[Argument, float]]:
        """The scalars that a caller may choose, with the task's value: those that follow from no size."""
        found = []
        for one in self.task.arguments:
            if one.role == "scalar" and one.value is not None and not parse(one.value).names:
                value = parse(one.value).number({})
                found.append((one, float(value) if DTYPES[one.dtype].is_float else int(value)))
        return found

    @cached_property
    def size_sources(self) -> list[SizeSource]:
        """Where a size can be read from the arrays that are passed; one that is missing has to be passed itself."""
        found: dict[str, SizeSource] = {}
        for plain in (True, False):
            for argument in self.given:
                for dimension, text in enumerate(argument.shape):
                    size, factor = _multiple_of_a_name(text)
                    if size in self.sizes and (factor == 1) == plain:
                        found.setdefault(size, SizeSource(size, argument.name, dimension, factor))
        return [found[size] for size in self.sizes if size in found]

    @cached_property
    def explicit_sizes(self) -> list[str]:
        """The sizes that no array tells."""
        known = {one.size for one in self.size_sources}
        return [size for size in self.sizes if size not in known]

    def dtype(self, argument: Argument, types: Types) -> DataType:
        return DTYPES[self.named(types).get(argument.dtype, argument.dtype)]

    def tolerance(self, argument: Argument, types: Types) -> tuple[float, float]:
        """rtol, atol."""
        found = self.task.tolerance_of(self.dtype(argument, types).name, argument.name)
        return found.rtol, found.atol

    def expression(self, text: str, types: Types) -> str:
        """A shape or a scalar of the task, over sizes alone."""
        return folded(text, {**{name: name for name in DTYPES}, **self.named(types)})

    def rule(self, types: Types) -> dict[str, Any]:
        """The rule for one combination of types: {"use": number} or {"test", "yes", "no"}, over sizes alone."""
        return self._rule(self._dispatched.rule, types)

    def exact(self, types: Types) -> dict[tuple[int, ...], int]:
        """The measured shapes: sizes in their order, and the number of the kernel."""
        numbers = {kernel.folder: number for number, kernel in enumerate(self.kernels)}
        return {
            tuple(row["sizes"][size] for size in self.sizes): numbers[row["folder"]]
            for row in self.dispatch["shapes"]
            if tuple(row["types"][name] for name in self.types) == types
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Where the kernels come from, and what was found of them."""
        measured = [code.measured for kernel in self.kernels for code in kernel.codes.values() if code.cubin]
        return {
            "task": self.name,
            "summary": self.task.summary,
            "device": self.dispatch["device"],
            "driver": self.dispatch["driver"],
            "compiler": self.dispatch["compiler"],
            "tunesmith": __version__,
            **self._origin(),
            "verdict": self.dispatch["verdict"],
            "machine_code_is_what_was_measured": bool(measured) and all(measured),
            "kernels": [
                {"kernel": kernel.folder, "template": kernel.template, "config": dict(kernel.config)}
                for kernel in self.kernels
            ],
            "shapes": self.dispatch["shapes"],
            "policies": self.dispatch["policies"],
        }

    def _origin(self) -> dict[str, str]:
        """When and how the run was begun, and the commit of the task's files, empty where there is none."""
        with Journal(self.folder, create=False, reading=True) as journal:
            begun = RunLog(journal).entries(RunStarted)[-1]
        return {
            "tuned_at": datetime.fromtimestamp(begun.at, UTC).isoformat(timespec="seconds"),
            "commit": begun.event.origin.commit,
            "command": begun.event.origin.command,
        }

    def _folders(self, about: Mapping[str, LaunchFile]) -> list[str]:
        """Those that some shape uses, the baseline first."""
        used = {one.folder for one in self._dispatched.shapes} | self._dispatched.rule.folders()
        return [BASELINE, *sorted(name for name in about if name != BASELINE and name in used)]

    def _rule(self, node: RuleNode, types: Types) -> dict[str, Any]:
        if node.test is None or node.yes is None or node.no is None:
            return {"use": next(n for n, kernel in enumerate(self.kernels) if kernel.folder == node.folder)}
        test = self.expression(node.test, types)
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


def _kernel(best: Path, name: str, about: LaunchFile, types: Types) -> Kernel:
    codes = {}
    for source in about.sources:
        code = source.machine_code or MachineCode()
        codes[tuple(source.types[one] for one in types)] = Code(
            source=best / name / source.source,
            cubin=None if code.file is None else best / name / code.file,
            arch=code.architecture,
            sha256=code.sha256,
            measured=code.measured,
            fast_math=source.fast_math,
            max_registers=source.max_registers or 0,
        )
    return Kernel(
        folder=name,
        template=about.template,
        config=about.config,
        entry=about.entry,
        grid=tuple(about.launch.grid),
        block=tuple(about.launch.block),
        shared=about.launch.shared_bytes,
        requires=tuple(about.requires),
        codes=codes,
    )


def _multiple_of_a_name(text: str) -> tuple[str, int]:
    """The name and the factor of `n`, `2 * n` or `n * 2`; an empty name for anything else."""
    node = ast.parse(parse(text).text, mode="eval").body
    match node:
        case ast.Name(id=name):
            return name, 1
        case ast.BinOp(left=ast.Constant(value=int(factor)), op=ast.Mult(), right=ast.Name(id=name)):
            return name, factor
        case ast.BinOp(left=ast.Name(id=name), op=ast.Mult(), right=ast.Constant(value=int(factor))):
            return name, factor
    return "", 0


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
