"""The winners as files that stand alone: specialised source, configuration, geometry, a launcher.

best/
    general/        the configuration for all shapes: a kernel source for each combination of types
    baseline/       the task's baseline, for shapes on which nothing is shown to be faster
    <workload>/     the best for one shape, where it differs from the general one
    dispatch.json   which folder to use for which shape and types, and how sure that is
    reference.py    the task's reference
Each folder holds kernel sources, launch.json and launch.py, which runs without Tunesmith; for CUDA also the machine
code that was measured (`tunesmith.graph.results.machine_code`), beside the source for other architectures.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Compared
from tunesmith.graph.journal.records import Figures, Verdict, Winner, WorkloadRow
from tunesmith.graph.results.machine_code import MachineCodes
from tunesmith.kernels.build.candidate import types_key
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.reference_text import runnable_reference
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

SUFFIX = {"cuda": ".cu", "opencl": ".cl"}
LAUNCHERS = Path(__file__).resolve().parent / "launchers"


BASELINE, GENERAL = "baseline", "general"
"""Names of folders."""


def export_best(context: Context, folder: Path, verdict: Verdict) -> None:
    """Writes what `verdict` found best into `folder`, replacing what an earlier round wrote."""
    with MachineCodes(context, folder).open() as codes:
        _export_all(context, folder, verdict, codes)


def _export_all(context: Context, folder: Path, verdict: Verdict, codes: MachineCodes) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    general = verdict.general
    if general is None and not verdict.dispatch:
        return
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(runnable_reference(context.task), encoding="utf-8")
    workloads = [*context.tuned, *context.held_out]
    baseline = context.sources.baseline.template
    _export(context, folder / BASELINE, baseline, baseline.default_config, workloads, codes)
    if general is not None:
        _export(context, folder / GENERAL, context.template(general.template), general.config, workloads, codes)
    own = {row.workload: row for row in verdict.dispatch}
    shapes = []
    for row in (*verdict.tuned, *verdict.held_out):
        used = own.get(row.workload)
        figures: Figures | None = used
        if used is None:
            # Not tuned on, or nothing better was found: the general configuration, where it is shown to be faster.
            faster = row.general is not None and row.general.verdict == "faster"
            name, figures = (GENERAL, row.general) if faster else (BASELINE, None)
        elif general is not None and _same(used, general):
            name = GENERAL
        else:
            name = _free_name(folder, row.workload)
            only = [_workload(context, row)]
            _export(context, folder / name, context.template(used.template), used.config, only, codes)
        shapes.append(_shape(row, name, figures, held_out=row in verdict.held_out))
    about = {
        "task": context.task.name,
        "device": context.device.name,
        "backend": context.device.backend,
        "driver": context.device.driver,
        "verdict": verdict.sentence,
        "rule": "an exact match of sizes and types uses its folder; anything else uses `otherwise`",
        "ratio_is": "time over the baseline's time with its 99 % interval: below 1 is faster",
        "otherwise": GENERAL if _beats(verdict) else BASELINE,
        "shapes": shapes,
    }
    (folder / "dispatch.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _same(one: Winner, other: Winner) -> bool:
    return (one.template, config_key(one.config)) == (other.template, config_key(other.config))


def _workload(context: Context, row: WorkloadRow) -> Workload:
    return context.task.workload(row.workload)


def _shape(row: WorkloadRow, folder: str, figures: Figures | None, *, held_out: bool) -> dict[str, Any]:
    """A shape of dispatch.json. Beside the folder's own figures stand those of the general configuration, which say why
    it is not used."""

    def numbers(one: Figures | None) -> dict[str, Any] | None:
        return None if one is None else {"ratio": one.ratio, "low": one.low, "high": one.high, "verdict": one.verdict}

    chosen = numbers(figures) or {"ratio": 1.0, "low": None, "high": None, "verdict": "keep the baseline"}
    return {
        "workload": row.workload,
        "held_out": held_out,
        "sizes": row.sizes,
        "types": row.types,
        "folder": folder,
        **chosen,
        "general": numbers(row.general),
    }


def _beats(verdict: Verdict) -> bool:
    """Whether the general configuration may be used for shapes that were not measured: it is shown to be faster on some
    and slower on none."""
    found = [row.general.verdict for row in (*verdict.tuned, *verdict.held_out) if row.general is not None]
    return verdict.general is not None and "faster" in found and "slower" not in found


def _free_name(folder: Path, workload: str) -> str:
    """A name for a workload's folder that is not taken; workloads may differ only in what a file name cannot hold."""
    name = base = re.sub(r"[^A-Za-z0-9_-]+", "-", workload)
    number = 2
    while name in (GENERAL, BASELINE) or (folder / name).exists():
        name, number = f"{base}-{number}", number + 1
    return name


def _export(
    context: Context,
    folder: Path,
    template: Template,
    config: Config,
    workloads: Sequence[Workload],
    codes: MachineCodes,
) -> None:
    folder.mkdir()
    measured = _measured_seconds(context, template, config)
    launches: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    for workload in workloads:
        source = specialise(template, config, workload.types)
        file = "-".join(["kernel", *(dtype for _, dtype in types_key(workload))]) + SUFFIX[template.backend]
        if file not in sources:
            (folder / file).write_text(source.source, encoding="utf-8")
            compiled: dict[str, Any] = {
                "source": file,
                "max_registers": source.max_registers,
                "fast_math": source.fast_math,
            }
            if template.backend == "cuda":
                compiled["machine_code"] = _write_code(codes, folder / file, template, config, workload)
            sources[file] = {"types": workload.types, **compiled}
        launches[workload.name] = {
            **{name: value for name, value in sources[file].items() if name != "types"},
            "measured_seconds": measured.get(workload.name),
            **_launch(context, template, config, workload),
        }
    about = {
        "task": context.task.name,
        "template": template.name,
        "config": config,
        "device": context.device.name,
        "entry": template.entry,
        "reference": context.task.reference_name,
        # For shapes that are no workload: expressions over sizes, types and the configuration.
        "launch": template.launch.model_dump(mode="json"),
        "sources": list(sources.values()),
        "workloads": launches,
    }
    (folder / "launch.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(LAUNCHERS / f"{template.backend}_launcher.py", folder / "launch.py")


def _write_code(
    codes: MachineCodes, source: Path, template: Template, config: Config, workload: Workload
) -> dict[str, Any]:
    """The entry of launch.json for the machine code of `source`, which is written beside it if it can be had."""
    found = codes.find(template, config, workload)
    if isinstance(found, str):
        return {"file": None, "measured": False, "note": found}
    file = source.with_suffix(".cubin")
    file.write_bytes(found.code)
    return {
        "file": file.name,
        "sha256": found.sha256,
        "architecture": found.arch,
        "compiler": found.compiler,
        "measured": found.measured,
        "note": found.note,
    }


def _measured_seconds(context: Context, template: Template, config: Config) -> dict[str, float]:
    """Cold seconds in the last comparison on each workload, as the verdict gives them: what this export reproduces."""
    key, found = (template.id, config_key(config)), {}
    is_baseline = template.id == context.sources.baseline.template.id
    for event in context.log.events(Compared):
        for entry in event.entries:
            if entry.comparison is not None and is_baseline:
                found[event.workload] = entry.comparison.baseline.median
            elif entry.comparison is not None and (entry.template, config_key(entry.config)) == key:
                found[event.workload] = entry.comparison.baseline.median * entry.comparison.ratio
    return found


def _launch(context: Context, template: Template, config: Config, workload: Workload) -> dict[str, Any]:
    task, shape = context.task, geometry(template, config, workload)
    arguments: list[dict[str, Any]] = []
    for argument in task.arguments:
        entry: dict[str, Any] = {
            "name": argument.name,
            "role": argument.role,
            "dtype": task.dtype_of(argument, workload),
            "numpy": DTYPES[task.dtype_of(argument, workload)].storage.name,
        }
        if argument.role == "scalar":
            entry["value"] = task.scalar_of(argument, workload)
        else:
            entry["shape"] = task.shape_of(argument, workload)
            tolerance = task.tolerance_of(entry["dtype"], entry["name"])
            entry["tolerance"] = {"rtol": tolerance.rtol, "atol": tolerance.atol}
        arguments.append(entry)
    return {"grid": shape.grid, "block": shape.block, "shared_bytes": shape.shared_bytes, "arguments": arguments}
