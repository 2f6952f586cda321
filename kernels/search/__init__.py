"""Search strategies by name: ask for a configuration, tell its result.

Owns the registry. A strategy is one class in one file, a subclass of `Strategy`; models are imported only when the
strategy that needs them is made. "default" picks itself from the space, the budget and the workers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search.base import Observation, Prior, Strategy
from tunesmith.kernels.space import Space

__all__ = ["STRATEGIES", "Observation", "Prior", "Strategy", "TunesmithError", "make_strategy"]

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "random": "tunesmith.kernels.search.strategies:RandomSearch",
        "exhaustive": "tunesmith.kernels.search.strategies:ExhaustiveSearch",
        "local": "tunesmith.kernels.search.strategies:LocalSearch",
        "surrogate": "tunesmith.kernels.search.bayesian:SurrogateSearch",
        "default": "tunesmith.kernels.search.strategies:default_search",
    }
)
"""Name -> "module:callable", a class or, for the default, the function that picks one."""


def make_strategy(name: str, space: Space, **arguments: Any) -> Strategy:
    """The strategy called `name` on `space`; `arguments` as for `Strategy` (`seed` is required).

    Raises `TunesmithError` for an unknown name.
    """
    if name not in STRATEGIES:
        raise TunesmithError(f"There is no search strategy '{name}'; choose one of {', '.join(STRATEGIES)}.")
    module, _, attribute = STRATEGIES[name].partition(":")
    strategy: Strategy = getattr(importlib.import_module(module), attribute)(space, **arguments)
    return strategy
