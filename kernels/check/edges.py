"""Launches whose arrays lie at the edge of memory: what reaches beyond an array faults there, also where it changes
nothing and no result shows it.

Owns one such launch. It may end its process, and which kernel is to blame, the candidate or the baseline, the caller
finds out (`tunesmith.actors.judging.judge`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tunesmith.kernels.backends import Device, Side
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.trial import bind
from tunesmith.kernels.launch.workload_data import WorkloadData


@dataclass(frozen=True, slots=True)
class Edges:
    """arrays: names of the arguments that lie at the edge of memory, on that `side`, and nowhere else can be reached
    from them; writable: whether they may be written. Other arrays lie as in every step."""

    arrays: frozenset[str]
    side: Side = "end"
    writable: bool = True


def edges_of(arrays: Collection[str], side: Side = "end", *, writable: bool = True) -> Edges:
    return Edges(frozenset(arrays), side, writable)


def launch_at_edges(
    device: Device, candidate: Candidate, data: WorkloadData, edges: Edges, loaded: dict[str, object] | None = None
) -> bool:
    """One launch of `candidate` on set 0 with its arrays at `edges`. False where the device has no such memory.

    loaded: see `tunesmith.kernels.check.trial.bind`. Raises `DeviceError` where the launch fails; on a CPU the process
    dies.
    """
    launches = bind(device, candidate, data, loaded)
    if not isinstance(launches, list):
        return False
    data.restore_set(0, 0)
    moved: dict[str, object] = {}
    for place in data.places:
        if place.argument.name in edges.arrays:
            copied = device.copy_at_edge(data.view(place, 0), edges.side, writable=edges.writable)
            if copied is None:
                return False
            moved[place.argument.name] = copied
    arguments = tuple(
        moved.get(argument.name, given)
        for argument, given in zip(data.task.arguments, launches[0].arguments, strict=True)
    )
    device.launch(replace(launches[0], arguments=arguments))
    device.synchronize()
    return True
