"""best/: the winners of a run as files that need nothing of Tunesmith, and these files as they are read back.

Owns the choice of folders, the contents of dispatch.json and of each launch.json, and the machine code. A source that
another program compiles is other machine code: CuPy's RawModule adds -ftz=true, which changes times by several per cent
(docs/trust.md). So the machine code with the digest that the journal keeps is looked for in an earlier export and in
the cache of compiled kernels, and is compiled once more only where neither has it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompilerReady, CompileWorker
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch import BASELINE as BY_BASELINE
from tunesmith.graph.dispatch import DispatchRule, can_launch, dispatching, winner_key
from tunesmith.graph.journal.events import Compared, ShapeCompared
from tunesmith.graph.journal.records import Figures, Verdict, Winner
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import Artifact, TypesKey, cache_key, open_cache, types_key
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.launch.reference import runnable_reference
from tunesmith.kernels.space import device_names
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, Config, Template, config_key
from tunesmith.kernels.spec.translate import folded
from tunesmith.kernels.spec.validation import MAX_BLOCKS

COMPILE_SECONDS = 120.0
"""Timeout of one compilation."""
HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime.py"
BASELINE, GENERAL = "baseline", "general"
"""Names of folders."""
MAX_GRID = (MAX_BLOCKS, MAX_BLOCKS, MAX_BLOCKS)
"""Blocks in a grid on a device that does not say."""
FIGURES = {"ratio", "low", "high", "verdict"}
"""The figures of a kernel on a shape that dispatch.json has."""


class MachineCodes:
    """The machine code of a run's kernels. folder: an earlier export, which is read now and may be removed later."""

    def __init__(self, context: Context, folder: Path) -> None:
        self._context = context
        self._exported = {_digest(code): code for code in (path.read_bytes() for path in folder.glob("*/*.cubin"))}
        self._compiler: tuple[Isolated, str] | None = None
        self._measured: dict[tuple[str, str, TypesKey], tuple[str, str]] = {}
        """By template, configuration and types: the digest of the code that was timed last, and its compiler."""
        baseline = context.sources.baseline.template
        for shape in context.log.events(ShapeCompared):
            self._keep(shape.workload, {winner_key(one): one.code for one in shape.entries}, shape.compiler)
        for event in context.log.events(Compared):
            codes = {winner_key(one): one.code for one in event.entries}
            codes[baseline.id, config_key(baseline.default_config)] = event.baseline_code
            self._keep(context.task.workload(event.workload), codes, event.compiler)

    def _keep(self, workload: Workload, codes: Mapping[tuple[str, str], str], compiler: str) -> None:
        self._measured |= {(*key, types_key(workload)): (code, compiler) for key, code in codes.items() if code}

    def close(self) -> None:
        """Ends the compiler's process, if one was needed."""
        if self._compiler is not None:
            self._compiler[0].end()

    def write(self, file: Path, template: Template, config: Config, workload: Workload) -> dict[str, Any]:
        """Writes the machine code for the workload's types to `file`, if it can be had, and returns its entry in
        launch.json. measured: it is, byte for byte, the code that was compared with the baseline."""
        arch, source = self._context.device.limits.arch, specialise(template, config, workload.types)
        key = (template.id, config_key(config), types_key(workload))
        wanted, compiler = self._measured.get(key, ("", ""))
        code, cache = self._exported.get(wanted), open_cache()
        if code is None and wanted and cache is not None:
            cached = cache.get(cache_key(source, arch, compiler))
            code = cached.code if isinstance(cached, Artifact) else None
        note = "It is the machine code that was measured."
        if code is None or _digest(code) != wanted:
            made = self._compile(source)
            if isinstance(made, str):
                note = f"The machine code is not at hand, and the source was not compiled here: {made}."
                return {"file": None, "measured": False, "note": note}
            code, compiler = made
            if not wanted:
                note = "It was compiled for this export; the journal does not say which machine code was measured."
            elif _digest(code) == wanted:
                note = "It was compiled again, and is byte for byte the machine code that was measured."
            else:
                note = f"It was compiled again and is not the machine code that was measured (sha256 {wanted}...): "
                note += "times may differ."
        file.write_bytes(code)
        return {
            "file": file.name,
            "sha256": hashlib.sha256(code).hexdigest(),
            "architecture": arch,
            "compiler": compiler,
            "measured": _digest(code) == wanted,
            "note": note,
        }

    def _compile(self, source: Specialised) -> tuple[bytes, str] | str:
        """The machine code and the compiler's version, or the reason for its absence, as a clause."""
        device = self._context.device
        try:
            if self._compiler is None:
                process = Isolated("compile", CompileWorker, device.limits, device.index)
                ready: Any = process.call("start", COMPILE_SECONDS)
                self._compiler = process, ready.version if isinstance(ready, CompilerReady) else "an unknown compiler"
            process, version = self._compiler
            made: Any = process.call("compile", COMPILE_SECONDS, source)
        except TunesmithError as error:
            # The compiler may be on other nodes of a cluster only.
            return str(error).rstrip(".")
        return (made.code, version) if isinstance(made, Artifact) else f"the compiler answers {made}"


def _digest(code: bytes) -> str:
    """As `Artifact.code_digest`."""
    return hashlib.sha256(code).hexdigest()[:16]


def export_best(context: Context, folder: Path, verdict: Verdict) -> None:
    """Writes what `verdict` found best into `folder`, replacing what an earlier round wrote."""
    with closing(MachineCodes(context, folder)) as codes:
        shutil.rmtree(folder, ignore_errors=True)
        if verdict.general is not None or verdict.tuned:
            folder.mkdir(parents=True)
            _write_all(context, folder, verdict, codes)


def _write_all(context: Context, folder: Path, verdict: Verdict, codes: MachineCodes) -> None:
    (folder / "reference.py").write_text(runnable_reference(context.task), encoding="utf-8")
    baseline, general = context.sources.baseline.template, verdict.general
    workloads = [*context.tuned, *context.held_out]
    _write_kernel(context, folder / BASELINE, baseline, baseline.default_config, workloads, codes)
    if general is not None:
        _write_kernel(context, folder / GENERAL, context.template(general.template), general.config, workloads, codes)
    found = dispatching(context, verdict)
    # What the rule names serves all types; a winner that only its own shape uses is made for the types of that one.
    numbers = set() if found is None else found.rule.used() - {BY_BASELINE}
    by_rule = {winner_key(found.kernels[number]) for number in numbers} if found is not None else set()
    folders = {} if general is None else {winner_key(general): GENERAL}
    own = {row.workload: row for row in verdict.dispatch}
    shapes = []
    for row in (*verdict.tuned, *verdict.held_out):
        best = own.get(row.workload)
        figures: Figures | None = best
        if best is None:
            # Not tuned on, or nothing better was found: the general configuration, where it is shown to be faster.
            faster = row.general is not None and row.general.gains(verdict.objective)
            name, figures = (GENERAL, row.general) if faster and general is not None else (BASELINE, None)
        elif (key := winner_key(best)) in folders:
            name = folders[key]
        else:
            name = folders[key] = _free_name(folder, row.workload)
            same = [context.task.workload(one.workload) for one in verdict.dispatch if winner_key(one) == key]
            template = context.template(best.template)
            if key in by_rule:
                same = [one for one in workloads if can_launch(context, template, one, best)]
            _write_kernel(context, folder / name, template, best.config, same, codes)
        kept = {"ratio": 1.0, "low": None, "high": None, "verdict": "keep the baseline"}
        shapes.append(
            {
                "workload": row.workload,
                "held_out": row in verdict.held_out,
                "sizes": row.sizes,
                "types": row.types,
                "folder": name,
                **(kept if figures is None else figures.model_dump(include=FIGURES)),
                # They say why the general configuration is not used.
                "general": None if row.general is None else row.general.model_dump(include=FIGURES),
            }
        )
    about = {
        "task": context.task.name,
        "device": context.device.name,
        "backend": context.device.backend,
        "driver": context.device.driver,
        "verdict": verdict.sentence,
        "compiler": next((event.compiler for event in reversed(context.log.events(Compared)) if event.compiler), ""),
        "how": "a shape of `shapes` with the same sizes and types uses its folder, any other that of `rule`; where a "
        "kernel cannot be launched (`requires` in its launch.json), the baseline",
        "rule": {"folder": BASELINE} if found is None else _rule(found.rule, found.kernels, folders),
        "rule_fitted_to": 0 if found is None else found.fitted,
        "rule_tried_on": 0 if found is None else found.tested,
        "rule_that_lost_to_general": [] if found is None else found.lost,
        "policies": [] if found is None else [policy.to_json() for policy in found.policies],
        "signature": call_signature(context.task),
        "ratio_is": "time over the baseline's time with its 99 % interval: below 1 is faster",
        "shapes": shapes,
    }
    (folder / "dispatch.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(RUNTIME, folder / "runtime.py")
    shutil.copyfile(HERE / "launchers" / "dispatch.py", folder / "dispatch.py")


def call_signature(task: Task) -> dict[str, Any]:
    """How a call of the kernel is read, for dispatch.json: its arguments in their order, with expressions over sizes
    and types; for each size the array whose shape tells it (`shape[dimension] // factor`), and for each type the array
    that has it: None where no array that a caller passes does."""
    given = [one for one in task.arguments if one.role in ("in", "inout")]
    extents = []
    for one in given:
        for dimension, text in enumerate(one.shape):
            if found := re.fullmatch(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?:\*(\d+))?", text.replace(" ", "")):
                factor = int(found[1] or 1) * int(found[3] or 1)
                extents.append((found[2], {"argument": one.name, "dimension": dimension, "factor": factor}))
    # An extent `n` tells the size rather than `2 * n`, and the first of several does.
    sources = dict(reversed(sorted(extents, key=lambda extent: extent[1]["factor"] != 1)))
    return {
        "sizes": [{"name": size, **sources.get(size, {"argument": None})} for size in task.workloads[0].sizes],
        "types": [
            {"name": name, "argument": next((one.name for one in given if one.dtype == name), None)}
            for name in task.types
        ],
        "arguments": [
            {"name": one.name, "role": one.role, "dtype": one.dtype}
            | ({"value": one.value} if one.role == "scalar" else {"shape": list(one.shape)})
            for one in task.arguments
        ],
    }


def _rule(rule: DispatchRule, kernels: Sequence[Winner], folders: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """The rule as dispatch.json has it: a test with the rules for both answers, or a folder."""
    if rule.yes is None or rule.no is None:
        return {"folder": BASELINE if rule.use == BY_BASELINE else folders[winner_key(kernels[rule.use])]}
    return {
        "test": rule.test,
        "yes": _rule(rule.yes, kernels, folders),
        "no": _rule(rule.no, kernels, folders),
    }


def _free_name(folder: Path, workload: str) -> str:
    """A name for a workload's folder that is not taken; workloads may differ only in what a file name cannot hold."""
    name = base = re.sub(r"[^A-Za-z0-9_-]+", "-", workload)
    number = 2
    while name in (GENERAL, BASELINE) or (folder / name).exists():
        name, number = f"{base}-{number}", number + 1
    return name


def source_name(template: Template, types: Mapping[str, str]) -> str:
    """The file of a template's source for these data types, in the folder of its configuration."""
    return "-".join(["kernel", *(dtype for _, dtype in sorted(types.items()))]) + BACKENDS[template.backend].suffix


def _write_kernel(
    context: Context, folder: Path, template: Template, config: Config, served: Sequence[Workload], codes: MachineCodes
) -> None:
    """One folder: sources for the types of the workloads that it serves, machine code, launch.json and launch.py."""
    folder.mkdir()
    measured = _measured_seconds(context, template, config)
    launches: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    for workload in served:
        source = specialise(template, config, workload.types)
        file = source_name(template, workload.types)
        if file not in sources:
            (folder / file).write_text(source.source, encoding="utf-8")
            about = {"source": file, "max_registers": source.max_registers, "fast_math": source.fast_math}
            sources[file] = {"types": workload.types, **about}
            if BACKENDS[template.backend].makes_cubins:
                cubin = (folder / file).with_suffix(".cubin")
                sources[file]["machine_code"] = codes.write(cubin, template, config, workload)
        shape = geometry(template, config, workload)
        launches[workload.name] = {
            **sources[file],
            "measured_seconds": measured.get(workload.name),
            "sizes": workload.sizes,
            "grid": shape.grid,
            "block": shape.block,
            "shared_bytes": shape.shared_bytes,
            "arguments": [_passed(context.task, one, workload) for one in context.task.arguments],
        }
    launch = {
        "task": context.task.name,
        "template": template.name,
        "config": config,
        "examined": _examined(context, template, config),
        "device": context.device.name,
        "entry": template.entry,
        "reference": context.task.reference_name,
        # For other shapes than the workloads': expressions over sizes, types and the configuration.
        "launch": template.launch.model_dump(mode="json"),
        "requires": _requirements(context, template),
        "sources": list(sources.values()),
        "workloads": launches,
    }
    (folder / "launch.json").write_text(json.dumps(launch, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(HERE / "launchers" / "launch.py", folder / "launch.py")


def _examined(context: Context, template: Template, config: Config) -> str:
    """How far the full verdict on a kernel went: "accepted", "partial" (right, on few sizes), "not examined", or
    "baseline"."""
    if template.id == context.sources.baseline.template.id:
        return BASELINE
    key = template.id, config_key(config)
    found = {one.verdict for (*mine, _), one in context.log.examinations().items() if tuple(mine) == key}
    return next((one for one in ("accepted", "partial") if one in found), "not examined")


def _requirements(context: Context, template: Template) -> list[str]:
    """What must hold on a shape so that the kernel can be launched there: expressions over sizes, types and the
    configuration."""
    limits, launch = context.device.limits, template.launch
    device = device_names(limits)
    found = [folded(constraint.expression, device) for constraint in template.constraints]
    for texts, most in ((launch.block, limits.max_block_dims), (launch.grid, limits.max_grid_dims or MAX_GRID)):
        found += [f"1 <= ({folded(text, {})}) <= {bound}" for text, bound in zip(texts, most, strict=False)]
    threads = " * ".join(f"({text})" for text in launch.block)
    return [*found, f"{threads} <= {limits.max_threads_per_block}"]


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


def _passed(task: Task, argument: Argument, workload: Workload) -> dict[str, Any]:
    """An argument on a workload: its value, or its shape and tolerance."""
    dtype = task.dtype_of(argument, workload)
    about = {"name": argument.name, "role": argument.role, "dtype": dtype, "numpy": DTYPES[dtype].storage.name}
    if argument.role == "scalar":
        return {**about, "value": task.scalar_of(argument, workload)}
    tolerance = task.tolerance_of(dtype, argument.name)
    return {
        **about,
        "shape": task.shape_of(argument, workload),
        "tolerance": {"rtol": tolerance.rtol, "atol": tolerance.atol},
    }
