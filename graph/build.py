"""The state machine: plan -> template -> tune -> test -> plan, until a budget is spent or the floor is near.

Read this file to know who decides what, and when:

1. plan names the bottleneck and what the round tunes (`roles/plan.py`).
2. template provides the source with its parameters (`roles/template.py`).
3. tune searches the feasible space and journals every measurement (`roles/tune.py`).
4. test re-measures the best and gives the verdict (`roles/test.py`); `done` ends the loop, else back to plan.

The state is small and checkpointed after every step; a step that is interrupted is begun again, and finds what it
already did in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from tunesmith.graph.context import Context
from tunesmith.graph.roles import Role, load_roles
from tunesmith.graph.state import State


def build_graph(roles: Mapping[str, Role] | None = None) -> StateGraph[State, Context]:
    """The graph, not yet compiled. `roles`: by name; left out, those that are registered."""
    roles = load_roles() if roles is None else roles
    graph: StateGraph[State, Context] = StateGraph(State, context_schema=Context)
    for name in ("plan", "template", "tune", "test"):
        graph.add_node(name, _node(roles[name]))
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "template")
    graph.add_edge("template", "tune")
    graph.add_edge("tune", "test")
    graph.add_conditional_edges("test", _next, {"plan": "plan", "end": END})
    return graph


def draw() -> str:
    """The graph as mermaid text."""
    return build_graph().compile().get_graph().draw_mermaid()


def _node(role: Role) -> Any:
    def step(state: State, runtime: Runtime[Context]) -> State:
        return role(state, runtime.context)

    return step


def _next(state: State) -> str:
    return "end" if state.get("done") else "plan"
