"""The templater without a model: takes the planned template from those the task brings."""

from __future__ import annotations

from tunesmith.graph.context import Context
from tunesmith.graph.state import Plan, State
from tunesmith.hw.errors import TunesmithError


class UnknownTemplate(TunesmithError):
    """The plan names a template that the task does not have."""


class LibraryTemplater:
    name = "template"

    def __call__(self, state: State, context: Context) -> State:
        plan = Plan.model_validate(state["plan"])
        struck = {event.data["template"] for event in context.journal.events("struck")}
        offered = [template for template in context.sources.templates if template.id not in struck]
        named = [template for template in context.sources.templates if template.name == plan.template]
        if not named:
            names = ", ".join(template.name for template in context.sources.templates) or "none"
            raise UnknownTemplate(f"The plan asks for the template '{plan.template}'; {context.task.name} has {names}.")
        # Another of the library's takes the place of one that a role has struck.
        chosen = named if named[0] in offered else offered[:1]
        for template in chosen:
            if all(event.data["id"] != template.id for event in context.journal.events("template")):
                data = {"id": template.id, "template": template.model_dump(mode="json")}
                context.journal.append("template", data, f"round-{plan.round}")
        return {"templates": [template.id for template in chosen]}
