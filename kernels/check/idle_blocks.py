"""Is a kernel launched with more blocks than it needs? Launches it with fewer, and looks whether its output is right.

A baseline most of whose blocks return at once makes every speed-up over it too high.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from tunesmith.kernels.backends import Device
from tunesmith.kernels.build.candidate import Candidate
from tunesmith.kernels.check.check import measure_set
from tunesmith.kernels.check.trial import bind
from tunesmith.kernels.launch.workload_data import WorkloadData
from tunesmith.kernels.outcome import WrongResult

_SHARES_WORK = re.compile(r"gridDim|num_groups|get_global_size|nctaid|atomic|atom_|volatile|cooperative_groups")
"""In the source of a kernel whose blocks may do the work of others, or wait for them."""


def surplus_of_blocks(
    device: Device, candidate: Candidate, data: WorkloadData, loaded: dict[str, object] | None = None
) -> float:
    """Blocks of a launch over those that its output needs, by halving the grid along each axis; 1 for a kernel that
    reads the grid's size or uses atomics, of which this cannot be told. loaded: see `bind`. Raises `DeviceError`."""
    if _SHARES_WORK.search(candidate.template.source):
        return 1.0
    launches = bind(device, candidate, data, loaded)
    if not isinstance(launches, list):
        return 1.0
    launch = launches[0]
    grid = launch.geometry.grid
    for axis in range(3):
        while grid[axis] > 1:
            x, y, z = (-(-size // 2) if at == axis else size for at, size in enumerate(grid))
            data.restore_set(0, 0)
            device.launch(replace(launch, geometry=replace(launch.geometry, grid=(x, y, z))))
            device.synchronize()
            if isinstance(measure_set(data, 0), WrongResult):
                break
            grid = (x, y, z)
    return math.prod(launch.geometry.grid) / math.prod(grid)
