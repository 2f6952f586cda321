"""One candidate on the buffers of one workload: loaded, checked, and its launches ready to be timed.

Restore, launch once, check, run the sequence that will be timed once and check again; after timing, exchange the inputs
of a set, run the timed sequence on it once more, and check that too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tunesmith.kernels.backends import BoundLaunch, DeviceError
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key, undeclared_state
from tunesmith.kernels.check.compare import measure_set
from tunesmith.kernels.launch.buffers import WorkloadData
from tunesmith.kernels.launch.rotation import Rotation, window_for
from tunesmith.kernels.outcome import LaunchFailed, Outcome, WrongResult
from tunesmith.kernels.space import compiler_rejection
from tunesmith.kernels.spec.task import geometry

SAMPLE_LENGTH_TOLERANCE = (0.7, 2.0)
"""A sample's duration over the duration that was asked for: the sequence of one outside is captured anew."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A candidate that passed the check, ready to be timed. errors: the largest deviation per output, as a share of the
    tolerance."""

    artifact: Artifact
    rotation: Rotation
    launches: Sequence[BoundLaunch]
    errors: dict[str, float]


def bind(candidate: Candidate, data: WorkloadData, loaded: dict[str, object]) -> list[BoundLaunch] | Outcome:
    """The launches of `candidate` on each set of `data`, or why it cannot be launched. loaded: kernels of this device
    by the digest of their machine code, to which this one is added. Raises `DeviceError`."""
    artifact = candidate.artifacts[types_key(data.workload)]
    shape = geometry(candidate.template, candidate.config, data.workload)
    rejected = undeclared_state(candidate.template, artifact)
    rejected = rejected or compiler_rejection(data.device.limits, shape, artifact.resources)
    if rejected is not None:
        return rejected
    if artifact.code_digest not in loaded:
        loaded[artifact.code_digest] = data.device.load(artifact)
    kernel = loaded[artifact.code_digest]
    return [BoundLaunch(kernel, shape, data.arguments(index)) for index in range(data.sets)]


def prepare(candidate: Candidate, data: WorkloadData, sample_seconds: float) -> Checked | Outcome:
    """Loads and checks `candidate`: one launch alone, then launches of the kind that will be timed. Which set the lone
    launch takes depends on the candidate alone, so that a verdict does not depend on what ran before. sample_seconds:
    how long a timed sample should last."""
    device = data.device
    window_of = partial(window_for, sets=data.sets, sample_seconds=sample_seconds, rounds=device.has_graph_overhead)
    artifact = candidate.artifacts[types_key(data.workload)]
    alone = zlib.crc32(artifact.digest.encode()) % data.sets
    try:
        launches = bind(candidate, data, {})
        if not isinstance(launches, list):
            return launches
        data.restore()
        seconds = device.once(launches[alone])
        if isinstance(first := measure_set(data, alone), WrongResult):
            return first
        # Nothing else has run. What it wrote astray red zones tell, and farther off `tunesmith.kernels.check.verify`.
        data.restore_set(alone, data.held(alone))
        rotation = Rotation(device, launches, window_of(seconds), alone)
        last = rotation.run_first()
        # A sample says more exactly than a lone launch how many launches make one of the wanted length.
        window = window_of(rotation.lasted / rotation.window)
        shortest, longest = SAMPLE_LENGTH_TOLERANCE
        if window != rotation.window and not shortest <= rotation.lasted / sample_seconds <= longest:
            rotation = Rotation(device, launches, window, alone)
            data.restore()
            last = rotation.run_first()
        # Launches that are timed are launches that were checked: the last of the first sample must be right too.
        if isinstance(again := measure_set(data, last), WrongResult):
            return again
    except DeviceError as error:
        return LaunchFailed(str(error), sticky=error.sticky)
    errors = {name: max(one.largest, again[name].largest) for name, one in first.items()}
    return Checked(artifact, rotation, launches, errors)


def load_again(checked: Checked, data: WorkloadData) -> Checked:
    """The same launches, on the sets where they lie now, with the code loaded anew where that is cheap."""
    kernel = data.device.load(checked.artifact) if data.device.loads_quickly else checked.launches[0].kernel
    launches = [
        replace(launch, kernel=kernel, arguments=data.arguments(index)) for index, launch in enumerate(checked.launches)
    ]
    return replace(checked, rotation=checked.rotation.again(launches), launches=launches)


def recheck(checked: Checked, data: WorkloadData) -> WrongResult | None:
    """After timing: do the timed launches still do the work? One set gets other inputs, while it keeps the outputs of
    an earlier launch, and the sequence that was timed last runs again. A kernel that skips its work when it finds an
    output, or repeats one, is wrong here. Raises `DeviceError`."""
    index = checked.rotation.last_set
    if not data.exchange_inputs(index):
        return None
    checked.rotation.run_again()
    if not isinstance(found := measure_set(data, index), WrongResult):
        return None
    if found.reason not in ("mismatch", "unwritten"):
        return found
    return replace(found, reason="stale_output", detail=f"timed again after the inputs had changed, {found.detail}")
