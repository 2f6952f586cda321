"""Which point is most worth measuring: expected improvement, and the candidate with the largest.

Owns the formula, written so that it holds far out in the tail of the normal distribution, and the choice of the point
whose improvement, times its chance of success, is largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, ndtr  # type: ignore[import-untyped,unused-ignore]

from tunesmith.kernels.search.surrogate.gaussian import Floats

_TAIL = -30.0
"""Deviations below which the expansion of Mills' ratio is exact to the last digits, and the ratio itself is not."""
_FIRST_BATCH = 64
"""Candidates whose chance of success is asked for first; it is seldom asked for more."""


def log_expected_improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """The logarithm of how far a normal value falls below `best` on average (Jones et al., 1998).

    The logarithm keeps ranking points where the expectation itself is 0 in floating point (Ament et al., "Unexpected
    improvements to expected improvement", 2023): without it, all points that are known to be slow would be equal.
    """
    gain = (best - mean) / deviation
    density = -0.5 * gain * gain - 0.5 * math.log(2.0 * math.pi)
    near = np.maximum(gain, -1.0)
    head = np.log(near * ndtr(near) + np.exp(-0.5 * near * near) / math.sqrt(2.0 * math.pi))
    far = np.minimum(gain, -1.0)
    mills = -far * math.sqrt(0.5 * math.pi) * erfcx(-far / math.sqrt(2.0))
    tail = np.where(far > _TAIL, np.log1p(-np.minimum(mills, 1.0 - 1e-12)), -2.0 * np.log(-far))
    return np.asarray(np.log(deviation) + np.where(gain > -1.0, head, density + tail))


class Choice(NamedTuple):
    """The place of a candidate, the logarithm of its expected improvement times its chance of success, and whether
    that chance is at least the limit."""

    place: int
    score: float
    likely: bool


def best_candidate(scores: Floats, limit: float, chance: Callable[[list[int]], Floats]) -> Choice | None:
    """The candidate with the largest sum of `scores` (logarithms of expected improvements, -inf for candidates that do
    not count) and of the logarithm of its chance of success, the first one of equals. Those with a chance of at least
    `limit` come before all others, whatever is expected of them. None where no candidate counts.

    chance: the chances of success, at most 1, of the candidates at the given places. Since they are at most 1, it is
    asked from the largest score down, and no further than where those left could not win with a chance of 1.
    """
    left = np.flatnonzero(scores > -np.inf)
    best: Choice | None = None
    many = _FIRST_BATCH
    while len(left):
        many = min(many, len(left))
        left = left[np.argpartition(-scores[left], many - 1)]
        few, left, many = left[:many], left[many:], 8 * many
        chances = chance(few.tolist())
        totals = scores[few] + np.log(chances)
        likely = chances >= limit
        top = np.lexsort((few, -totals, ~likely))[0]
        found = Choice(int(few[top]), float(totals[top]), bool(likely[top]))
        best = found if best is None else max(best, found, key=lambda one: (one.likely, one.score, -one.place))
        if best.likely and (not len(left) or best.score > scores[left].max()):
            break
    return best
