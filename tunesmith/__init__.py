"""Tunesmith tunes GPU kernels: agents expose parameters, a constrained search finds their values.

The six rooms live at the top of the repository and are linked here, so that one import name holds all.
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunesmith.graph.tune_kernel import TunedKernel, tune_kernel

__all__ = ["TunedKernel", "tune_kernel"]


def __getattr__(name: str) -> Any:
    # Heavy packages are imported when the function is asked for.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tunesmith.graph import tune_kernel

    return getattr(tune_kernel, name)
