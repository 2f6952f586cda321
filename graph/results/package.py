"""The contents of an export: a run's task, its kernels as best/ has them, and the kernel that serves each shape.

`Package` reads the folder of a run, which may have been copied from another machine, and needs no device.
`write_results` writes a run's measurements in the format T4, for other tuners.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator

from tunesmith import __version__
from tunesmith.graph.journal.events import RunStarted
from tunesmith.graph.journal.log import RunLog, objective, seconds_of
from tunesmith.graph.journal.store import Journal, run_around
from tunesmith.graph.results.best import BASELINE, call_signature
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search.tables import ConfigResult, write_t4
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.task import Argument
from tunesmith.kernels.spec.template import LaunchGeometry
from tunesmith.kernels.spec.translate import folded

SCALARS = frozenset(name for name in DTYPES if name in ("float64", "float32") or not DTYPES[name].is_float)
"""The data types of scalars that a caller may pass."""
M = TypeVar("M", bound=BaseModel)
Types = dict[str, str]
"""A data type for each of the task's type names."""
_DATA_TYPES = {name: name for name in DTYPES}
_C_WORDS = frozenset(
    ["auto", "bool", "case", "char", "const", "default", "do", "double", "enum", "extern", "float", "goto", "inline"]
    + ["int", "long", "new", "private", "public", "register", "short", "signed", "sizeof", "static", "struct", "switch"]
    + ["template", "this", "typedef", "typename", "union", "unsigned", "using", "virtual", "void", "volatile"]
)


class ExportError(TunesmithError):
    """A run cannot be exported in a form."""


def _expression(text: str) -> str:
    try:
        folded(text, _DATA_TYPES)
    except ExpressionError as error:
        raise ValueError(f"{text!r:.80} is not an expression") from error
    return text


Expression = Annotated[str, AfterValidator(_expression)]
"""An expression over sizes and types, or also over a configuration."""


class Rule(BaseModel):
    """A folder, or a condition over sizes and types with the rules for both answers."""

    folder: str = ""
    test: Expression = "True"
    yes: Rule | None = None
    no: Rule | None = None

    @property
    def folders(self) -> set[str]:
        """All folders that it may give."""
        return {self.folder} if self.yes is None or self.no is None else self.yes.folders | self.no.folders


class MeasuredShape(BaseModel):
    """A measured shape, the folder it uses, and that kernel's time over the baseline's, with its interval where there
    is one. general: the same figures of the general configuration."""

    workload: str
    held_out: bool
    sizes: dict[str, int]
    types: Types
    folder: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    general: dict[str, Any] | None


class DispatchFile(BaseModel):
    """dispatch.json."""

    device: str
    backend: Literal["cuda", "opencl"]
    driver: str
    verdict: str
    compiler: str
    rule: Rule
    shapes: list[MeasuredShape]
    policies: list[dict[str, Any]]
    signature: dict[str, Any]


class MachineCode(BaseModel):
    """The machine code of a source; file: None where there is none."""

    file: str | None = None
    architecture: str = ""
    measured: bool = False


class SourceFile(BaseModel):
    """A kernel for one combination of types."""

    types: Types
    source: str
    max_registers: int | None
    fast_math: bool
    machine_code: MachineCode = MachineCode()


class LaunchFile(BaseModel):
    """launch.json."""

    template: str
    config: dict[str, bool | int | float | str]
    launch: LaunchGeometry
    requires: list[Expression]
    sources: list[SourceFile] = Field(min_length=1)

    @field_validator("launch")
    @classmethod
    def _expressions(cls, launch: LaunchGeometry) -> LaunchGeometry:
        for text in (*launch.grid, *launch.block, launch.shared_bytes):
            _expression(text)
        return launch

    def text(self, expression: str, types: Types) -> str:
        """An expression over sizes alone: configuration and types written in."""
        return folded(expression, {**_DATA_TYPES, **types, **self.config})


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
    """The exportable contents of a run in `folder`, for which it reads best/ and the beginning of the journal.

    kernels: by folder of best/, the baseline first; combinations: the types that there are kernels for; arguments: in
    the kernel's order, of which a caller passes `given`, gets `made`, and may pass `chosen`; explicit_sizes: the sizes
    that no array tells. Raises `ExportError`, `JournalError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.best = folder, folder / "best"
        if not self.best.exists() and not (folder / "journal.sqlite").exists():
            problem = f"{folder} is not the folder of a run" if folder.exists() else f"There is no folder {folder}"
            hint = f"name a folder that `tunesmith tune` wrote, as its last lines say{run_around(folder)}"
            raise ExportError(f"{problem}; {hint}")
        try:
            self.dispatch = self._read(DispatchFile, self.best / "dispatch.json")
            files = sorted(self.best.glob("*/launch.json"))
            launches = {path.parent.name: self._read(LaunchFile, path) for path in files}
        except OSError as error:
            raise ExportError(
                f"{folder} has no winners to export ({error.strerror}: {error.filename}): it found nothing right, or "
                f"has not ended, as `tunesmith report` says; or best/ was removed, and `tunesmith resume {folder}` "
                "writes it anew."
            ) from error
        with Journal(folder, create=False, reading=True) as journal:
            begun = next(journal.entries(RunStarted), None)
        if begun is None:
            raise ExportError(f"{folder} has a journal without a beginning; tune again.")
        self.task, self._begun, self.name = begun.event.task, begun, begun.event.task.name
        self.sizes = tuple(self.task.workloads[0].sizes)
        self._require_known(launches)
        used = {*self.dispatch.rule.folders, *(row.folder for row in self.dispatch.shapes)} - {BASELINE}
        if missing := sorted({BASELINE, *used} - launches.keys()):
            raise self._damaged("dispatch.json", f"there is no folder {missing[0]!r} with a launch.json")
        self.kernels = {name: launches[name] for name in (BASELINE, *sorted(used))}
        self.combinations = [source.types for source in self.kernels[BASELINE].sources]
        self.arguments = [self._binding(position, one) for position, one in enumerate(self.task.arguments)]
        self.arrays = [one for one in self.arguments if one.role != "scalar"]
        self.given = [one for one in self.arrays if one.role != "out"]
        self.made = [one for one in self.arrays if one.role == "out"]
        self.chosen = [one for one in self.arguments if one.default is not None]
        self.explicit_sizes = [one["name"] for one in self.dispatch.signature["sizes"] if one["argument"] is None]

    def _damaged(self, file: str, why: str) -> ExportError:
        again = f"`tunesmith resume {self.folder}` writes it anew"
        return ExportError(f"{self.best} is damaged or of another version ({file}: {why}); {again}.")

    def _read(self, model: type[M], path: Path) -> M:
        try:
            return model.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first, file = error.errors(include_url=False)[0], path.relative_to(self.best).as_posix()
            where = ", ".join(filter(None, (file, ".".join(map(str, first["loc"])))))
            raise self._damaged(where, first["msg"].partition("\n")[0]) from error

    def _require_known(self, launches: dict[str, LaunchFile]) -> None:
        """That all files name what is there, and what the task has."""
        if self.dispatch.signature != call_signature(self.task):
            raise self._damaged("dispatch.json", "its signature is not that of the task")
        known, types = {one.name for one in self.task.workloads}, {*self.task.types}
        for row in self.dispatch.shapes:
            if row.workload not in known or {*row.sizes} != {*self.sizes} or {*row.types} != types:
                raise self._damaged("dispatch.json", f"the task has no workload like {row.workload!r}")
        for name, source in ((name, source) for name, about in launches.items() for source in about.sources):
            for other in filter(None, (source.source, source.machine_code.file)):
                if Path(other).name != other or not (self.best / name / other).is_file():
                    raise self._damaged(f"{name}/launch.json", f"there is no file {other!r} beside it")
            if {*source.types} != types:
                raise self._damaged(f"{name}/launch.json", "its types are not the types of the task")

    def _binding(self, position: int, one: Argument) -> Binding:
        default, types = None, one.dtype
        if one.dtype in self.task.types:
            types = f"{one.dtype} of {', '.join(self.task.types[one.dtype])}"
        # A caller may choose the scalars that follow from no size.
        if one.value is not None and one.dtype in SCALARS and not parse(one.value).names:
            number = parse(one.value).number({})
            default = float(number) if DTYPES[one.dtype].is_float else int(number)
        shape, value = ", ".join(one.shape), one.value or ""
        return Binding(identifier(one.name), position, one.role, shape, one.dtype, types, value, default)

    def rule(self, types: Types, node: Rule | None = None) -> dict[str, Any]:
        """The rule for one combination of types: {"use": folder} or {"test", "yes", "no"}, over sizes alone."""
        node = node or self.dispatch.rule
        if node.yes is None or node.no is None:
            return {"use": node.folder}
        test = folded(node.test, {**_DATA_TYPES, **types})
        if test in ("True", "False"):
            return self.rule(types, node.yes if test == "True" else node.no)
        return {"test": test, "yes": self.rule(types, node.yes), "no": self.rule(types, node.no)}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The origin of the kernels, and the times that were measured."""
        origin = self._begun.event.origin
        codes = [source.machine_code for kernel in self.kernels.values() for source in kernel.sources]
        measured = [code.measured for code in codes if code.file]
        return {
            "task": self.name,
            "summary": self.task.summary,
            "device": self.dispatch.device,
            "driver": self.dispatch.driver,
            "compiler": self.dispatch.compiler,
            "tunesmith": __version__,
            # An ISO date, and the commit of the task's files, empty where there is none.
            "tuned_at": datetime.fromtimestamp(self._begun.at, UTC).isoformat(timespec="seconds"),
            "commit": origin.commit,
            "command": origin.command,
            "verdict": self.dispatch.verdict,
            "machine_code_is_what_was_measured": bool(measured) and all(measured),
            "kernels": [
                {"kernel": folder, "template": kernel.template, "config": kernel.config}
                for folder, kernel in self.kernels.items()
            ],
            "shapes": [shape.model_dump() for shape in self.dispatch.shapes],
            "policies": self.dispatch.policies,
        }


def identifier(text: str) -> str:
    """`text` as a name that Python, C and C++ take."""
    name = re.sub(r"\W", "_", text)
    return f"{name}_" if keyword.iskeyword(name) or name in _C_WORDS else name


def write_results(package: Package, out: Path) -> None:
    """`<task>-<template>.json` for each template of the run that was evaluated.

    `time` is that of a launch in milliseconds, `runtimes` has one for each tuned workload; of several, `time` is the
    weighted geometric mean, which the search minimises up to a constant factor. What was measured on some workloads
    only is left out. Raises `ExportError`.
    """
    weights = {workload.name: workload.weight for workload in package.task.workloads}
    found: dict[str, list[ConfigResult]] = {}
    with Journal(package.folder, create=False, reading=True) as journal:
        log = RunLog(journal)
        names = list(log.baseline_seconds or {})
        for evaluation in log.evaluations():
            value = objective(evaluation, names, dict.fromkeys(names, 1e-3), weights)
            if value is None and evaluation.failure is None:
                continue
            seconds = {} if value is None else seconds_of(evaluation)
            record = ConfigResult(
                config=evaluation.config,
                time=value,
                failure=evaluation.failure.kind if evaluation.failure is not None else None,
                times=tuple(seconds[name] * 1e3 for name in names if name in seconds),
                compile_time=evaluation.compile_seconds * 1e3,
                benchmark_time=evaluation.lane_seconds * 1e3,
            )
            found.setdefault(log.template(evaluation.template).name, []).append(record)
    if not found:
        raise ExportError(f"{package.folder} has no evaluation on all its workloads to export.")
    out.mkdir(parents=True)
    for template, records in found.items():
        write_t4(out / f"{identifier(package.name)}-{identifier(template)}.json", records)
