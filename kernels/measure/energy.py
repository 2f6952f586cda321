"""The energy of a launch: launches repeated for a window, by the device's counter of the whole board's energy.

The counter of an NVIDIA GPU moves every 20 to 100 ms and takes milliseconds to read. A thread reads it as often as it
can while launches follow each other; a window begins and ends where it moved. When exactly it moved between two
readings remains unknown: `Energy.error`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.kernels.outcome import Energy

BATCH_SECONDS = 0.02
"""Approximate time of the launches between two readings of the clock."""
PATIENCE_SECONDS = 2.0
"""Timeout beyond the window's length, for a counter that does not move."""
PAUSE_SECONDS = 0.001
"""Between two readings of the counter, so that the thread that launches gets its turn."""


@dataclass(frozen=True, slots=True)
class Move:
    """The counter came to `joules` at `at`, give or take `slack` seconds."""

    at: float
    joules: float
    slack: float


def measure_energy(
    run: Callable[[], int],
    read: Callable[[], float | None],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy | None:
    """Joules per launch over a window of at least `seconds`; None where the counter cannot be read or does not move.

    run: makes launches one right behind the other, for about `BATCH_SECONDS`, and says how many; read: joules since
    whenever. An exception of `run` ends the measurement.
    """
    moves: list[Move] = []
    over = threading.Event()

    def watch() -> None:
        before, last = clock(), read()
        while last is not None and not over.is_set():
            over.wait(PAUSE_SECONDS)
            joules, now = read(), clock()
            if joules is None:
                return
            if joules != last:
                moves.append(Move((before + now) / 2, joules, (now - before) / 2))
            before, last = now, joules

    watcher = threading.Thread(target=watch, daemon=True)
    started = clock()
    progress = [(started, 0)]
    watcher.start()
    try:
        while watcher.is_alive():
            launches = progress[-1][1] + run()
            progress.append((clock(), launches))
            # A later move belongs to launches that were not counted yet.
            known = [move for move in list(moves) if move.at <= progress[-1][0]]
            if len(known) > 1 and known[-1].at - known[0].at >= seconds:
                return energy_between(known, progress)
            if progress[-1][0] - started > seconds + PATIENCE_SECONDS:
                break
    finally:
        over.set()
        watcher.join()
    return None


def energy_between(moves: Sequence[Move], progress: Sequence[tuple[float, int]]) -> Energy | None:
    """The energy of a launch from the first of several moves to the last. progress: how many launches had ended when,
    in order; in a batch they end one after another, evenly."""
    first, last = moves[0], moves[-1]
    times, counts = [at for at, _ in progress], [count for _, count in progress]
    begun, ended = np.interp([first.at, last.at], times, counts)
    launches, lasted = float(ended - begun), last.at - first.at
    if launches <= 0 or lasted <= 0:
        return None
    joules, error = (last.joules - first.joules) / launches, (first.slack + last.slack) / lasted
    return Energy(joules, lasted, math.floor(launches), error)
