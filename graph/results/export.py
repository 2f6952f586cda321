"""The winners as files that stand alone: specialised source, configuration, geometry, a launcher.

best/
    general/        the configuration for all shapes: a kernel source for each combination of types
    <workload>/     the best for one shape, where it differs from the general one
    dispatch.json   which folder to use for which shape and types
    reference.py    the task's reference
Each folder holds kernel sources, launch.json and launch.py, which runs without Tunesmith.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.graph.context import Context
from tunesmith.graph.journal.records import Verdict
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.measure.bench import types_key
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.geometry import geometry
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

SUFFIX = {"cuda": ".cu", "opencl": ".cl"}
LAUNCHERS = Path(__file__).resolve().parent / "launchers"


def export_best(context: Context, folder: Path, verdict: Verdict) -> None:
    """Writes what `verdict` found best into `folder`, replacing what an earlier round wrote."""
    shutil.rmtree(folder, ignore_errors=True)
    general = verdict.general
    if general is None and not verdict.dispatch:
        return
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(context.task.reference, encoding="utf-8")
    dispatch = []
    if general is not None:
        workloads = [*context.tuned, *context.held_out]
        _export(context, folder / "general", general.template, general.config, workloads)
    for row in verdict.dispatch:
        same = general is not None and (row.template, config_key(row.config)) == (
            general.template,
            config_key(general.config),
        )
        name = "general" if same else _free_name(folder, row.workload)
        if not same:
            _export(context, folder / name, row.template, row.config, [context.task.workload(row.workload)])
        dispatch.append({"sizes": row.sizes, "types": row.types, "folder": name, "ratio": row.ratio})
    rule = "an exact match of sizes and types uses its folder; anything else uses `otherwise`"
    otherwise = "general" if general is not None else None
    text = json.dumps({"rule": rule, "otherwise": otherwise, "shapes": dispatch}, indent=2)
    (folder / "dispatch.json").write_text(text + "\n", encoding="utf-8")


def _free_name(folder: Path, workload: str) -> str:
    """A name for a workload's folder that is not taken; workloads may differ only in what a file name cannot hold."""
    name = base = re.sub(r"[^A-Za-z0-9_-]+", "-", workload)
    number = 2
    while name == "general" or (folder / name).exists():
        name, number = f"{base}-{number}", number + 1
    return name


def _export(context: Context, folder: Path, template_id: str, config: Config, workloads: Sequence[Workload]) -> None:
    template = context.template(template_id)
    folder.mkdir()
    launches: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    for workload in workloads:
        source = specialise(template, config, workload.types)
        file = "-".join(["kernel", *(dtype for _, dtype in types_key(workload))]) + SUFFIX[template.backend]
        (folder / file).write_text(source.source, encoding="utf-8")
        compiled = {"source": file, "max_registers": source.max_registers, "fast_math": source.fast_math}
        sources[file] = {"types": workload.types, **compiled}
        launches[workload.name] = {
            **compiled,
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
            tolerance = task.tolerance_of(entry["dtype"])
            entry["tolerance"] = {"rtol": tolerance.rtol, "atol": tolerance.atol}
        arguments.append(entry)
    return {"grid": shape.grid, "block": shape.block, "shared_bytes": shape.shared_bytes, "arguments": arguments}
