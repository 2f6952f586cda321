"""The arms of an ablation: the graph with some of its roles replaced, to show what each stage is worth.

- tree: the graph as it is: templates and rewrites are nodes of one tree, and each is made of the other.
- template+search: without rewrites: templates only, each searched.
- template: templates by the same planner and templater, but nothing is searched: each counts with its default
  configuration only, and what the model learns is that time.
- rewrite: no model's plan, no parameters and no repairs. Each call gives one whole kernel, made from the best one so
  far and all earlier times and failures, as agents do that rewrite directly.

Arms without a search test only once, at the end of their last round. All arms have the same caps on evaluations and on
calls, and all go on after an answer that cannot be used.
"""

from __future__ import annotations

from tunesmith.graph.roles import Role, load_roles
from tunesmith.graph.roles.approval import Approver, Explainer
from tunesmith.graph.roles.planner import searches
from tunesmith.graph.settings import Settings


def roles_of(settings: Settings, with_model: bool) -> dict[str, Role]:
    """The roles of a run by name: of its arm, without built-in roles that have nothing to do in it."""
    roles = load_roles()
    if settings.approve == "none" and isinstance(roles["approve"], Approver):
        del roles["approve"]
    # Rules do not read what a model says of a round.
    explained = with_model and settings.explain and settings.planner == "model"
    if not explained and isinstance(roles["explain"], Explainer):
        del roles["explain"]
    if not searches(settings):
        del roles["tune"]
    if settings.arm == "rewrite":
        roles.pop("explain", None)
    return roles
