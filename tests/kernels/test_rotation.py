"""Samples find their data gone from the last cache, whichever way they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.launch.rotation import Rotation, window_for
from tunesmith.kernels.spec.task import Geometry


def recorder(ran: list[int], timed: list[range]) -> Any:
    """A device on which a launch is the number of its set. ran: launches, in order; timed: places of samples there."""

    def times(sequences: Sequence[Any]) -> list[float]:
        for one in sequences:
            timed.append(range(len(ran), len(ran) + len(one)))
            ran.extend(one)
        return [1e-6 * len(one) for one in sequences]

    return SimpleNamespace(sequence=list, times=times)


@given(
    sets=st.integers(1, 30),
    seconds=st.floats(1e-6, 1e-2),
    asked=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    checked=st.integers(0, 29),
    rounds=st.booleans(),
    checked_before=st.booleans(),
)
def test_no_launch_that_is_timed_is_on_what_has_just_run(
    sets: int, seconds: float, asked: list[int], checked: int, rounds: bool, checked_before: bool
) -> None:
    """Half of the sets, or more, come between two launches on one. There are sets for three times the last cache."""
    ran, timed, window = list[int](), list[range](), window_for(seconds, sets, 1e-4, rounds=rounds)
    rotation = Rotation(recorder(ran, timed), list[Any](range(sets)), window, checked % sets)
    if checked_before:
        rotation.run_first()
    assert [len(rotation.take(count)) for count in asked] == asked
    del timed[0]  # `run_first` is not timed
    timed_at = {at for sample in timed for at in sample}
    last = dict[int, int]()
    for at, index in enumerate(ran):
        if index in last and at in timed_at:
            assert len(set(ran[last[index] + 1 : at])) >= sets // 2 - 1, f"{ran[:at]} and then {index}"
        last[index] = at
    for sample in timed:
        launched = [ran[at] for at in sample]
        assert len(launched) == rotation.window == window
        assert launched.count(launched[-1]) == 1, "what is checked is the result of one launch"
    assert rotation.last_set == launched[-1] and len(timed) == sum(asked)


# One block that waits for nearly every load: four times as long from memory as from the last cache.
CHASE = """
extern "C" __global__ void chase(const unsigned* next, unsigned* out, int steps) {
    unsigned at = threadIdx.x * 32;
    for (int i = 0; i < steps; ++i) at = next[at];
    out[threadIdx.x] = at;
}
"""
LINES = 1 << 16


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 6])
def test_a_sample_on_a_gpu_is_cold_from_the_first_on(count: int) -> None:
    """Sets are small against the last cache, and a sample takes few of them: the first of a set is as slow as after all
    of the cache was overwritten, and clearly slower than on what has just run."""
    here = probe_cuda().devices[0]
    device = open_device(here.limits, here.index)
    artifact = open_compiler(here.limits).compile(Specialised("cuda", "chase", CHASE))
    assert isinstance(artifact, Artifact)
    kernel = device.load(artifact)
    rng = np.random.default_rng(0)
    nbytes = LINES * 128
    out = device.allocate(4096)
    launches = []
    for _ in range(math.ceil(device.cold_bytes / nbytes) + 1):
        order = rng.permutation(LINES).astype(np.uint32)
        following = np.zeros((LINES, 32), np.uint32)
        following[order, 0] = np.roll(order, -1) * 32
        buffer = device.allocate(nbytes)
        device.write(buffer, following.view(np.uint8).reshape(-1))
        launches.append(BoundLaunch(kernel, Geometry((1, 1, 1), (32, 1, 1)), (buffer, out, np.int32(400))))
    flush = device.allocate(2 * device.cold_bytes)
    overwritten, again = device.allocate(device.cold_bytes), device.sequence([launches[0]])
    cold, warm = [], []
    for _ in range(9):
        device.copy(overwritten, device.view(flush, 0, device.cold_bytes))
        cold += device.times([again])
        warm += device.times([again])
    assert np.median(warm) < 0.8 * np.median(cold), "the kernel shows where its data come from"
    rotation = Rotation(device, launches, 1)
    samples = [one for _ in range(6 // count) for one in rotation.take(count)]
    assert np.median(samples) == pytest.approx(np.median(cold), rel=0.1)
