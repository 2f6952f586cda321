"""Arguments and results as bytes, for the calls that there are hundreds of a second of.

Ray pickles every argument by itself, with a pickler in Python that can also send code. All of ours are of classes that
both sides import, which the interpreter's own pickler packs in a fraction of the time; this process serves all lanes
of a cluster, so its time for a call bounds how many they can be.
"""

from __future__ import annotations

import pickle
from typing import Any


def pack(*values: Any) -> bytes:
    return pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> tuple[Any, ...]:
    """What was packed by a process of this cluster, which Ray has authenticated."""
    values: tuple[Any, ...] = pickle.loads(data)
    return values


class PackedCompile:
    """For a compile worker: `compile` with its argument and result packed."""

    def compile_packed(self, data: bytes) -> bytes:
        return pack(self.compile(*unpack(data)))  # type: ignore[attr-defined]


class PackedVisit:
    """For what stands in for a lane's host: `visit` with its arguments and result packed. It keeps no deadline of its
    own."""

    def visit_packed(self, data: bytes, seconds: float) -> bytes:
        return pack(self.visit(*unpack(data)))  # type: ignore[attr-defined]
