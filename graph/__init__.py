"""Decisions: the LangGraph state machine, its roles, the journal, the report.

`from tunesmith.graph import tune` is the Python API; heavy packages are imported when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunesmith.graph.run import RunResult, resume, tune

__all__ = ["RunResult", "resume", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tunesmith.graph import run

    return getattr(run, name)
