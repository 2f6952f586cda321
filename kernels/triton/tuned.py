"""A decorator that gives a Triton kernel the configurations that a tuning found.

`@tuned(configs=[...])` takes the place of `@triton.autotune(configs=[...], key=[...])`; `@tuned()` stands above a
kernel without a list. It never times: a measured shape has its configuration, any other that of the dispatch rule, and
where neither has one, or the kernel is called otherwise than it was tuned, the first of the list serves, or the call as
it is. All processes that read this file choose alike. It needs nothing but Triton.
"""

from __future__ import annotations

from functools import cache
from math import ceil, floor, log2  # noqa: F401 - for the conditions of some tables
from typing import Any

import triton
from triton.runtime.jit import KernelInterface


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def is_pow2(a: int) -> bool:
    return a > 0 and a & (a - 1) == 0


def sizeof(dtype: str) -> int:
    return 1 if dtype == "bool" else int("".join(filter(str.isdigit, dtype.partition("_")[0]))) // 8


# The table
TARGET: tuple[str, Any] = ("", 0)  # backend and architecture of the device that was tuned on
SIZES: dict[str, Any] = {}  # the argument that is a size, or an array's name, rank, dimension, and factor of the extent
TYPES: dict[str, str] = {}  # the array that has a type
FIXED: dict[str, Any] = {}  # what the kernel was tuned for; None: without this argument
GRID: tuple[str, ...] = ()  # parameters by which the grid is computed
CONFIGS: dict[str, dict[str, Any]] = {}
MEASURED: dict[tuple[Any, ...], str | None] = {}  # by sizes, then types; None: nothing was faster than the baseline
REQUIRES: dict[str, Any] = {}  # whether a configuration fits sizes and types


def rule(*shape: Any) -> str | None:
    """The configuration for other shapes than the measured ones, by sizes and types."""
    return None


# The decorator


@cache
def _here() -> bool:
    target = triton.runtime.driver.active.get_current_target()
    return (target.backend, target.arch) == TARGET


def shape_of(given: dict[str, Any]) -> tuple[Any, ...] | None:
    """Sizes and types of a call with these arguments; None where they do not tell."""
    found: list[Any] = []
    for source in SIZES.values():
        argument, rank, dimension, factor = (source, 0, 0, 1) if isinstance(source, str) else source
        value = given.get(argument)
        if rank and len(getattr(value, "shape", ())) != rank:
            return None
        found.append(int(value.shape[dimension]) // factor if rank and value is not None else value)
    names = [str(getattr(given.get(argument), "dtype", None)).rpartition(".")[2] for argument in TYPES.values()]
    return None if None in found else (*found, *(name.replace("e4m3fn", "e4m3") for name in names))


def chosen(given: dict[str, Any], grid: Any = None) -> dict[str, Any]:
    """The configuration for a call; empty where the table has none."""
    as_tuned = all(
        (value := given.get(name, fixed)) is fixed or (value == fixed) is True for name, fixed in FIXED.items()
    )
    if not as_tuned or not _here() or (shape := shape_of(given)) is None:
        return {}
    name = MEASURED[shape] if shape in MEASURED else rule(*shape)
    if name is None or not REQUIRES[name](*shape):
        return {}
    config = CONFIGS[name]
    # A grid of numbers was computed with the values that the caller has.
    return config if callable(grid) or all(given.get(one) == config.get(one) for one in GRID) else {}


class Tuned(KernelInterface):  # type: ignore[misc]
    """A kernel that takes its configuration from the table."""

    def __init__(self, fn: Any, configs: Any) -> None:
        if any(one.pre_hook for one in configs):
            raise ValueError(f"{fn}: a configuration has a pre_hook, which a table cannot hold; use triton.autotune.")
        self.fn, self.arg_names = fn, fn.arg_names
        self.first = configs[0].all_kwargs() if configs else {}

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        given = {**dict(zip(self.arg_names, args)), **kwargs}  # noqa: B905 - as Triton itself
        return self.fn.run(grid=grid, warmup=warmup, **{**self.first, **given, **chosen(given, grid)})


def tuned(configs: Any = (), key: Any = (), **others: Any) -> Any:
    """The decorator. key, others: what triton.autotune takes beside, and nothing here needs."""
    return lambda fn: Tuned(fn, configs)
