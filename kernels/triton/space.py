"""The choices of a Triton kernel: values around its list's or its launch's, and the limits that its tiles must fit.

The rule of shared memory was measured with Triton 3.9 for compute capability 9.0 (fp16, fp32, products and attention, 1
to 5 stages), and is assumed for 8.x: a loop keeps `num_stages` buffers of each tile that it loads for products by
warpgroups (9.0, at least 64 rows and 4 warps), else `num_stages - 1`; tiles of 2 bytes only where rows are multiples of
16 elements, as other loads are not copied asynchronously. One-byte types may be transposed on the way, and are left to
the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunesmith.kernels.spec.template import TRITON_OPTIONS, Constraint, Parameter, Template
from tunesmith.kernels.triton.reading import Loop, Reading

SHARED_BYTES = (
    "(101376 if compute_capability in (86, 89, 120, 121) else 166912 if compute_capability == 80 else 232448)"
)
"""Of a block by opt-in (CUDA C++ Programming Guide, technical specifications), 227 KiB where it is not known better."""
LEAST_TILE = 16
"""Rows, columns and depth of a product by `tl.dot`, at least."""
SUMS_PER_WARP = "(32768 if compute_capability == 0 else 8192)"
"""Registers of a warp: 32 threads with 256, of which one holds no data; AMD's 64 lanes with 512 at most. Beyond,
the sums of a product go to memory and back, and a compilation takes minutes. Compute capabilities 10.x and 11.x keep
them elsewhere (tensor memory)."""


def is_power(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value & (value - 1) == 0


def around(values: Iterable[Any], least: int = 1, most: int = 1 << 16) -> tuple[Any, ...]:
    """The powers of two around `values`, one step beyond each end; `values` alone where others are in."""
    given = list(dict.fromkeys(values))
    if not all(map(is_power, given)):
        return (False, True) if all(isinstance(one, bool) for one in given) else tuple(given)
    low, high = max(min(given) // 2, least), min(max(given) * 2, most)
    powers = [1 << at for at in range(17) if low <= 1 << at <= high]
    return tuple(sorted({given[0], *(one for one in given if one >= least), *powers}))


def parameters_of(
    reading: Reading, tuned: Mapping[str, Sequence[Any]], passed: Mapping[str, Any], *, loops: bool
) -> list[Parameter]:
    """tuned: values of constexprs, the first of which is where a search starts; passed: by the launch."""
    multiplied = {name for dims in reading.products for name in dims}
    found = [
        Parameter(name=name, values=around(values, LEAST_TILE if name in multiplied else 1), default=values[0])
        for name, values in tuned.items()
        if name not in TRITON_OPTIONS
    ]
    for name, start in (("num_warps", 4), ("num_stages", 3)):
        given = [one for one in (*tuned.get(name, ()), passed.get(name)) if isinstance(one, int)] or [start]
        usual = (1, 2, 4, 8, *((16,) if max(given) >= 8 else ())) if name == "num_warps" else (1, 2, 3, 4, 5)
        if name == "num_warps" or loops:
            found.append(Parameter(name=name, values=tuple(sorted({*usual, *given})), default=given[0]))
    for name in ("num_ctas", "maxnreg"):
        if len(listed := tuple(dict.fromkeys(tuned.get(name, ())))) > 1:
            found.append(Parameter(name=name, values=listed))
    return found


def constraints_of(
    reading: Reading, known: Mapping[str, str], dtypes: Mapping[str, str], sizes: Sequence[str]
) -> list[Constraint]:
    """known: names of parameters and sizes, and values of constants, by what the kernel calls them; dtypes: of arrays;
    sizes: of which rows are multiples or not."""
    found = dict[str, Constraint]()
    for loop in reading.loops:
        if not loop.own and (text := _buffers(loop, known, dtypes)):
            whole = [f"{one} % 16 != 0" for one in sizes]
            small = " or ".join(dict.fromkeys(f"sizeof({dtypes[root]}) == 1" for root, _ in loop.operands))
            odd = f" or sizeof({dtypes[next(iter(loop.operands))[0]]}) == 2 and ({' or '.join(whole)})" if whole else ""
            free = f"compute_capability < 80 or {known['num_stages']} == 1 or {small}{odd}"
            expression = f"{free} or {text} <= {SHARED_BYTES}"
            found[expression] = Constraint(
                expression=expression,
                because="The tiles that a loop loads ahead, one for each stage, fit the shared memory of a block.",
            )
    warps = known.get("num_warps", "4")
    for tile in reading.sums:
        if all(name in known or name.isdigit() for name in tile):
            rows, columns = (known.get(name, name) for name in tile)
            kept = f"{rows} * {columns} < {SUMS_PER_WARP} * {warps}"
            found[kept] = Constraint(
                expression=f"100 <= compute_capability < 120 or {kept}",
                because="The sums of a product fit the registers of its threads.",
            )
    return list(found.values())


def _buffers(loop: Loop, known: Mapping[str, str], dtypes: Mapping[str, str]) -> str:
    """The bytes of a loop's tiles in all stages, at least; empty where they are not known."""
    names = {name for _, tile in loop.operands for name in tile} | loop.rows.keys()
    if "num_stages" not in known or not all(name in known or name.isdigit() for name in names):
        return ""
    tiles = [
        " * ".join([*(known.get(name, name) for name in tile), f"sizeof({dtypes[root]})"])
        for root, tile in loop.operands
    ]
    rows = [f"{known.get(name, name)} >= 64" for name in loop.rows]
    by_warpgroups = " and ".join(["compute_capability == 90", *rows, f"{known.get('num_warps', '4')} >= 4"])
    stages = known["num_stages"]
    return f"({stages} if {by_warpgroups} else {stages} - 1) * ({' + '.join(tiles)})"


def template_text(template: Template) -> str:
    """template.toml."""
    lines = ['name = "triton"', 'source_file = "kernel.py"', "parameters = ["]
    for one in template.parameters:
        values, start = json.dumps(one.values), json.dumps(one.start)
        lines.append(f'    {{ name = "{one.name}", values = {values}, default = {start} }},')
    launch = template.launch
    lines += ["]", "", "[launch]", f"grid = {json.dumps(launch.grid)}", f"block = {json.dumps(launch.block)}"]
    for rule in template.constraints:
        lines += ["", "[[constraints]]", f"expression = {json.dumps(rule.expression)}"]
        lines.append(f"because = {json.dumps(rule.because)}")
    return "\n".join([*lines, ""])
