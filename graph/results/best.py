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
from pathlib import Path
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch import BASELINE as BY_BASELINE
from tunesmith.graph.dispatch import Dispatching, DispatchRule, dispatching
from tunesmith.graph.journal.events import Compared, ShapeCompared, Verdict, Winner, WorkloadRow
from tunesmith.graph.roles.tester import broken
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import Artifact, TypesKey, cache_key, open_cache, types_key
from tunesmith.kernels.build.source import Specialised, code_key, specialise
from tunesmith.kernels.launch.reference import runnable_reference
from tunesmith.kernels.space import device_names
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.task import Argument, Task, Workload, geometry
from tunesmith.kernels.spec.template import BACKENDS, Config, Template, config_key
from tunesmith.kernels.spec.translate import folded
from tunesmith.kernels.spec.validation import MAX_BLOCKS
from tunesmith.kernels.triton.exports import Kernel, write_exports

COMPILE_SECONDS = 120.0  # timeout of one compilation
HERE = Path(__file__).resolve().parent
RUNTIME = HERE / "runtime.py"
BASELINE, GENERAL = "baseline", "general"  # names of folders
CHECKSUMS = "SHA256SUMS"  # of the other files, as `sha256sum --check` takes it
MAX_GRID = (MAX_BLOCKS, MAX_BLOCKS, MAX_BLOCKS)  # blocks in a grid on a device that does not say


def export_best(context: Context, folder: Path, verdict: Verdict) -> None:
    """Writes the kernels that `verdict` found best into `folder`, in place of an earlier round's."""
    with Isolated("compile", CompileWorker, context.device.limits, context.device.index) as compiler:
        writer = _Writer(context, folder, compiler)
        shutil.rmtree(folder, ignore_errors=True)
        if verdict.general is not None or verdict.tuned:
            folder.mkdir(parents=True)
            _write_all(writer, verdict)
            names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            sums = "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
            (folder / CHECKSUMS).write_text(sums, encoding="utf-8")


def altered_files(folder: Path) -> list[str]:
    """The files of best/ that are gone or are not as `export_best` wrote them."""
    lines = [line.split("  ", 1) for line in (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()]
    paths = {name: folder / name for _, name in lines}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path.is_file()}
    return [name for digest, name in lines if found.get(name) != digest]


def _write_all(writer: _Writer, verdict: Verdict) -> None:
    context, folder = writer.context, writer.folder
    if not (context.task.original_is_reference and BACKENDS[context.device.backend].python):
        (folder / "reference.py").write_text(runnable_reference(context.task), encoding="utf-8")
    workloads = [*context.tuned, *context.held_out]
    baseline = context.sources.baseline.template
    writer.write_kernel(BASELINE, baseline, baseline.default_config, workloads)
    found = dispatching(context, verdict) or Dispatching(kernels=(), rule=DispatchRule(), lines=(), fitted=0, tested=0)
    folders = dict[tuple[str, str], str]()
    if verdict.general is not None:
        folders[verdict.general.key] = GENERAL
        writer.write_kernel(GENERAL, context.template(verdict.general.template), verdict.general.config, workloads)
    # Kernels of the rule serve all types; a winner that only its own shape uses serves the types of that shape.
    by_rule = {found.kernels[number].key for number in found.rule.used() - {BY_BASELINE}}
    for best in verdict.dispatch:
        if (key := best.key) not in folders:
            folders[key] = _free_name(best.workload, {BASELINE, *folders.values()})
            template = context.template(best.template)
            served = [context.task.workload(one.workload) for one in verdict.dispatch if one.key == key]
            if key in by_rule:
                served = [one for one in workloads if not broken(context, best, [one])]
            writer.write_kernel(folders[key], template, best.config, served)
    compilers = [event.compiler for event in context.log.events(Compared) if event.compiler]
    about = {
        "task": context.task.name,
        "device": context.device.name,
        "backend": context.device.backend,
        "driver": context.device.driver,
        "verdict": verdict.sentence,
        "compiler": compilers[-1] if compilers else "",
        "how": "a shape of `shapes` with the same sizes and types uses its folder, any other that of `rule`; where a "
        "kernel cannot be launched on a shape, the baseline",
        "rule": _rule(found.rule, found.kernels, folders),
        "rule_fitted_to": found.fitted,
        "rule_tried_on": found.tested,
        "rule_that_lost_to_general": found.lost,
        "policies": [policy.to_json() for policy in found.policies],
        "signature": call_signature(context.task),
        "ratio_is": "time over the baseline's time with its 99 % interval: below 1 is faster",
        "shapes": [_shape(row, verdict, folders) for row in verdict.rows],
    }
    (folder / "dispatch.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    if BACKENDS[context.device.backend].python:
        # The kernel's own text is that of the task's template, whose parameters a caller can choose.
        own = next(iter(context.sources.templates), baseline)
        write_exports(folder, about, writer.kernels, own, context.device.limits.arch)
        return
    shutil.copyfile(RUNTIME, folder / "runtime.py")
    shutil.copyfile(HERE / "launchers" / "dispatch.py", folder / "dispatch.py")


def _shape(row: WorkloadRow, verdict: Verdict, folders: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """A measured shape in dispatch.json."""
    best = next((one for one in verdict.dispatch if one.workload == row.workload), None)
    figures = {"ratio": 1.0, "low": None, "high": None, "verdict": "keep the baseline", "seconds": row.baseline_seconds}
    general = None if row.general is None else row.general.model_dump(include={*figures})
    folder = BASELINE
    if best is not None:
        folder, figures = folders[best.key], best.model_dump(include={*figures})
    elif verdict.general is not None and row.general is not None and row.general.gains(verdict.objective):
        # Not tuned on, or nothing better was found.
        folder, figures = GENERAL, general or figures
    shape = {"workload": row.workload, "held_out": row in verdict.held_out, "sizes": row.sizes, "types": row.types}
    # The general configuration's figures show why it is not used.
    return {**shape, "folder": folder, **figures, "general": general}


class _Writer:
    """Writes kernels, each into a folder of its own in `folder`, where an earlier export may be removed from now on.
    compiler: for machine code that is not at hand; its process starts when it is first called."""

    def __init__(self, context: Context, folder: Path, compiler: Isolated) -> None:
        self.context, self.folder, self._compiler = context, folder, compiler
        self.kernels: dict[str, Kernel] = {}
        self._exported = {_digest(code): code for code in (path.read_bytes() for path in folder.glob("*/*.cubin"))}
        self._measured: dict[tuple[str, str, TypesKey], tuple[str, str]] = {}
        """By template, configuration and types: the digest of the code that was timed last, and its compiler."""
        self._seconds: dict[tuple[str, str], dict[str, float]] = {}
        """By template and configuration: cold seconds on each workload in the last comparison."""
        baseline = context.sources.baseline.template
        own = baseline.id, config_key(baseline.default_config)
        for shape in context.log.events(ShapeCompared):
            self._keep(shape.workload, {one.key: one.code for one in shape.entries}, shape.compiler)
        for event in context.log.events(Compared):
            codes = {one.key: one.code for one in event.entries} | {own: event.baseline_code}
            self._keep(context.task.workload(event.workload), codes, event.compiler)
            for one in event.entries:
                if one.comparison is not None:
                    median = one.comparison.baseline.median
                    for key, seconds in ((own, median), (one.key, median * one.comparison.ratio)):
                        self._seconds.setdefault(key, {})[event.workload] = seconds

    def _keep(self, workload: Workload, codes: Mapping[tuple[str, str], str], compiler: str) -> None:
        self._measured |= {(*key, types_key(workload)): (code, compiler) for key, code in codes.items() if code}

    def write_kernel(self, name: str, template: Template, config: Config, served: Sequence[Workload]) -> None:
        """Writes the folder `name`: sources for the types of `served`, machine code, launch.json, launch.py."""
        context, folder, key = self.context, self.folder / name, (template.id, config_key(config))
        folder.mkdir()
        traits, requires = BACKENDS[template.backend], _requirements(context, template)
        self.kernels[name] = Kernel(template, config, requires)
        launches: dict[str, Any] = {}
        sources: dict[str, Any] = {}
        for workload in served:
            source = specialise(template, config, dict(code_key(context.task, template, workload)))
            file = source_name(template, workload.types)
            if file not in sources:
                (folder / file).write_text(source.source, encoding="utf-8")
                about = {"source": file, "max_registers": source.max_registers, "fast_math": source.fast_math}
                sources[file] = {"types": workload.types, **about}
                if traits.makes_cubins and not traits.python:
                    wanted = self._measured.get((*key, types_key(workload)), ("", ""))
                    cubin = (folder / file).with_suffix(".cubin")
                    sources[file]["machine_code"] = self._machine_code(cubin, source, *wanted)
            shape = geometry(template, config, workload)
            seconds = self._seconds.get(key, {}).get(workload.name)
            launches[workload.name] = {**sources[file], "measured_seconds": seconds, "sizes": workload.sizes}
            launches[workload.name] |= {"grid": shape.grid, "block": shape.block, "shared_bytes": shape.shared_bytes}
            passed = [_passed(context.task, one, workload) for one in context.task.arguments]
            launches[workload.name]["arguments"] = passed
        if traits.python:
            return  # Triton launches it
        verdicts = {one.verdict for (*kernel, _), one in context.log.examinations().items() if tuple(kernel) == key}
        examined = next((one for one in ("accepted", "partial") if one in verdicts), "not examined")
        launch = {
            "task": context.task.name,
            "template": template.name,
            "config": config,
            # "partial": right, on few sizes.
            "examined": BASELINE if name == BASELINE else examined,
            "device": context.device.name,
            "entry": template.entry,
            "reference": context.task.reference_name,
            # For other shapes than the workloads': expressions over sizes, types and the configuration.
            "launch": template.launch.model_dump(mode="json"),
            "requires": requires,
            "sources": list(sources.values()),
            "workloads": launches,
        }
        (folder / "launch.json").write_text(json.dumps(launch, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(HERE / "launchers" / "launch.py", folder / "launch.py")

    def _machine_code(self, file: Path, source: Specialised, wanted: str, compiler: str) -> dict[str, Any]:
        """Writes the machine code of `source` to `file`, if it can be had, and returns its entry in launch.json.
        wanted: the digest of the code that was compared with the baseline; measured: it is that code."""
        arch = self.context.device.limits.arch
        code, cache = self._exported.get(wanted), open_cache()
        if code is None and wanted and cache is not None:
            cached = cache.get(cache_key(source, arch, compiler))
            code = cached.code if isinstance(cached, Artifact) else None
        if code is None or _digest(code) != wanted:
            made = self._compile(source)
            if isinstance(made, str):
                note = f"The machine code is not at hand, and the source was not compiled here: {made}."
                return {"file": None, "measured": False, "note": note}
            code, compiler = made
        measured = _digest(code) == wanted
        other = "It was compiled for this export, and may differ from the measured code: times may differ."
        file.write_bytes(code)
        note = "It is the machine code that was measured." if measured else other
        about = {"file": file.name, "sha256": hashlib.sha256(code).hexdigest(), "architecture": arch}
        return {**about, "compiler": compiler, "measured": measured, "note": note}

    def _compile(self, source: Specialised) -> tuple[bytes, str] | str:
        """The machine code and the compiler's version, or the reason for its absence, as a clause."""
        try:
            ready: Any = self._compiler.call("start", COMPILE_SECONDS)
            made: Any = self._compiler.call("compile", COMPILE_SECONDS, source)
        except TunesmithError as error:
            # The compiler may be on other nodes of a cluster only.
            return str(error).rstrip(".")
        version = ready[0] if isinstance(ready, tuple) else "an unknown compiler"
        return (made.code, version) if isinstance(made, Artifact) else f"the compiler answers {made}"


def _digest(code: bytes) -> str:
    """The same as `Artifact.code_digest`."""
    return hashlib.sha256(code).hexdigest()[:16]


def call_signature(task: Task) -> dict[str, Any]:
    """The signature of the kernel's calls, for dispatch.json: its arguments, with expressions over sizes and types; for
    each size the array whose shape has it (`shape[dimension] // factor`), and for each type the array of that type,
    None where the caller passes no such array."""
    given = [one for one in task.arguments if one.role in ("in", "inout")]
    extents = []
    for one in given:
        for dimension, text in enumerate(one.shape):
            if found := re.fullmatch(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?:\*(\d+))?", text.replace(" ", "")):
                factor = int(found[1] or 1) * int(found[3] or 1)
                extents.append((found[2], {"argument": one.name, "dimension": dimension, "factor": factor}))
    # A size is read from an extent `n` rather than from `2 * n`, and from the first of several.
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
        return {"folder": BASELINE if rule.use == BY_BASELINE else folders[kernels[rule.use].key]}
    return {"test": rule.test, "yes": _rule(rule.yes, kernels, folders), "no": _rule(rule.no, kernels, folders)}


def _free_name(workload: str, taken: set[str]) -> str:
    """A name for a workload's folder; workloads may differ only in characters that a file name cannot hold."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", workload)
    names = (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in {*taken, GENERAL})


def source_name(template: Template, types: Mapping[str, str]) -> str:
    """The file of a template's source for these data types, in the folder of its configuration."""
    return "-".join(["kernel", *(dtype for _, dtype in sorted(types.items()))]) + BACKENDS[template.backend].suffix


def _requirements(context: Context, template: Template) -> list[str]:
    """The conditions of a launch on a shape: expressions over sizes, types and the configuration."""
    limits, launch = context.device.limits, template.launch
    device = device_names(limits)
    found = [folded(constraint.expression, device) for constraint in template.constraints]
    for texts, most in ((launch.block, limits.max_block_dims), (launch.grid, limits.max_grid_dims or MAX_GRID)):
        found += [f"1 <= ({folded(text, {})}) <= {bound}" for text, bound in zip(texts, most, strict=False)]
    threads = " * ".join(f"({text})" for text in launch.block)
    return [*found, f"{threads} <= {limits.max_threads_per_block}"]


def _passed(task: Task, argument: Argument, workload: Workload) -> dict[str, Any]:
    """An argument on a workload: its value, or its shape, tolerance, and fill with its ends, if it has any."""
    dtype = task.dtype_of(argument, workload)
    numpy = DTYPES[dtype].storage.name
    about: dict[str, Any] = {"name": argument.name, "role": argument.role, "dtype": dtype, "numpy": numpy}
    if argument.role == "scalar":
        return {**about, "value": task.scalar_of(argument, workload)}
    tolerance, fill = task.tolerance_of(dtype, argument.name), argument.fill.at(workload)
    has_ends = fill.distribution == "uniform"
    ends = ((fill.mean + sign * fill.scale if has_ends else None) for sign in (-1, 1))
    about |= {"fill": (fill.kind, *ends), "shape": task.shape_of(argument, workload)}
    return {**about, "tolerance": {"rtol": tolerance.rtol, "atol": tolerance.atol}}
