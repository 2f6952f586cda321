"""Where a search of a template by rules begins: the combinations of rewrites that suit what limits the kernel.

Owns their order. The kernel as it came is always a start as well, and a search is free to leave all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from tunesmith.kernels.rewrite.template import NAME
from tunesmith.kernels.spec.template import Config, Template, config_key

Limit = Literal["memory", "compute", "latency", "unknown"]
_REUSE: tuple[dict[str, tuple[int, ...]], ...] = (
    {"TILE": (32,)},
    {"OUTPUT_TILE": (64,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (4,), "OUTPUT_COLUMNS": (4,)},
    {"OUTPUT_TILE": (128,), "OUTPUT_DEPTH": (16,), "OUTPUT_ROWS": (8,), "OUTPUT_COLUMNS": (8,)},
    {"LANES": (32,)},
    {"OWN_BINS": (1,), "ITEMS": (32, 8), "BLOCK": (256,)},
    {"HALO": (1,)},
)
"""Each element is needed by several threads: it is read once for all of them."""
_STREAMS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"VEC": (16, 8, 4, 2), "STORES": (1,)},
    {"VEC": (4, 2), "LOADS": (2,), "STORES": (1,)},
    {"TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2), "AHEAD": (1,)},
    {"AHEAD": (1,), "TEAM_ROWS": (4,), "BLOCK": (16,), "ROW_VEC": (8, 4, 2), "FAST_MATH": (1,), "INDEX_BITS": (32,)},
    {"AHEAD": (2,), "TEAM_ROWS": (8,), "BLOCK": (8,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"AHEAD": (1,), "TEAM_ROWS": (4,), "BLOCK": (32,), "ROW_VEC": (8, 4, 2), "UNROLL": (1,), "INDEX_BITS": (32,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (4,)},
    {"SHUFFLES": (1,), "ROW_VEC": (8, 4, 2), "KEEP": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (256,), "KEEP": (2,), "LOADS": (2,), "STORES": (1,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (256,), "KEEP": (2,), "AHEAD": (2,)},
    {"ROW_VEC": (8, 4, 2), "BLOCK": (128,), "TEAM_BLOCKS": (4,), "STORES": (1,)},
    {"ITEMS": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "LOADS": (1,)},
    {"ITEMS_Y": (4, 2), "BLOCKED_Y": (1,)},
)
"""Each element is needed once: it comes in wide accesses and displaces no data that is needed again. Short rows have a
quarter or half of a warp each, in blocks of two warps or more, and all that a thread needs is on its way at once."""
_ALU: tuple[dict[str, tuple[int, ...]], ...] = ({"FAST_MATH": (1,), "RESTRICT": (1,)}, {"UNROLL": (4,)})


def starts(template: Template, limit: Limit, fits: Callable[[Config], bool]) -> tuple[Config, ...]:
    """Configurations to try first, the most promising first; none for a template that no rule made. limit: what bounds
    the kernel. fits: whether a configuration is feasible."""
    if template.name != NAME:
        return ()
    order = (*_REUSE, *_ALU, *_STREAMS) if limit == "compute" else (*_REUSE, *_STREAMS, *_ALU)
    found = [config for wanted in order for config in _nearest(template, wanted, fits)]
    return tuple({config_key(config): config for config in found}.values())


def _nearest(
    template: Template, wanted: dict[str, tuple[int, ...]], fits: Callable[[Config], bool]
) -> Iterator[Config]:
    """The default with the first of the values that fit together; a value may be left out, but for that of the main
    parameter, which is named first: nothing where that is missing."""
    default = template.default_config
    known = {name.removeprefix("TUNED_"): name for name in default}
    main = next(iter(wanted))
    if main not in known:
        return
    choices = {
        known[name]: [type(default[known[name]])(value) for value in values]
        + ([default[known[name]]] if name != main else [])
        for name, values in wanted.items()
        if name in known
    }
    for values in itertools.product(*choices.values()):
        config = {**default, **dict(zip(choices, values, strict=True))}
        if fits(config):
            yield config
            return
