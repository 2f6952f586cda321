"""Makes mutants of the library's kernels, judges them, and counts the rejected ones.

    python scripts/measure/mutants.py --out FILE [--backend opencl|cuda] [--each N] [--seed S] [--workers N]
        [--device I --of N] [--only TEXT]

A mutant is a baseline, or a template at its default configuration, with one edit of `mutations`. Each kernel gives as
many, of all operators in turn. Mutants that do not compile, or whose code is the kernel's own, do not count: about
a third. FILE has every mutant with its edit and is written after each; a second call goes on where the first stopped.
Whoever has looked at a survivor writes `"judgement": "equivalent: WHY"` or `"hole: WHY"` into its entry, which later
calls keep; equivalent ones do not count. Kernels without an edit are judged as well: each must be accepted.

--device I --of N takes the I-th of N shares of the mutants, on the device I where there is one, into a FILE of its own.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain, product, zip_longest
from typing import Any

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.cli.measure.mutations import edits
from tunesmith.cli.measure.runner import Record, execute
from tunesmith.cli.measure.verdicts import judge_all, judged, parser_of_verdicts
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import BackendName, Template

NO_KERNEL = ("compile_failed", "compile_crashed", "compile_timeout", "infeasible", "forbidden_source")
"""Reasons that say of a mutant only that it is not a kernel."""
SHOWN = 200
"""Characters of a line that the record has."""


@dataclass(frozen=True)
class Mutant:
    """A candidate for `verdicts.judged`. file: its name; kind: the operator, empty for a kernel without an edit;
    before, after: the lines of the edit."""

    file: str
    task: str
    kernel: str
    original: Template = field(repr=False)
    text: str = field(repr=False)
    kind: str = ""
    line: int = 0
    before: str = ""
    after: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Not empty where it should be rejected."""
        return ("any",) if self.kind else ()

    def load(self) -> tuple[Task, Template]:
        return load_task(self.task), self.original.model_copy(update={"source": self.text})

    def agrees(self, verdict: Any) -> bool:
        return bool(verdict.accepted) is not bool(self.kind)


def kernels(backend: BackendName) -> Iterator[Mutant]:
    """The library's kernels, without edits."""
    for name in library_tasks():
        task = load_task(name)
        if backend in task.backends:
            sources = task.sources(backend)
            for template in (sources.baseline.template, *sources.templates):
                kernel = f"{name}/{template.name}"
                yield Mutant(kernel, name, kernel, template, template.source)


def mutants_of(kernel: Mutant, seed: int, elsewhere: set[str]) -> list[Mutant]:
    """All mutants of a kernel, distinct: of each operator one in turn, in an order drawn by `seed`. elsewhere: lines of
    functions that other kernels have as well and that are not edited again, to which this one's are added."""
    rng, source, template = random.Random(f"{seed} {kernel.file}"), kernel.text, kernel.original
    numbers = [one.name for one in load_task(kernel.task).arguments if one.role == "scalar" and "int" in one.dtype]
    by_operator, seen, entry = defaultdict[str, list[Mutant]](list), {source}, source.index(template.entry + "(")
    for edit in edits(source, numbers, template.backend, rng):
        text = source[: edit.start] + edit.text + source[edit.end :]
        first, last = source.rfind("\n", 0, edit.start) + 1, source.find("\n", edit.end)
        before, after = source[first:last].strip(), source[first : edit.start] + edit.text + source[edit.end : last]
        if text in seen or (edit.start < entry and before in elsewhere):
            continue
        seen.add(text)
        if "__half2float" in edit.text:
            text = "#include <cuda_fp16.h>\n" + text
        line = source.count("\n", 0, edit.start) + 1
        name = f"{kernel.file} {edit.operator} {edit.start}-{edit.end} {edit.text or 'nothing'}"
        lines = before[:SHOWN], after.strip()[:SHOWN]
        made = Mutant(name, kernel.task, kernel.file, template, text, edit.operator, line, *lines)
        by_operator[edit.operator].append(made)
    elsewhere |= {line.strip() for line in source[:entry].splitlines()}
    for found in by_operator.values():
        rng.shuffle(found)
    names = sorted(by_operator)
    rng.shuffle(names)
    return [one for one in chain.from_iterable(zip_longest(*(by_operator[name] for name in names))) if one is not None]


@cache
def _compiler(limits: DeviceLimits, index: int) -> Isolated:
    """The process that compiles for this one, with which it ends at the latest."""
    return Isolated("compile", CompileWorker, limits, index)


@lru_cache(maxsize=64)
def _machine_code(template: Template, types: tuple[tuple[str, str], ...], limits: DeviceLimits, index: int) -> bytes:
    """Empty where it does not compile."""
    source = specialise(template, template.default_config, dict(types))
    made = _compiler(limits, index).call("compile", Deadlines().compile, source)
    return made.code if isinstance(made, Artifact) else b""


def unfit(mutant: Mutant, limits: DeviceLimits, index: int) -> str:
    """Why there is nothing to judge: "same code" as the kernel's for all types, or "compile_failed"; else empty."""
    task, template = mutant.load()
    for types in product(*([(name, one) for one in options] for name, options in sorted(task.types.items()))):
        own = _machine_code(mutant.original, types, limits, index)
        if own and (code := _machine_code(template, types, limits, index)) != own:
            return "" if code else "compile_failed"
    return "same code"


def answer(mutant: Mutant, device: DeviceInfo, deadlines: Deadlines, commit: str, processes: int) -> dict[str, Any]:
    """A mutant's line."""
    about = {"kernel": mutant.kernel, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    if mutant.kind and (why := unfit(mutant, device.limits, device.index)):
        named = {"candidate": mutant.file, "task": mutant.task, "class": mutant.kind, "wrong": True}
        return named | about | {"verdict": "not judged", "reason": why, "commit": commit}
    line = judged(mutant, device, deadlines, commit, processes) | about
    if mutant.kind and line["verdict"] == "accepted":
        # A compiler that has compiled much may give the same code other names: compared once more by a new one.
        _compiler(device.limits, device.index).end()
        _machine_code.cache_clear()
        if why := unfit(mutant, device.limits, device.index):
            return line | {"verdict": "not judged", "reason": why}
    return line


def counts(line: dict[str, Any]) -> bool:
    """Whether a line is of a mutant that should be rejected."""
    judged_equal = str(line.get("judgement", "")).startswith("equivalent")
    no_kernel = line["verdict"] in ("not judged", "error") or line["reason"] in NO_KERNEL
    return bool(line["class"]) and not judged_equal and not no_kernel


def is_killed(line: dict[str, Any]) -> bool:
    return line["verdict"] == "rejected" or bool(line["printed"])


def wilson(killed: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of 95 % of a share (E. B. Wilson, "Probable inference", 1927)."""
    share, spread = killed / of, z * z / of
    middle, half = share + spread / 2, z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


def _share(lines: Sequence[dict[str, Any]]) -> str:
    killed = sum(map(is_killed, lines))
    low, high = wilson(killed, len(lines))
    return f"{killed} of {len(lines)}: {killed / len(lines):.1%} ({max(low, 0):.1%} - {min(high, 1):.1%})"


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of mutants that were rejected, with intervals of 95 %, and the survivors."""
    found = [line for line in lines if counts(line)]
    left_out = [line for line in lines if line["class"] and not counts(line)]

    def by(key: str) -> dict[str, str]:
        return {
            name: _share([one for one in found if one[key] == name]) for name in sorted({one[key] for one in found})
        }

    return {
        "rejected": _share(found) if found else "none judged",
        "originals_not_accepted": [line["candidate"] for line in lines if not line["class"] and is_killed(line)],
        "left_out": dict(Counter("equivalent" if "judgement" in one else one["reason"] for one in left_out)),
        "errors": [line["candidate"] for line in lines if line["verdict"] == "error"],
        "by_operator": by("class"),
        "by_kernel": by("kernel"),
        "reasons": dict(Counter(line["reason"] for line in found if is_killed(line)).most_common()),
        "survivors": [line["candidate"] for line in found if not is_killed(line)],
        "minutes": round(sum(line.get("seconds", 0.0) for line in lines) / 60, 1),
    }


def main() -> int:
    """Judges, and writes the file."""
    parser = parser_of_verdicts(__doc__)
    parser.add_argument("--each", type=int, default=25, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--device", type=int, default=0, help="the share, and the device, by number from 0")
    parser.add_argument("--of", type=int, default=1, help="shares")
    options = parser.parse_args()
    found, elsewhere, chosen = probe(), set[str](), list[Mutant]()
    device = found.device(options.backend, options.device if options.device < len(found.of(options.backend)) else 0)
    record = Record(options, device)
    lines, compiler = record.former("mutants", "candidate"), open_compiler(device.limits, device.index).version
    for kernel in kernels(options.backend):
        made = mutants_of(kernel, options.seed, elsewhere)[: options.each]
        chosen += [kernel, *made] if options.only in kernel.file else []
    waiting = [one for one in chosen[options.device :: options.of] if one.file not in lines]
    for line in judge_all(waiting, answer, device, options):
        lines[line["candidate"]] = line
        every = [lines[name] for name in sorted(lines)]
        record.write(compiler=compiler, summary=summary(every), mutants=every)
    print(json.dumps(summary(list(lines.values())), indent=1))
    return 0


if __name__ == "__main__":
    execute(main)
