"""The graph as LangGraph's API and Studio run it: `make_graph`, which langgraph.json names.

The run's settings are what the API calls `configurable`: `task` (a library task's name or a task.toml), `backend`, and
everything else in `Settings`; the input is {"round": 0}. Each thread is a run of its own in runs/studio-<thread>: a
thread that is invoked again goes on with its run, as `tunesmith resume` does. A plan that waits for approval is an
interrupt, which is resumed with true or with the changed plan. Nothing is opened before a node needs it, so that a
graph without a task can be drawn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunesmith.graph.build import build_graph, ended_by, roles_of, steps_at_most
from tunesmith.graph.context import Context
from tunesmith.graph.roles import RoleError
from tunesmith.graph.run import begun, connect_models, finish, resumed
from tunesmith.graph.settings import Settings, make_settings
from tunesmith.graph.state import Configurable

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

RUNS = Path("runs")


@asynccontextmanager
async def make_graph(config: RunnableConfig) -> AsyncIterator[Any]:
    """The compiled graph for one request of the API. What its nodes opened is closed, and the run's summary, report and
    best kernels are written, when the request ends."""
    configurable = config.get("configurable", {})
    settings = _settings(configurable)
    session = _Session(settings, RUNS / f"studio-{configurable.get('thread_id', 'new')}")
    roles = roles_of(settings, settings.transport != "none") if settings is not None else None
    placements = settings.roles if settings is not None else None
    graph = build_graph(roles, placements, session.context, Configurable)
    try:
        compiled = graph.compile(name="tunesmith")
        yield compiled if settings is None else compiled.with_config(recursion_limit=steps_at_most(settings))
    finally:
        # Ending workers waits for them, which must not hold up the server.
        await asyncio.to_thread(session.close)


class _Session:
    """The run behind one request: begun or resumed when a node first asks for its context, which may be in any
    thread."""

    def __init__(self, settings: Settings | None, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._stack, self._lock = ExitStack(), threading.Lock()
        self._context: Context | None = None

    def context(self) -> Context:
        with self._lock:
            if self._context is None:
                if self._settings is None:
                    raise RoleError(
                        'This graph needs a task: set "task", such as silu_and_mul, and "backend" as configurable.'
                    )
                known = (self._folder / "journal.sqlite").exists()
                run = resumed(self._folder) if known else begun(self._settings, self._folder)
                context = self._stack.enter_context(run)
                connect_models(context, self._folder)
                self._context = context
            return self._context

    def close(self) -> None:
        with self._stack:
            if self._context is not None and ended_by(self._context.log):
                finish(self._context, self._folder)


def _settings(configurable: Mapping[str, Any]) -> Settings | None:
    """The settings among what the API passes on, which has entries of its own; None without a task."""
    given = {name: value for name, value in configurable.items() if name in Settings.model_fields}
    return make_settings(**given) if given.get("task") else None
