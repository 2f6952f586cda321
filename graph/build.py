"""The state machine: plan -> template -> tune -> test -> plan, until a budget is spent or the floor is near.

Read this file to know who decides what, and when:

1. plan names the bottleneck and what the round tunes (`roles/planning/planner.py`; by rules `roles/planning/rules.py`).
2. approve lets a person see and change the plan, where the run asks for it (`roles/approve.py`).
3. template provides the sources with their parameters (`roles/templating/templater.py`).
4. tune searches the feasible spaces and journals every measurement (`roles/tuning/tuner.py`).
5. test re-measures the best and gives the verdict (`roles/testing/tester.py`); `done` ends the loop, else back to plan.
6. explain sums up what the round showed, for the next plan (`roles/explainer.py`).

Roles of others stand behind one of these. The state is small and checkpointed after every step; a step that is
interrupted is begun again, and finds what it already did in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import SentBack
from tunesmith.graph.roles import BUILT_IN, Role, RoleError, load_roles
from tunesmith.graph.settings import Placement
from tunesmith.graph.state import State

BACK = ("plan", "template")
"""Where a role of others may send the state back to."""


def build_graph(
    roles: Mapping[str, Role] | None = None,
    placements: Mapping[str, Placement] | None = None,
    context_schema: type[Context] | None = Context,
) -> StateGraph[State, Context]:
    """The graph, not yet compiled. `roles`: by name; left out, those that are registered. `placements`: where further
    roles stand. Raises `RoleError`."""
    roles = load_roles() if roles is None else roles
    chain = place(roles, placements or {})
    graph: StateGraph[State, Context] = StateGraph(State, context_schema=context_schema)
    for name in chain:
        graph.add_node(name, _node(roles[name]))
    graph.add_edge(START, chain[0])
    searching = chain.index("tune")
    for position, name in enumerate(chain):
        last = position + 1 == len(chain)
        following = chain[0] if last else chain[position + 1]
        # Once something was measured, a round goes on to its verdict and what follows it; before, `done` ends it.
        may_end = last or position < searching
        back = () if name in BUILT_IN else tuple(one for one in BACK if one != following)
        if may_end or back:
            targets = [following, *back] + ([END] if may_end or back else [])
            graph.add_conditional_edges(name, _route(following, may_end), list(dict.fromkeys(targets)))
        else:
            graph.add_edge(name, following)
    return graph


def place(roles: Mapping[str, Role], placements: Mapping[str, Placement]) -> list[str]:
    """The names of all roles that work, in their order. Raises `RoleError` where a placement makes no sense."""
    chain = list(BUILT_IN)
    left = dict(placements)
    for name, placement in placements.items():
        known = ", ".join(sorted({*BUILT_IN, *placements}))
        if name in BUILT_IN:
            raise RoleError(f"[roles.{name}]: {name} has its place already; only further roles are placed.")
        if name not in roles:
            names = ", ".join(sorted(set(roles) - set(BUILT_IN))) or "none"
            raise RoleError(
                f"[roles.{name}]: no role of this name is registered; registered are: {names}. Install the "
                "package that brings it, or mend the name."
            )
        if placement.after not in BUILT_IN and placement.after not in placements:
            raise RoleError(f'[roles.{name}]: after = "{placement.after}" names no role; it may be one of {known}.')
    while left:
        ready = [name for name, placement in left.items() if placement.after in chain]
        if not ready:
            raise RoleError(
                f"The roles {', '.join(left)} stand in a circle, each after another of them; place one "
                "of them after " + ", ".join(BUILT_IN) + "."
            )
        # Of several behind the same role, the first that is listed comes first.
        for name in reversed(ready):
            chain.insert(chain.index(left.pop(name).after) + 1, name)
    return chain


def draw(placements: Mapping[str, Placement] | None = None) -> str:
    """The graph as mermaid text."""
    return build_graph(placements=placements).compile().get_graph().draw_mermaid()


def studio() -> Any:
    """The compiled graph for LangGraph's Studio, which keeps checkpoints itself; langgraph.json names this function.

    Studio describes everything a graph takes as JSON, which a context (device, pool, journal) is not.
    """
    return build_graph(context_schema=None).compile()


def _node(role: Role) -> Any:
    def step(state: State, runtime: Runtime[Context]) -> State:
        if runtime.context is None:
            raise RoleError("This graph was opened without a task and a device: `tunesmith tune TASK` runs it.")
        cleared: State = {"goto": ""}
        update = cast(State, {**cleared, **role(state, runtime.context)})
        return _sent_back(role.name, state, update, runtime.context) if update.get("goto") else update

    return step


def _sent_back(name: str, state: State, update: State, context: Context) -> State:
    """Bounds how often a role may send the state back: the rounds for a new plan, the repairs for new templates."""
    to = update["goto"]
    stage = f"round-{state['round']}"
    if name in BUILT_IN or to not in BACK:
        raise RoleError(f"The role {name} sends the state to '{to}'; it may be sent back to {' or '.join(BACK)}.")
    if to == "plan" and state["round"] >= context.settings.rounds:
        context.note(name, f"The role {name} asks for another plan, and no round is left.", stage)
        return cast(State, {**update, "goto": "", "done": "rounds"})
    before = context.log.sent_back(stage, to)
    if to == "template" and before >= context.settings.repairs:
        context.note(name, f"The role {name} asks for another template; after {before} times the round goes on.", stage)
        return cast(State, {**update, "goto": ""})
    context.journal.append(SentBack(by=name, to=to, objections=tuple(update.get("objections", ()))), stage)
    return update


def _route(following: str, may_end: bool) -> Callable[[State], str]:
    def route(state: State) -> str:
        if state.get("goto"):
            return state["goto"]
        return END if may_end and state.get("done") else following

    return route
