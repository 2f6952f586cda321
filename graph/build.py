"""The state machine: plan -> template -> tune -> test -> plan, until a budget is spent or the floor is near.

Read this file to know who decides what, and when:

1. plan names the bottleneck and what the round tunes (`roles/planner.py`).
2. approve, where the run asks for it, lets a person see and change the plan (`roles/approval.py`).
3. template provides the sources with their parameters: known ones, or new ones, which a model writes and repairs until
   they work (`roles/templater.py`).
4. tune searches the feasible spaces and journals every measurement (`roles/tuner.py`).
5. test re-measures the best and gives the verdict (`roles/tester.py`); `done` ends the loop, else back to plan.

Further roles stand behind one of these, and may send the state back. Nothing of the graph is stored beside the journal:
each role that has finished is a `step` there. A graph that is started again takes the steps of the round at hand from
the journal, and calls only the role that was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Planned, Searched, StepTaken
from tunesmith.graph.journal.log import RunLog, stage_of
from tunesmith.graph.models.recorded import NotRecorded
from tunesmith.graph.progress import Progress
from tunesmith.graph.roles import REGISTERED, Role
from tunesmith.graph.roles.approval import approve
from tunesmith.graph.roles.planner import plan_round, searches
from tunesmith.graph.roles.templater import provide_templates
from tunesmith.graph.roles.tester import test_round
from tunesmith.graph.roles.tuner import tune_round
from tunesmith.graph.settings import Placement, Settings
from tunesmith.graph.state import State
from tunesmith.hw.errors import TunesmithError

BUILT_IN: dict[str, Role] = {
    "plan": plan_round,
    "approve": approve,
    "template": provide_templates,
    "tune": tune_round,
    "test": test_round,
}
"""Our own roles by name, in the order of their work. Without a model they work by rules, or not at all."""
BACK = ("plan", "template")
"""The roles to which a further role may send the state back."""
BEFORE_SEARCH = ("plan", "approve", "template")


@cache
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The roles of other packages on `path` (sys.path): reading the entry points of all packages takes 0.1 s."""
    return tuple(entry_points(group="tunesmith.roles"))


def load_roles() -> dict[str, Role]:
    """One role for each name. A registered role replaces one of another package, and that a built-in one."""
    roles = dict(BUILT_IN)
    for point in _installed(tuple(sys.path)):
        try:
            roles[point.name] = point.load()()
        except (ImportError, AttributeError, TypeError) as error:
            package = point.dist.name if point.dist else "another package"
            raise TunesmithError(
                f"The role {point.name} of {package} cannot be loaded from {point.value}: {error}. "
                "Fix it, or uninstall the package."
            ) from error
    return roles | {name: make() for name, make in REGISTERED.items()}


def roles_of(settings: Settings) -> dict[str, Role]:
    """The roles of a run by name, without built-in roles that have nothing to do in it or in its arm."""
    roles = load_roles()
    if settings.approve == "none" and roles["approve"] is approve:
        del roles["approve"]
    if not searches(settings):
        del roles["tune"]
    return roles


def build_graph(roles: Mapping[str, Role], placements: Mapping[str, Placement]) -> StateGraph[State, Any]:
    """The graph, not yet compiled. roles: by name; a built-in role that is missing there is left out of the graph.
    placements: of further roles. Raises `TunesmithError`."""
    chain = [name for name in place(roles, placements) if name in roles]
    graph: StateGraph[State, Any] = StateGraph(State, context_schema=Context)
    searching = next(at for at, name in enumerate(chain) if name in BUILT_IN and name not in BEFORE_SEARCH)
    for position, (name, following) in enumerate(zip(chain, [*chain[1:], chain[0]], strict=True)):
        # Once something was measured, a round goes on to its verdict and what follows it; before, `done` ends it.
        may_end = position < searching or position + 1 == len(chain)
        back = () if name in BUILT_IN else BACK
        targets = dict.fromkeys([following, *back, *([END] if may_end else ())])
        # LangGraph searches the bytecode of a function for subgraphs: 5 ms at each start, none for a partial.
        step = partial(_take_step, name, roles[name], following, may_end)
        graph.add_node(name, step, destinations=tuple(targets))
    graph.add_edge(START, chain[0])
    return graph


def place(roles: Mapping[str, Role], placements: Mapping[str, Placement]) -> list[str]:
    """The names of all roles in the order of their work. Raises `TunesmithError` where a placement makes no sense."""
    chain, left = list(BUILT_IN), dict(placements)
    for name in placements:
        if name in BUILT_IN:
            raise TunesmithError(f"[roles.{name}]: {name} has its place already; only further roles are placed.")
        if name not in roles:
            names = ", ".join(sorted(set(roles) - set(BUILT_IN))) or "none"
            raise TunesmithError(
                f"[roles.{name}]: no role of this name is registered; registered are: {names}. Install the "
                "package that brings it, or correct the name."
            )
    while left:
        ready = [name for name, placement in left.items() if placement.after in chain]
        if not ready:
            name, placement = next(iter(left.items()))
            raise TunesmithError(
                f'[roles.{name}]: after = "{placement.after}" leads to no role that has a place: name one of '
                f"{', '.join(chain)}."
            )
        # Roles behind the same one keep the order of the list.
        for name in reversed(ready):
            chain.insert(chain.index(left.pop(name).after) + 1, name)
    return chain


def draw(placements: Mapping[str, Placement]) -> str:
    """The graph with all registered roles as mermaid text."""
    return build_graph(load_roles(), placements).compile().get_graph().draw_mermaid()


def steps_at_most(settings: Settings) -> int:
    """A bound on the steps of a run, for LangGraph's guard against graphs that never end."""
    return (len(BUILT_IN) + len(settings.roles)) * (settings.repairs + 2) * settings.rounds + 50


def start_of(log: RunLog) -> State:
    """The state to start the graph with: that before the last round that was planned. The journal knows the rest."""
    planned = log.last(Planned)
    return {"round": max(0, planned.plan.round - 1) if planned is not None else 0, "done": ""}


def ended_by(log: RunLog) -> str:
    """The reason for the end of the run by the journal; empty while it goes on, or after it was extended."""
    steps = log.entries(StepTaken)
    if not steps or steps[-1].event.goto != END or log.extended_after(steps[-1]):
        return ""
    return steps[-1].event.done


def _take_step(
    name: str, role: Role, following: str, may_end: bool, state: State, runtime: Runtime[Context]
) -> Command[Any]:
    """A node of the graph: the role of this name, unless the journal has that it finished."""
    context = runtime.context
    # A plan begins a round; it is not part of the turns of the round before.
    turn = 0 if name == "plan" else state.get("turn", 0)
    stage = stage_of(state.get("round", 0))
    if (known := _finished_step(context, name, turn, stage, following)) is not None:
        return known
    try:
        result = role(state, context)
    except NotRecorded as error:
        if not may_end or context.log.verdict() is None:
            raise
        context.note(name, f"{error} The run ends with its earlier results.", stage)
        result = {"done": "recording"}
    result, event = result if isinstance(result, tuple) else (result, None)
    command: Command[Any] = result if isinstance(result, Command) else Command(update=result)
    update = cast(State, dict(cast(Mapping[str, Any], command.update or {})))
    if unknown := set(update) - set(State.__annotations__):
        raise TunesmithError(
            f"The role {name} returns {', '.join(sorted(unknown))}, which the state does not have; to send "
            'it back, return Command(goto="template", update=...).'
        )
    if name == "plan":
        update |= {"turn": 0}
    goto = _sent_back(name, command.goto, state, update, context) if command.goto else ""
    done = update.get("done", state.get("done", ""))
    goto = goto or (END if may_end and done else following)
    taken = StepTaken(role=name, turn=turn, goto=goto, done=done if goto == END else "", update=dict(update))
    # A plan belongs to the round that it begins, the planner's step to the round before.
    last = [] if event is None else [(event, stage_of(update.get("round", state.get("round", 0))))]
    context.journal.append_all([*last, (taken, stage)])
    return Command(goto=goto, update=update)


def _finished_step(context: Context, role: str, turn: int, stage: str, following: str) -> Command[Any] | None:
    """The command of a role that has finished; None where it has not. Where its step ended a run which was extended
    since, a verdict stands and the run goes on; any other role decides again."""
    steps = context.log.entries(StepTaken, stage)
    entry = next((one for one in reversed(steps) if (one.event.role, one.event.turn) == (role, turn)), None)
    if entry is None:
        return None
    step = entry.event
    if (step.update.get("done") or step.goto == END) and context.log.extended_after(entry):
        stands = role in BUILT_IN and role not in BEFORE_SEARCH
        return Command(goto=following, update={**step.update, "done": ""}) if stands else None
    return Command(goto=step.goto, update=step.update)


def _sent_back(name: str, goto: object, state: State, update: State, context: Context) -> str:
    """The role that gets the state back; empty where no round or repair of templates is left. Changes `update`."""
    if name in BUILT_IN or goto not in BACK:
        to = " or ".join(BACK)
        raise TunesmithError(f"The role {name} sends the state to '{goto}'; it may be sent back to {to}.")
    stage, turn = stage_of(state["round"]), state.get("turn", 0)
    if goto == "plan" and state["round"] >= context.settings.rounds:
        context.note(name, f"The role {name} asks for another plan, and no round is left.", stage)
        update["done"] = "rounds"
        return ""
    if goto == "template":
        if context.log.last(Searched, stage) is not None:
            raise TunesmithError(
                f"The role {name} sends round {state['round']} back to template when it was searched already; behind "
                "tune or test, send it back to plan, which begins another round."
            )
        if turn >= context.settings.repairs:
            sentence = f"The role {name} asks for another template; after {turn} times the round goes on."
            context.note(name, sentence, stage)
            return ""
        update["turn"] = turn + 1
    context.listener(Progress(name, f"sends the round back to {goto}"))
    return str(goto)
