"""Named GPUs: what a product adds to its compute capability (SMs, L2, memory, clocks).

Owns the product table. The per-SM limits of each come from `compute_capability`; how a user's text finds
a row is `resolve`.

The numbers are those the CUDA driver reports for the product (multiprocessors, L2 size, maximum SM clock,
memory clock, bus width), except where a row's note says otherwise. Bandwidth is twice the memory clock
times the bus width, which is why it can differ by a few percent from the rounded figure on a data sheet.
Memory is the nominal capacity; the driver reports somewhat less, as it keeps a part for itself.
``None`` marks what is not established: it is left out rather than guessed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.targets.compute_capability import limits_of

GIB: Final = 1024**3
MIB: Final = 1024**2
_DATA_SHEET: Final = "bandwidth from the data sheet, memory clock not established"


@dataclass(frozen=True, slots=True)
class _Product:
    """One row. `bus_bits` wide memory at `memory_mhz`, two transfers a clock; or a stated bandwidth."""

    name: str
    capability: str
    sm_count: int
    l2_bytes: int | None
    memory_gib: int
    clock_mhz: int | None
    memory_mhz: int | None
    bus_bits: int | None
    bandwidth: float | None = None
    note: str = ""


_PRODUCTS: Final[dict[str, _Product]] = {
    "v100": _Product("Tesla V100-SXM2", "7.0", 80, 6 * MIB, 32, 1530, 877, 4096),
    "t4": _Product("Tesla T4", "7.5", 40, 4 * MIB, 16, 1590, 5001, 256),
    "a100": _Product("NVIDIA A100-SXM4-80GB", "8.0", 108, 40 * MIB, 80, 1410, 1593, 5120),
    "a100-40gb": _Product("NVIDIA A100-SXM4-40GB", "8.0", 108, 40 * MIB, 40, 1410, 1215, 5120),
    "a10": _Product("NVIDIA A10", "8.6", 72, 6 * MIB, 24, 1695, 6251, 384),
    "a40": _Product("NVIDIA A40", "8.6", 84, 6 * MIB, 48, 1740, 7251, 384),
    "rtx3090": _Product(
        "NVIDIA GeForce RTX 3090", "8.6", 82, 6 * MIB, 24, 1695, 9751, 384, note="SM clock varies by board"
    ),
    "l4": _Product("NVIDIA L4", "8.9", 58, 48 * MIB, 24, 2040, 6251, 192),
    "l40s": _Product("NVIDIA L40S", "8.9", 142, 96 * MIB, 48, 2520, 9001, 384),
    "rtx4090": _Product(
        "NVIDIA GeForce RTX 4090", "8.9", 128, 72 * MIB, 24, 2520, 10501, 384, note="SM clock varies by board"
    ),
    "h100": _Product("NVIDIA H100 80GB HBM3", "9.0", 132, 50 * MIB, 80, 1980, 2619, 5120),
    "h100-pcie": _Product("NVIDIA H100 PCIe", "9.0", 114, 50 * MIB, 80, 1755, 1593, 5120),
    "h200": _Product("NVIDIA H200", "9.0", 132, 60 * MIB, 140, 1980, 3201, 6016),
    "b200": _Product(
        "NVIDIA B200", "10.0", 148, 132_644_864, 180, 1965, None, None, bandwidth=8.0e12, note=_DATA_SHEET
    ),
    "b300": _Product(
        "NVIDIA B300",
        "10.3",
        148,
        None,
        270,
        None,
        None,
        None,
        bandwidth=8.0e12,
        note=_DATA_SHEET + "; L2 and clocks not established",
    ),
    "thor": _Product("NVIDIA Thor", "11.0", 20, 32 * MIB, 128, None, 4266, 256, note="shares its memory with the CPU"),
    "rtx5090": _Product("NVIDIA GeForce RTX 5090", "12.0", 170, 96 * MIB, 32, 2407, 14001, 512),
    "gb10": _Product(
        "NVIDIA GB10",
        "12.1",
        48,
        24 * MIB,
        128,
        2418,
        None,
        None,
        bandwidth=273e9,
        note="bandwidth from the data sheet, as the driver states a data rate for the memory clock; "
        "shares its memory with the CPU",
    ),
}

PRODUCT_NAMES: Final = tuple(_PRODUCTS)


def theoretical_bandwidth(memory_clock_hz: float, bus_width_bits: int) -> float:
    """Bytes/s that a double-data-rate memory can move: 2 x clock x width / 8.

    Source: "Theoretical Bandwidth Calculation" in the CUDA C++ Best Practices Guide.
    """
    return 2.0 * memory_clock_hz * bus_width_bits / 8.0


def product_limits(key: str) -> DeviceLimits:
    """Return the limits of a product by its key in `PRODUCT_NAMES`, such as ``h200``.

    Raises KeyError for another key.
    """
    row = _PRODUCTS[key]
    memory_clock = None if row.memory_mhz is None else row.memory_mhz * 1e6
    bandwidth = row.bandwidth
    if bandwidth is None and memory_clock is not None and row.bus_bits is not None:
        bandwidth = theoretical_bandwidth(memory_clock, row.bus_bits)
    base = limits_of(row.capability)
    product_source = f"product {key}" + (f" ({row.note})" if row.note else "")
    return dataclasses.replace(
        base,
        name=row.name,
        sm_count=row.sm_count,
        l2_bytes=row.l2_bytes,
        memory_bytes=row.memory_gib * GIB,
        memory_bandwidth=bandwidth,
        clock_hz=None if row.clock_mhz is None else row.clock_mhz * 1e6,
        memory_clock_hz=memory_clock,
        source=f"{base.source}; {product_source}",
    )
