"""Has every part of a candidate run in some check? Counts the basic blocks that launches entered, and names the rest.

Owns which blocks of which machine code have run. A candidate's *marked* twin is compiled from the same source, with a
mark at the start of each block (`tunesmith.kernels.build.blocks`), and launched once on the data of each step; what is
checked and timed is the candidate itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tunesmith.kernels.backends import Device
from tunesmith.kernels.build.blocks import MarkedArtifact
from tunesmith.kernels.build.candidate import Candidate, TypesKey, types_key
from tunesmith.kernels.check.trial import bind
from tunesmith.kernels.launch.workload_data import WorkloadData

MOST_LINES = 12
"""Lines that a sentence names."""


@dataclass(frozen=True, slots=True)
class Unexecuted:
    """Blocks that ran in no check. types: of the workloads they were compiled for, such as "T=float16"; count: how many
    there are, of how many; lines: of the template's source where they stand, sorted, those that only such blocks come
    from."""

    types: str
    count: int
    blocks: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.lines[:MOST_LINES])) + (", ..." if len(self.lines) > MOST_LINES else "")
        where = f"line{'s' if len(self.lines) > 1 else ''} {shown}" if self.lines else "in lines that also ran"
        return f"{self.types or 'all types'}: {self.count} of {self.blocks} blocks, {where}"


@dataclass(slots=True)
class Coverage:
    """What is known of one candidate. marked: its twin for each combination of types."""

    candidate: Candidate
    marked: Mapping[TypesKey, MarkedArtifact]
    _ran: dict[TypesKey, set[int]] = field(default_factory=dict)

    @property
    def twin(self) -> Candidate:
        """The marked twin, as a candidate."""
        artifacts = {key: one.artifact for key, one in self.marked.items()}
        return Candidate(self.candidate.template, self.candidate.config, artifacts)

    def wanted(self, key: TypesKey) -> bool:
        """Whether a launch with these types can tell more."""
        return key in self.marked and len(self._ran.get(key, ())) < len(self.marked[key].blocks)

    def add(self, key: TypesKey, ran: frozenset[int]) -> None:
        """Blocks, by their numbers, that a launch with these types entered."""
        self._ran.setdefault(key, set()).update(ran)

    def unreached(self) -> list[dict[str, str]]:
        """The combinations of types for which some line has not run."""
        return [dict(key) for key in self.marked if self._missing(key)[1]]

    def unexecuted(self) -> tuple[Unexecuted, ...]:
        """The blocks that no launch entered, for each combination of types with some."""
        found = []
        for key, one in self.marked.items():
            count, lines = self._missing(key)
            if count:
                types = ", ".join(f"{name}={dtype}" for name, dtype in key)
                found.append(Unexecuted(types, count, len(one.blocks), tuple(sorted(lines))))
        return tuple(found)

    def _missing(self, key: TypesKey) -> tuple[int, set[int]]:
        """How many blocks have not run, and the lines that only such blocks come from."""
        blocks, ran = self.marked[key].blocks, self._ran.get(key, set())
        seen = {line for number, block in enumerate(blocks) if number in ran for line in block.lines}
        missing = [block for number, block in enumerate(blocks) if number not in ran]
        return len(missing), {line for block in missing for line in block.lines} - seen


def launch_marked(
    device: Device, twin: Candidate, data: WorkloadData, loaded: dict[str, tuple[object, object]]
) -> frozenset[int]:
    """The numbers of the blocks that one launch of a marked twin on set 0 enters, and those of earlier launches of the
    same machine code. loaded: kernels of this device and their marks, by the digest of their machine code, to which
    this one is added. Raises `DeviceError`."""
    artifact = twin.artifacts[types_key(data.workload)]
    if artifact.code_digest not in loaded:
        loaded[artifact.code_digest] = device.load_marked(artifact)
    kernel, marks = loaded[artifact.code_digest]
    launches = bind(device, twin, data, {artifact.code_digest: kernel})
    if not isinstance(launches, list):
        return frozenset()
    data.restore_set(0, 0)
    device.launch(launches[0])
    device.synchronize()
    return frozenset(int(number) for number in np.flatnonzero(device.read(marks).view(np.uint32)))
