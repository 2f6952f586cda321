"""How a round's evaluations are shared among templates that are tuned side by side.

Sequential halving (Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013), without its
barriers: the budget has ceil(log2 n) + 1 equal parts; in each part the evaluations go in turn to the templates that are
still in, and after each part the worse half is out. A template's standing is its best objective so far. A search's best
falls fast at first and slowly later, so a quarter of the budget tells a hopeless template from a good one, while two
good ones stay in to the end of their part. What is out comes back when a late result makes it better.

Every choice is a function of how often each template was asked and of the best values known, so that a run that is
resumed from its journal makes the same choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def parts(count: int) -> int:
    """How many equal parts a budget has for `count` templates."""
    return 1 if count < 2 else (count - 1).bit_length() + 1


def still_in(count: int, part: int) -> int:
    """How many of `count` templates take part in a part, counted from 0."""
    return max(1, (count + (1 << part) - 1) >> part)


def order(asked: Sequence[int], best: Sequence[float | None], total: int) -> list[int]:
    """Templates (by position) in the order in which to ask them for the next configuration.

    asked: evaluations each was given; best: its best objective, None before the first. The first that has something to
    ask gets the evaluation; those that are out stand last, for when the others have nothing.
    """
    count = len(asked)
    part = min(sum(asked) * parts(count) // max(1, total), parts(count) - 1)
    ranked = sorted(range(count), key=lambda one: (_standing(best[one]), one))
    inside = ranked[: still_in(count, part)]
    return sorted(inside, key=lambda one: (asked[one], ranked.index(one))) + ranked[len(inside) :]


def most(count: int, total: int) -> int:
    """Evaluations that a template gets of `total` when it stays in to the end."""
    number = parts(count)
    return max(1, math.ceil(sum(total / number / still_in(count, part) for part in range(number))))


def _standing(best: float | None) -> float:
    return math.inf if best is None else best
