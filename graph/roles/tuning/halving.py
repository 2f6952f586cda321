"""How a round's evaluations are shared among templates that are tuned side by side.

Sequential halving (Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013), without its
barriers: the budget has ceil(log2 n) + 1 equal rungs; in each the evaluations go in turn to the templates that survive,
and after each the worse half is out. A template's rank is by its best objective so far. A search's best
falls fast at first and slowly later, so a quarter of the budget tells a hopeless template from a good one, while two
good ones survive to the end of their rung. What is out comes back when a late result makes it better.

Every choice is a function of how often each template was asked and of the best values known, so that a run that is
resumed from its journal makes the same choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def rungs(count: int) -> int:
    """How many rungs, of equal budget, the halving of `count` templates has."""
    return 1 if count < 2 else (count - 1).bit_length() + 1


def survivors(count: int, rung: int) -> int:
    """How many of `count` templates take part in a rung, counted from 0."""
    return max(1, (count + (1 << rung) - 1) >> rung)


def ask_order(asked: Sequence[int], best: Sequence[float | None], total: int) -> list[int]:
    """Templates (by position) in the order in which to ask them for the next configuration.

    asked: evaluations each was given; best: its best objective, None before the first. The first that has something to
    ask gets the evaluation; those that are out stand last, for when the others have nothing.
    """
    count = len(asked)
    rung = min(sum(asked) * rungs(count) // max(1, total), rungs(count) - 1)
    ranked = sorted(range(count), key=lambda one: (_rank(best[one]), one))
    inside = ranked[: survivors(count, rung)]
    return sorted(inside, key=lambda one: (asked[one], ranked.index(one))) + ranked[len(inside) :]


def max_evaluations(count: int, total: int) -> int:
    """Evaluations that a template gets of `total` when it stays in to the end."""
    number = rungs(count)
    return max(1, math.ceil(sum(total / number / survivors(count, rung) for rung in range(number))))


def _rank(best: float | None) -> float:
    return math.inf if best is None else best
