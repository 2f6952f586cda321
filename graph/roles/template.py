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
        for template in context.sources.templates:
            if template.name == plan.template:
                break
        else:
            names = ", ".join(template.name for template in context.sources.templates) or "none"
            raise UnknownTemplate(f"The plan asks for the template '{plan.template}'; {context.task.name} has {names}.")
        if all(event.data["id"] != template.id for event in context.journal.events("template")):
            context.journal.append("template", {"id": template.id, "template": template.model_dump(mode="json")},
                                   f"round-{plan.round}")  # fmt: skip
        return {"template": template.id}
