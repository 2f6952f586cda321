"""Coverage of a candidate by its checks: the basic blocks that launches entered, and the lines of the others.

A candidate's *marked* twin is compiled from the same source, with a mark at the start of each block
(`tunesmith.kernels.build.machine_code`), and launched once on the data of each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tunesmith.kernels.backends import BoundLaunch, kept
from tunesmith.kernels.build.artifact import Candidate
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import CodeKey, code_key, kit_lines, types_of
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.spec.task import geometry

MAX_LINES_SHOWN = 12
"""Lines that a sentence names."""


@dataclass(frozen=True, slots=True)
class Unexecuted:
    """Blocks that ran in no check. types: of the workloads they were compiled for, such as "T=float16"; count: how many
    there are, of how many; lines: the lines of the template's source, sorted, that only such blocks come from; shared:
    further such lines, which the plain kernel has too and did not run either; beside: of `lines`, those with no line
    that ran between them and a shared one, as in a branch that the plain kernel does not take."""

    types: str
    count: int
    blocks: int
    lines: tuple[int, ...]
    shared: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = [_named(self.lines)] if self.lines else []
        where += [f"{_named(self.shared)}, as in the plain kernel"] if self.shared else []
        where = where or ["in lines that also ran, or the kit's"]
        return f"{self.types or 'all types'}: {self.count} of {self.blocks} blocks, {'; '.join(where)}"


def _named(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:MAX_LINES_SHOWN])) + (", ..." if len(lines) > MAX_LINES_SHOWN else "")
    return f"line{'s' if len(lines) > 1 else ''} {shown}"


@dataclass(slots=True)
class Coverage:
    """Which blocks of one candidate have run. marked: its twin for each combination of types; plain: the same of the
    plain kernel, launched in the same steps: a line that it does not run either says nothing against a candidate."""

    candidate: Candidate
    marked: Mapping[CodeKey, MarkedArtifact]
    plain: Coverage | None = None
    _ran: dict[CodeKey, set[int]] = field(default_factory=dict)

    def twin(self, key: CodeKey) -> Candidate:
        """The marked twin for a combination of types, as a candidate."""
        return Candidate(self.candidate.template, self.candidate.config, {key: self.marked[key].artifact})

    def wanted(self, key: CodeKey) -> bool:
        """Whether a launch with these types can tell more."""
        return key in self.marked and len(self._ran.get(key, ())) < len(self.marked[key].blocks)

    def add(self, key: CodeKey, ran: frozenset[int]) -> None:
        """Blocks, by their numbers, that a launch with these types entered."""
        self._ran.setdefault(key, set()).update(ran)

    def unreached(self) -> list[dict[str, str]]:
        """The combinations of types for which some line has not run, nor is one of the plain kernel's that did not."""
        return [dict(types) for types in self._by_types() if self._lines(types)[0]]

    def unexecuted(self) -> tuple[Unexecuted, ...]:
        """The blocks that no launch entered, for each combination of types with some."""
        found = []
        for types, keys in self._by_types().items():
            blocks = sum(len(self.marked[key].blocks) for key in keys)
            if count := blocks - sum(len(self._ran.get(key, ())) for key in keys):
                named = ", ".join(f"{name}={dtype}" for name, dtype in types)
                found.append(Unexecuted(named, count, blocks, *self._lines(types)))
        return tuple(found)

    def _by_types(self) -> dict[CodeKey, list[CodeKey]]:
        """The keys by their types: a line that ran for another class of arguments ran."""
        found = dict[CodeKey, list[CodeKey]]()
        for key in self.marked:
            found.setdefault(types_of(key), []).append(key)
        return found

    def _lines(self, types: CodeKey) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The lines of which no block has run, as `Unexecuted.lines`, `shared` and `beside`."""
        missing, ran = self._missing(types)
        texts = set(self.plain._missing(types)[0].values()) if self.plain is not None else set()
        shared = {line for line, text in missing.items() if text in texts and any(map(str.isalnum, text))}
        own, beside = set(missing) - shared, set[int]()
        for _, between in itertools.groupby(sorted({*missing, *ran}), key=ran.__contains__):
            together = set(between)
            beside |= together & own if together & shared else set()
        return tuple(sorted(own)), tuple(sorted(shared)), tuple(sorted(beside))

    def _missing(self, types: CodeKey) -> tuple[dict[int, str], set[int]]:
        """The lines of which no block has run, with their text without blanks, and those that ran."""
        seen, lines = set[int](), set[int]()
        for key in self._by_types().get(types, ()):
            ran = self._ran.get(key, set())
            for number, block in enumerate(self.marked[key].blocks):
                (seen if number in ran else lines).update(block)
        source = self.candidate.template.source.splitlines()
        # Blocks of the kit are for all sizes, also for those that a task excludes.
        lines -= seen | kit_lines(self.candidate.template)
        return {line: "".join(source[line - 1].split()) if line <= len(source) else "" for line in lines}, seen


def launch_marked(twin: Candidate, data: WorkloadData) -> frozenset[int]:
    """The numbers of the blocks that one launch of a marked twin on set 0, or an earlier one of the same machine code,
    entered. Raises `DeviceError`."""
    launch, marks = bind_marked(twin, data)
    data.restore_set(0, 0)
    data.device.launch(launch)
    data.device.synchronize()
    return frozenset(int(number) for number in np.flatnonzero(data.device.read(marks).view(np.uint32)))


def bind_marked(twin: Candidate, data: WorkloadData) -> tuple[BoundLaunch, Any]:
    """A launch of a marked twin on set 0, and the buffer of its marks. Raises `DeviceError`."""
    artifact = twin.artifacts[code_key(data.task, twin.template, data.workload)]
    device, shape = data.device, geometry(twin.template, twin.config, data.workload)
    kernel, marks = kept(device, artifact.code_digest, partial(device.load_marked, artifact))
    return BoundLaunch(kernel, shape, data.arguments(0)), marks
