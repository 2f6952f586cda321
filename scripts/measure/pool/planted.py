"""Spaces for measuring the pool itself: silu_and_mul with few parameters, and with planted killers among its points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.hw.limits import DeviceLimits
from tunesmith.kernels.outcome import CompileFailed, Crashed, LaunchFailed, Measured, Outcome, Rejected, TimedOut
from tunesmith.kernels.space.feasible import feasible
from tunesmith.kernels.spec.parameter import Config, Parameter
from tunesmith.kernels.spec.task import Task, Workload
from tunesmith.kernels.spec.template import Template

SMALL: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    # 3 * 4 * 2 * 3 * 3 = 216 points: without WALK the two caps are one.
    "cuda": {
        "BLOCK_X": (128, 256, 512),
        "BLOCK_Y": (1,),
        "VEC": (1, 2, 4, 8),
        "UNROLL": (1, 2),
        "WALK": (0, 1),
        "GRID_CAP": (528, 2112),
        "CACHE": (0, 1, 2),
        "FAST_EXP": (0,),
    },
    "opencl": {
        "GROUP_X": (8, 16, 32),
        "GROUP_Y": (1,),
        "VEC": (8, 16),
        "ITEMS": (1, 2),
        "SIDE_BY_SIDE": (0,),
        "FAST_EXP": (0,),
    },
}
KILLER = "KILLER"
"""The parameter that a planted killer has at one of the keys of `KILLERS`, and everything else at 0."""


@dataclass(frozen=True, slots=True)
class Killer:
    """What goes wrong, and which outcomes say so rightly."""

    what: str
    right: tuple[type[Outcome], ...]


KILLERS: Mapping[str, Mapping[int, Killer]] = {
    "cuda": {
        1: Killer("illegal address", (LaunchFailed,)),
        2: Killer("endless loop", (TimedOut,)),
        3: Killer("trap, as by an assert", (LaunchFailed,)),
        4: Killer("too much shared memory", (Rejected,)),
        5: Killer("oversize allocation", (LaunchFailed, CompileFailed)),
    },
    "opencl": {
        1: Killer("illegal address", (Crashed, LaunchFailed)),
        2: Killer("endless loop", (TimedOut,)),
        3: Killer("trap", (Crashed, LaunchFailed)),
        4: Killer("too much local memory", (CompileFailed, Rejected, LaunchFailed, Crashed)),
    },
}
_CUDA_GLOBAL = "\n#if KILLER == 5\n__device__ char huge[1ull << 38];\n#endif\n"
_CUDA_BODY = """
#if KILLER == 1
    *(volatile int*)8 = 1;
#elif KILLER == 2
    for (long long start = clock64(); clock64() - start >= 0;) { }
#elif KILLER == 3
    __trap();
#elif KILLER == 5
    if (d < 0) huge[n] = 1;
#endif
"""
_OPENCL_BODY = """
#if KILLER == 1
    *(volatile __global int*)(ulong)8 = 1;
#elif KILLER == 2
    volatile __global int* spin = (volatile __global int*)out;
    *spin = 1;
    while (*spin) *spin = 1;
#elif KILLER == 3
    __builtin_trap();
#elif KILLER == 4
    __local char big[1 << 30];
    big[get_local_id(0)] = 1;
    if (n < 0) *(__global char*)out = big[n & 1023];
#endif
"""


def small(template: Template) -> Template:
    """`template` with the values of `SMALL`."""
    return with_values(template, SMALL[template.backend])


def with_values(template: Template, values: Mapping[str, Sequence[Any]]) -> Template:
    parameters = tuple(
        p.model_copy(update={"values": tuple(values[p.name]), "default": None}) if p.name in values else p
        for p in template.parameters
    )
    return template.model_copy(update={"parameters": parameters})


def with_killers(template: Template) -> Template:
    """`template` with the parameter `KILLER`, whose values make its kernel kill what runs it."""
    cuda = template.backend == "cuda"
    start = template.source.index("{", template.source.rindex("silu_and_mul("))
    source = template.source[: start + 1] + (_CUDA_BODY if cuda else _OPENCL_BODY) + template.source[start + 1 :]
    if cuda:
        # After the headers and types, before the kernel.
        place = source.index('extern "C"')
        source = source[:place] + _CUDA_GLOBAL + source[place:]
    values = (0, *KILLERS[template.backend])
    changes: dict[str, Any] = {
        "source": source,
        "parameters": (*template.parameters, Parameter(name=KILLER, values=values)),
    }
    if cuda:
        shared = f"300000 if {KILLER} == 4 else 0"
        changes |= {"device_globals": ("huge",), "launch": template.launch.model_copy(update={"shared_bytes": shared})}
    return template.model_copy(update=changes)


def drawn(template: Template, workload: Workload, limits: DeviceLimits, count: int, seed: int) -> list[Config]:
    """At most `count` feasible configurations of `template`, all different, drawn from `seed`."""
    space = feasible(template, [workload], limits)
    order = np.random.default_rng(seed).permutation(len(space))[:count]
    return [space.config(int(point)) for point in order]


def planted(configs: Sequence[Config], backend: str, share: float, seed: int) -> list[Config]:
    """`configs` with KILLER at 0, but for `share` of them, at random places, which have its values in turn."""
    kinds = list(KILLERS[backend])
    count = max(len(kinds), round(share * len(configs)))
    places = np.random.default_rng(seed).permutation(len(configs))[:count]
    killers = {int(place): kinds[turn % len(kinds)] for turn, place in enumerate(places)}
    return [{**config, KILLER: killers.get(number, 0)} for number, config in enumerate(configs)]


def is_right(config: Config, outcome: Outcome, backend: str) -> bool:
    """Whether `outcome` is what the point at `config` deserves."""
    kind = int(config.get(KILLER, 0))
    return isinstance(outcome, KILLERS[backend][kind].right if kind else (Measured,))


def base_task(task: Task, backend: str) -> Template:
    return task.sources(backend).templates[0]
