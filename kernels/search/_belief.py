"""What a prior says about the points of one space: as measured in the source, else as predicted from its points.

Owns the projection of a source's results onto the parameters that both know, and the model of the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tunesmith.kernels.search._gaussian import Floats, Kernel, Posterior, one_thread
from tunesmith.kernels.space.domain import Codes, Domain
from tunesmith.kernels.space.rule import Reason
from tunesmith.kernels.space.space import Space

if TYPE_CHECKING:
    from tunesmith.kernels.search.prior import Prior

_LEARNED = 400
"""Results of a source from which the points it does not hold are predicted."""
_FITTED = 160
_ITERATIONS = 30


class Belief:
    """A prior's opinion of the points of one space: the logarithm of a value in the source's unit, and failures."""

    def __init__(self, space: Space, prior: Prior) -> None:
        measured, failed = _projected(space.domain, prior)
        self.shared = tuple(space.domain.names[column] for column in self._columns(space.domain, prior))
        """Parameters that both know."""
        self._kept = np.array(self._columns(space.domain, prior), dtype=np.int64)
        self._levels: Mapping[bytes, float] = measured
        self._failed = frozenset(failed - measured.keys())
        self._best = sorted(measured, key=measured.__getitem__)
        self._space = space
        self._model: Posterior | None = None
        self._weights = np.empty(0)
        levels = np.array([measured[key] for key in self._best])
        self._centre = float(levels.mean()) if len(levels) else 0.0
        self._unit = float(levels.std()) + 1e-9 if len(levels) else 1.0

    @property
    def useful(self) -> bool:
        """Whether the source has a measured point with values that the space knows."""
        return bool(self._levels) and len(self._kept) > 0

    def best(self, count: int) -> list[int]:
        """Up to `count` points of the space that the source measured, best first; none where it lacks parameters."""
        if len(self._kept) < len(self._space.domain.names):
            return []
        found: list[int] = []
        for key in self._best:
            if len(found) >= count:
                break
            point = self._space.point_of(np.frombuffer(key, dtype=np.uint16))
            if point is not None:
                found.append(point)
        return found

    def expect(self, codes: Codes) -> tuple[Floats, Floats]:
        """The logarithm of the value of each of `codes`, shape (points, parameters), and its standard deviation: as
        measured in the source, else as predicted from its other points (the mean of the source where those are far)."""
        levels = np.array([self._levels.get(key, math.nan) for key in self._keys(codes)])
        deviations = np.zeros(len(levels))
        missing = np.flatnonzero(np.isnan(levels))
        if len(missing):
            with one_thread():
                levels[missing], deviations[missing] = self._predicted(codes[missing])
        return levels, deviations

    def failed(self, codes: Codes) -> NDArray[np.bool_]:
        """Whether each of `codes` failed in the source."""
        return np.array([key in self._failed for key in self._keys(codes)], dtype=np.bool_)

    def _keys(self, codes: Codes) -> list[bytes]:
        return [row.tobytes() for row in np.ascontiguousarray(codes[:, self._kept], dtype=np.uint16)]

    def _predicted(self, codes: Codes) -> tuple[Floats, Floats]:
        if self._model is None:
            # The best ones, and the others evenly through the ranks: where it is fast matters most.
            best = self._best[: _LEARNED // 4]
            rest = self._best[len(best) :]
            evenly = np.linspace(0, len(rest) - 1, min(len(rest), _LEARNED - len(best))).astype(int).tolist()
            keys = best + [rest[place] for place in evenly]
            known = np.array([np.frombuffer(key, dtype=np.uint16) for key in keys], dtype=np.uint16)
            values = (np.array([self._levels[key] for key in keys]) - self._centre) / self._unit
            kernel = Kernel(Domain([self._space.domain.parameters[column] for column in self._kept]))
            few = np.unique(np.linspace(0, len(keys) - 1, _FITTED).astype(int))
            chosen = kernel.fit(known[few], values[few], np.zeros(len(few)), kernel.prior(), _ITERATIONS)
            self._model = Posterior(kernel, chosen, known, np.zeros(len(known)), known[:0])
            self._weights = self._model.weights(values)
        mean, deviation = self._model.expect(self._weights, codes[:, self._kept])
        return self._centre + self._unit * mean, self._unit * deviation

    @staticmethod
    def _columns(domain: Domain, prior: Prior) -> list[int]:
        return [
            column for column, name in enumerate(domain.names) if all(name in config for config, _ in prior.results)
        ]


def _projected(domain: Domain, prior: Prior) -> tuple[dict[bytes, float], set[bytes]]:
    """The source's results by the codes of the parameters that both know: the least logarithm, and what failed.

    A dropped result counts with its bound: it is slow there, which is all that a prior wants to know.
    """
    kept = [domain.parameters[column] for column in Belief._columns(domain, prior)]
    shared = Domain(kept)
    measured: dict[bytes, float] = {}
    failed: set[bytes] = set()
    for config, seen in prior.results:
        row = shared.encode({parameter.name: config[parameter.name] for parameter in kept})
        if isinstance(row, Reason):
            continue
        key = np.array(row, dtype=np.uint16).tobytes()
        if seen.value is None:
            failed.add(key)
        else:
            measured[key] = min(measured.get(key, math.inf), math.log(seen.value))
    return measured, failed
