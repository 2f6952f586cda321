"""Language models as the roles see them: calls out, replies or typed failures back (`calls`)."""

from tunesmith.graph.models.calls import Message, ModelCall, ModelFailed, Models, Reply, Waiting

__all__ = ["Message", "ModelCall", "ModelFailed", "Models", "Reply", "Waiting"]
