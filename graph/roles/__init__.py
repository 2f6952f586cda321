"""Roles: who decides. A role is a callable from (state, context) to an update of the state, registered by name.

Other packages add roles through the entry-point group `tunesmith.roles`; a role of the same name as one of ours
replaces it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

from tunesmith.graph.context import Context
from tunesmith.graph.state import State


class Role(Protocol):
    """Reads the state and the journal, acts through the pool, and returns what changes in the state.

    Called again after an interruption with the same state: what it has journalled it must not do twice.
    """

    name: str

    def __call__(self, state: State, context: Context) -> State: ...


RULES = {
    "plan": "tunesmith.graph.roles.plan:RulePlanner",
    "template": "tunesmith.graph.roles.template:LibraryTemplater",
    "tune": "tunesmith.graph.roles.tune:Tuner",
    "test": "tunesmith.graph.roles.test:Tester",
}
"""The roles that need no model: name -> "module:class"."""


def load_roles() -> dict[str, Role]:
    """One role for each name: those of other packages before our own."""
    roles: dict[str, Role] = {}
    for name, target in RULES.items():
        module, _, attribute = target.partition(":")
        factory: Callable[[], Role] = getattr(import_module(module), attribute)
        roles[name] = factory()
    for point in entry_points(group="tunesmith.roles"):
        roles[point.name] = point.load()()
    return roles
