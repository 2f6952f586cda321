"""Language models as the roles see them: calls out, replies or typed failures back (`calls`)."""

from tunesmith.graph.models.calls import Call, Message, ModelFailed, Models, Reply, Waiting

__all__ = ["Call", "Message", "ModelFailed", "Models", "Reply", "Waiting"]
