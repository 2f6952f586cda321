"""The default: picks a strategy from the size of the space, the budget and the workers, and says why.

Owns the choice only; the chosen strategy is an ordinary one, with this reason in its description.
"""

from __future__ import annotations

from typing import Any

from tunesmith.kernels.search._base import Strategy
from tunesmith.kernels.search.exhaustive import ExhaustiveSearch
from tunesmith.kernels.search.local import LocalSearch
from tunesmith.kernels.space.space import Space

MODEL_WORKERS = 256
"""Points in flight beyond which a model's next point depends on guesses more than on results."""


def choose(size: int, budget: int | None, workers: int) -> tuple[str, str]:
    """The name of the strategy for a space of `size` points, and the reason as half a sentence."""
    if budget is not None and size <= budget:
        return ExhaustiveSearch.name, f"the budget of {budget} covers all {size} feasible points"
    if workers > MODEL_WORKERS:
        return LocalSearch.name, f"{workers} points in flight outrun a model"
    if budget is None:
        return "surrogate", f"there are {size} feasible points and no budget was given"
    return "surrogate", f"a budget of {budget} for {size} feasible points has to go where a model expects the most"


def default_search(space: Space, **arguments: Any) -> Strategy:
    """The strategy that `choose` names for this space, with `arguments` as for any strategy."""
    name, why = choose(len(space), arguments.get("budget"), arguments.get("workers", 1))
    kinds: dict[str, type[Strategy]] = {kind.name: kind for kind in (ExhaustiveSearch, LocalSearch)}
    if name not in kinds:
        # Imported here: the model needs SciPy, the other choices do not.
        from tunesmith.kernels.search.surrogate.search import SurrogateSearch

        kinds[SurrogateSearch.name] = SurrogateSearch
    strategy = kinds[name](space, **arguments)
    strategy.because = f"default picked {name}, since {why}"
    return strategy
