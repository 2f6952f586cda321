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
from collections.abc import AsyncIterator
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
    # The API has entries of its own there.
    given = {name: value for name, value in configurable.items() if name in Settings.model_fields}
    settings = make_settings(**given) if given.get("task") else None
    folder = RUNS / f"studio-{configurable.get('thread_id', 'new')}"
    stack, lock, opened = ExitStack(), threading.Lock(), list[Context]()

    def context() -> Context:
        """The run's, which is begun or resumed when a node first asks for it, in whatever thread."""
        if settings is None:
            raise RoleError('This graph needs a task: set "task", such as silu_and_mul, and "backend" as configurable.')
        with lock:
            if not opened:
                known = (folder / "journal.sqlite").exists()
                opened.append(stack.enter_context(resumed(folder) if known else begun(settings, folder)))
                connect_models(opened[0], folder)
            return opened[0]

    def close() -> None:
        with stack:
            if opened and ended_by(opened[0].log):
                finish(opened[0], folder)

    roles = None if settings is None else roles_of(settings, settings.transport != "none")
    graph = build_graph(roles, None if settings is None else settings.roles, context, Configurable)
    try:
        compiled = graph.compile(name="tunesmith")
        yield compiled if settings is None else compiled.with_config(recursion_limit=steps_at_most(settings))
    finally:
        # Ending workers waits for them, which must not hold up the server.
        await asyncio.to_thread(close)
