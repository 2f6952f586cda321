"""DeviceLimits: the resources of one block and of one multiprocessor of a device.

Owns the record, its JSON form and the check of a single field's value. It does not know any particular
device: the table is in `compute_capability`, the products in `products`, real machines in `probe`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tunesmith.hw.errors import TunesmithError

Backend = Literal["cuda", "opencl"]
Kind = Literal["gpu", "cpu"]
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of one device; ``None`` means that the notion does not apply or is not known.

    A rule that needs a limit which is ``None`` simply does not apply: an OpenCL CPU device has no
    registers, so nothing is ever rejected for using too many. Terms are CUDA's; for OpenCL read
    work-group for block, work-item for thread, local memory for shared memory, compute unit for SM.

    Units: memory in bytes, registers in 32-bit registers, clocks in Hz, bandwidth in bytes/s.
    """

    name: str
    backend: Backend
    kind: Kind
    #: ``sm_90`` for CUDA; the device version string for OpenCL.
    arch: str
    max_threads_per_block: int
    max_block_dims: Triple
    max_grid_dims: Triple | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    registers_per_block: int | None = None
    max_registers_per_thread: int | None = None
    #: Registers are handed to a warp in multiples of this many.
    register_allocation_unit: int | None = None
    #: SM sub-partitions. The launch check rounds a block's warps up to a multiple of it, and a warp's
    #: registers come from one sub-partition's share of the register file.
    warp_allocation_granularity: int | None = None
    shared_per_sm: int | None = None
    #: What a block may use without opting in (48 KiB on every CUDA device since compute capability 2.0).
    shared_per_block: int | None = None
    #: What a block may use after opting in to more dynamic shared memory; excludes the reserved part.
    shared_per_block_optin: int | None = None
    #: What the driver takes for itself in each block (1 KiB from compute capability 8.0 on).
    shared_reserved_per_block: int | None = None
    shared_allocation_unit: int | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    #: Theoretical: twice the memory clock times the bus width. A measured roof is in `roofline`.
    memory_bandwidth: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    #: Where the numbers came from: ``driver``, ``table: ...``, ``file ...``.
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON types; `from_json` restores an equal record."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceLimits:
        """Restore what `to_json` wrote.

        Raises TunesmithError, naming the key, where one is unknown, missing or holds the wrong type.
        """
        values = {key: check_field(key, value, where="the device description") for key, value in data.items()}
        missing = sorted(_REQUIRED - values.keys())
        if missing:
            raise TunesmithError(
                f"The device description lacks {', '.join(missing)}: write it again with DeviceLimits.to_json()."
            )
        return cls(**values)


_CHOICES: Final[dict[str, tuple[str, ...]]] = {"backend": ("cuda", "opencl"), "kind": ("gpu", "cpu")}
_TEXT: Final = frozenset({"name", "arch", "source"})
_TRIPLES: Final = frozenset({"max_block_dims", "max_grid_dims"})
_RATES: Final = frozenset({"memory_bandwidth", "clock_hz", "memory_clock_hz"})
#: Counts for which zero is a real value: Volta and Turing reserve no shared memory.
_MAY_BE_ZERO: Final = frozenset({"shared_reserved_per_block"})
_REQUIRED: Final = frozenset(
    field.name for field in dataclasses.fields(DeviceLimits) if field.default is dataclasses.MISSING
)
FIELD_NAMES: Final = tuple(field.name for field in dataclasses.fields(DeviceLimits))


def check_field(key: str, value: object, *, where: str) -> Any:
    """Return `value` in the type that field `key` of DeviceLimits holds (a list becomes a tuple).

    `where` names the origin in messages, such as ``my_gpu.toml``. Raises TunesmithError.
    """
    if key not in FIELD_NAMES:
        raise TunesmithError(f"{where} has the unknown key '{key}': the keys are {', '.join(FIELD_NAMES)}.")
    if value is None and key not in _REQUIRED and key != "source":
        return None
    if key in _CHOICES:
        if value in _CHOICES[key]:
            return value
        raise _wrong(where, key, value, " or ".join(repr(choice) for choice in _CHOICES[key]))
    if key in _TEXT:
        if isinstance(value, str):
            return value
        raise _wrong(where, key, value, "a text")
    if key in _TRIPLES:
        if isinstance(value, list | tuple) and len(value) == 3 and all(_is_count(n) for n in value):
            return tuple(value)
        raise _wrong(where, key, value, "a list of three positive whole numbers")
    if key in _RATES:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
        raise _wrong(where, key, value, "a positive number")
    if _is_count(value) or (key in _MAY_BE_ZERO and value == 0 and not isinstance(value, bool)):
        return value
    raise _wrong(where, key, value, "a positive whole number")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _wrong(where: str, key: str, value: object, wanted: str) -> TunesmithError:
    return TunesmithError(f"{where} gives {value!r} for '{key}': write {wanted}.")
