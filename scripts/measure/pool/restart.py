"""What it takes to replace the process of a lane, and whether that disturbs what is measured beside it."""

from __future__ import annotations

import math
import statistics
import threading
import time
from typing import Any

import numpy as np

from tunesmith.actors.process.isolated import Isolated, preload
from tunesmith.actors.process.packed import pack, unpack
from tunesmith.actors.process.workers import CompileWorker, Lane
from tunesmith.cli.measure.pool.planted import small
from tunesmith.cli.measure.pool.pool_runs import Place
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.candidate import Candidate, types_key
from tunesmith.kernels.build.specialise import specialise
from tunesmith.kernels.measure.timing import Precision
from tunesmith.kernels.outcome import Measured

AT_ONCE = (1, 1, 2, 4, 8)
CONFIGS = 8
COMPILE_SECONDS = 60.0
BLOCKS = 4
BLOCK_SECONDS = 2.0
OFF = 0.01
"""A median that differs by more from what it is in quiet is off."""


def measure_restart(place: Place) -> dict[str, Any]:
    """Seconds until processes made at once are all ready, and until one that is killed is gone; then the medians of the
    same configurations in quiet, beside a process that only stands by, and beside one after another being made."""
    preload(place.device.backend)
    ready, gone = [], []
    for count in AT_ONCE:
        started = time.monotonic()
        lanes = [_begin(place) for _ in range(count)]
        for lane in lanes:
            lane.answer(None)
        ready.append({"at_once": count, "seconds": round(time.monotonic() - started, 4)})
        for lane in lanes:
            started = time.monotonic()
            lane.end()
            gone.append(time.monotonic() - started)
    return {"ready": ready, "gone_seconds": round(statistics.median(gone), 4), "beside": _beside(place)}


def _begin(place: Place) -> Isolated:
    made = Isolated("run", Lane, place.task, place.device.limits, place.device.index, place.seed)
    made.begin("start", None, [place.workload], {})
    return made


def _beside(place: Place) -> dict[str, Any]:
    visits = _visits(place)
    lane = _begin(place)
    lane.answer(None)
    seen: dict[str, list[tuple[int, float]]] = {"quiet": [], "standing_by": [], "being_made": []}
    made = 0
    for _ in range(BLOCKS):
        seen["quiet"] += _block(lane, visits)
        beside = _begin(place)
        beside.answer(None)
        seen["standing_by"] += _block(lane, visits)
        beside.end()
        until = threading.Event()
        maker = _Maker(place, until)
        maker.start()
        seen["being_made"] += _block(lane, visits)
        until.set()
        maker.join()
        made += maker.count
    lane.end()
    usual = {
        number: statistics.median(seconds for which, seconds in seen["quiet"] if which == number)
        for number in range(len(visits))
    }
    return {"made": made} | {name: _summary([s / usual[which] for which, s in found]) for name, found in seen.items()}


class _Maker(threading.Thread):
    """Makes a process and ends it, again and again, until `until` is set."""

    def __init__(self, place: Place, until: threading.Event) -> None:
        super().__init__()
        self._place, self._until, self.count = place, until, 0

    def run(self) -> None:
        while not self._until.is_set():
            one = _begin(self._place)
            one.answer(None)
            one.end()
            self.count += 1


def _visits(place: Place) -> list[bytes]:
    template, workload = small(place.template), place.task.workload(place.workload)
    found = []
    # In a process of its own: a compiler may end the one it is in.
    with Isolated("compile", CompileWorker, place.device.limits, place.device.index) as compiler:
        for config in place.configs(template, CONFIGS):
            made = compiler.call("compile", COMPILE_SECONDS, specialise(template, config, workload.types))
            if isinstance(made, Artifact):
                candidate = Candidate(template, config, {types_key(workload): made})
                found.append(pack(candidate, (workload.name,), Precision()))
    return found


def _block(lane: Isolated, visits: list[bytes]) -> list[tuple[int, float]]:
    """Which configuration, and its median, of visits for `BLOCK_SECONDS`."""
    found, end, number = [], time.monotonic() + BLOCK_SECONDS, 0
    while time.monotonic() < end:
        packed, _ = lane.call("visit", None, visits[number % len(visits)])
        for outcome in unpack(packed)[0].values():
            if isinstance(outcome, Measured):
                found.append((number % len(visits), outcome.seconds))
        number += 1
    return found


def _summary(ratios: list[float]) -> dict[str, float]:
    """Of medians to what they are in quiet."""
    values = np.array(ratios) if ratios else np.array([math.nan])
    return {
        "visits": len(ratios),
        "median": round(float(np.median(values)), 5),
        "p99": round(float(np.quantile(values, 0.99)), 4),
        "off_by_1_percent": round(float((np.abs(values - 1) > OFF).mean()), 4),
    }
