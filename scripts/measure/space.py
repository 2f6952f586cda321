"""How long a feasible space takes to construct, here and with Kernel Tuner's own constructor, in one run.

Kernel Tuner is no dependency; the script compares with it where it can be imported and says so where it cannot:

    python -m venv /tmp/compare && /tmp/compare/bin/pip install kernel_tuner numpy pydantic
    PYTHONPATH=. /tmp/compare/bin/python scripts/measure/space.py

The spaces: the parameters of a matrix multiplication in the style of CLBlast, a convolution with tiling, and one of
about a million feasible points out of a hundred million. Both constructors get the same parameters and the same
conditions as text, and must agree on the number of points.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

from tunesmith.kernels.space.rule import Rule
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.parameter import Parameter

UNLIMITED_THREADS = 1 << 30
"""Kernel Tuner's own limit on threads is switched off: the conditions say it all."""


@dataclass(frozen=True, slots=True)
class Case:
    """A space to construct."""

    name: str
    values: dict[str, tuple[int, ...]]
    conditions: tuple[str, ...]


CASES = (
    Case(
        "gemm",
        {
            "MWG": (16, 32, 64, 128),
            "NWG": (16, 32, 64, 128),
            "KWG": (16, 32),
            "MDIMC": (8, 16, 32),
            "NDIMC": (8, 16, 32),
            "MDIMA": (8, 16, 32),
            "NDIMB": (8, 16, 32),
            "KWI": (2, 8),
            "VWM": (1, 2, 4, 8),
            "VWN": (1, 2, 4, 8),
            "STRM": (0, 1),
            "STRN": (0, 1),
            "SA": (0, 1),
            "SB": (0, 1),
        },
        (
            "KWG % KWI == 0",
            "MWG % (MDIMC * VWM) == 0",
            "NWG % (NDIMC * VWN) == 0",
            "MWG % (MDIMA * VWM) == 0",
            "NWG % (NDIMB * VWN) == 0",
            "KWG % ((MDIMC * NDIMC) / MDIMA) == 0",
            "KWG % ((MDIMC * NDIMC) / NDIMB) == 0",
            "MDIMC * NDIMC <= 1024",
            "SA * KWG * MWG * 4 + SB * KWG * NWG * 4 <= 49152",
        ),
    ),
    Case(
        "convolution",
        {
            "BX": tuple(range(16, 257, 16)),
            "BY": (1, 2, 4, 8, 16),
            "TX": tuple(range(1, 9)),
            "TY": tuple(range(1, 9)),
            "PAD": (0, 1),
            "READ_ONLY": (0, 1),
            "SHARED": (0, 1),
        },
        (
            "BX * BY >= 32",
            "BX * BY <= 1024",
            "PAD == 0 or BX % 32 != 0",
            "SHARED == 0 or READ_ONLY == 0",
            "SHARED == 0 or (BX * TX + 14) * (BY * TY + 14) * 4 <= 49152",
        ),
    ),
    Case(
        "a million",
        {
            "BX": tuple(1 << i for i in range(10)),
            "BY": tuple(1 << i for i in range(10)),
            "TX": tuple(range(1, 11)),
            "TY": tuple(range(1, 11)),
            "TZ": tuple(range(1, 11)),
            "U": tuple(range(1, 11)),
            "V": (1, 2, 4, 8),
            "STAGES": tuple(range(1, 26)),
        },
        (
            "BX * BY >= 32",
            "BX * BY <= 1024",
            "TX * TY * TZ <= 80",
            "TX % V == 0",
            "U * STAGES <= 40",
            "BX * TX * BY * TY <= 16384",
        ),
    ),
)


def ours(case: Case) -> tuple[int, float]:
    """Feasible points and seconds."""
    started = time.perf_counter()
    parameters = [Parameter(name=name, values=values) for name, values in case.values.items()]
    space = Space.build(parameters, [Rule.from_expression(parse(text)) for text in case.conditions])
    return len(space), time.perf_counter() - started


def theirs(case: Case) -> tuple[int, float] | None:
    """The same by Kernel Tuner; None where it is not installed."""
    try:
        from kernel_tuner.searchspace import Searchspace  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    started = time.perf_counter()
    values = {name: list(listed) for name, listed in case.values.items()}
    space = Searchspace(values, list(case.conditions), UNLIMITED_THREADS)
    return int(space.size), time.perf_counter() - started


def main() -> int:
    """Prints a line a case; the exit status is 1 when the two disagree on the number of points."""
    parser = argparse.ArgumentParser(description="Times the construction of feasible spaces.")
    parser.add_argument("--repeats", type=int, default=3, help="constructions of which the fastest counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    arguments = parser.parse_args()
    agreed, rows = True, []
    for case in CASES:
        cartesian = 1
        for listed in case.values.values():
            cartesian *= len(listed)
        points, seconds = min((ours(case) for _ in range(arguments.repeats)), key=lambda result: result[1])
        other = [theirs(case) for _ in range(arguments.repeats)]
        timed = [result for result in other if result is not None]
        best = min(timed, key=lambda result: result[1]) if timed else None
        agreed = agreed and (best is None or best[0] == points)
        rows.append(
            {
                "case": case.name,
                "cartesian": cartesian,
                "feasible": points,
                "seconds": round(seconds, 4),
                "kernel_tuner_feasible": None if best is None else best[0],
                "kernel_tuner_seconds": None if best is None else round(best[1], 4),
                "ratio": None if best is None else round(best[1] / seconds, 1),
            }
        )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(", ".join(f"{key} {value}" for key, value in row.items()))
        if any(row["ratio"] is None for row in rows):
            print("Kernel Tuner is not installed here, so that there is nothing to compare with; see the docstring.")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
