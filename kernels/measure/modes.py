"""Times that are not the kernel's with a cold cache, measured apart so that they are never taken for it.

Published speed-ups often mix these up: a warm last cache, and the cost of a call from the host, flatter some kernels
and hide differences between others. Tunesmith decides by cold times only and shows the others with their names.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tunesmith.kernels.backends import Device
from tunesmith.kernels.check.trial import Checked
from tunesmith.kernels.launch.workload_data import WorkloadData
from tunesmith.kernels.measure.timing import FEWEST_SAMPLES, Estimate, Precision, sample_until

WARM_LAUNCHES = 16
CALLS = 64
PRECISION = Precision(target=0.01, min_samples=FEWEST_SAMPLES, max_samples=50, budget_seconds=0.3)


@dataclass(frozen=True, slots=True)
class Modes:
    """Seconds a launch. warm: the same buffers again and again, as far as they fit in the last cache; call_to_call:
    calls from the host one after the other on all sets in turn, launch overhead included, by the host's clock."""

    warm: Estimate
    call_to_call: Estimate


def measure_modes(device: Device, checked: Checked, data: WorkloadData) -> Modes:
    """Both modes of a checked candidate. In-place kernels work on what they wrote before. Raises `DeviceError`."""
    data.restore()
    sequence = device.sequence([checked.launches[0]] * WARM_LAUNCHES)
    sequence.seconds()
    warm = sample_until(lambda count: [one / WARM_LAUNCHES for one in device.times([sequence] * count)], PRECISION)
    data.restore()

    def calls(_: int = 1) -> list[float]:
        device.synchronize()
        started = time.perf_counter()
        for number in range(CALLS):
            device.launch(checked.launches[number % len(checked.launches)])
        device.synchronize()
        return [(time.perf_counter() - started) / CALLS]

    calls()
    return Modes(warm, sample_until(calls, PRECISION))
