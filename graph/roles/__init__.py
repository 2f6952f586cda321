"""Roles: who decides. A role is a callable from (state, context) to an update of the state, registered by name.

A role of another package is registered under the entry-point group `tunesmith.roles`, or in one line by `register`. One
with the name of a role of ours replaces it; any other stands where the run's settings place it (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import TemplateVetoed
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.state import State
from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from langgraph.types import Command


Role = Callable[[State, Context], "State | tuple[State, Any] | Command[Any]"]
"""Reads the state and the journal, acts through the pool, and returns the changes of the state, with an event where its
result is one as well: both enter the journal in one transaction. A further role may send the state back by LangGraph's
`Command(goto="template", update=...)`.

A role that was interrupted is called again with the same state, a finished role is not, so it does not look for its own
result in the journal. Work that must not be done twice it does by `Context.once`."""
REGISTERED: dict[str, Callable[[], Role]] = {}
"""The roles that this process registered, by name."""
Made = TypeVar("Made", bound=type)


def register(role: Made) -> Made:
    """Makes a role class known under its `name`, for this process; works as a decorator."""
    name = getattr(role, "name", None)
    if not isinstance(name, str) or not name:
        raise TunesmithError(f'The role {role.__name__} has no `name`: give the class one, such as name = "reviewer".')
    REGISTERED[name] = role
    return role


def veto(context: Context, state: State, template: str, why: str) -> list[str]:
    """Takes a template out of the run, with a reason for report and plans; returns the round's others."""
    if template not in context.log.vetoed():
        context.journal.append(TemplateVetoed(template=template, why=why), stage_of(state["round"]))
    return [one for one in state.get("templates", []) if one != template]
