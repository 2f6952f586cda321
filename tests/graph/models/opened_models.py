"""The models of a run as the tests here open them, and a call."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pydantic import BaseModel, Field

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Event, ModelsUsage
from tunesmith.graph.journal.log import Journal, RunLog
from tunesmith.graph.models.calls import Message, ModelCall, ModelFailed, Models, Reply
from tunesmith.graph.models.opening import models_summary
from tunesmith.graph.roles.planner import calls_left
from tunesmith.graph.settings import Settings

KEY = "sk-test-4fA9zQ2LmX7"


class Move(BaseModel, extra="forbid"):
    """What the calls of these tests ask for."""

    name: str
    factor: int = Field(ge=1, le=64)


def call(name: str = "moves", text: str = "What next?", stage: str = "round-1", role: str = "plan") -> ModelCall:
    return ModelCall(role, stage, name, (Message("system", "You tune kernels."), Message("user", text)), Move)


def kinds(answers: list[Reply | ModelFailed]) -> list[str]:
    return [getattr(answer, "kind", "ok") for answer in answers]


@dataclass
class Opened:
    """The models of a run in `folder`. said: to the user."""

    folder: Path
    journal: Journal
    models: Models
    settings: Settings
    said: list[str] = field(default_factory=list)

    def ask(self, *calls: ModelCall) -> list[Reply | ModelFailed]:
        return self.models.ask_all(calls or (call(),))

    def failure(self, asked: ModelCall | None = None) -> ModelFailed:
        (answer,) = self.ask(asked or call())
        assert isinstance(answer, ModelFailed), answer
        return answer

    def reply(self, asked: ModelCall | None = None) -> Reply:
        (answer,) = self.ask(asked or call())
        assert isinstance(answer, Reply), answer
        return answer

    @property
    def account(self) -> ModelsUsage:
        return models_summary(self.settings, self.journal)  # type: ignore[return-value]

    @property
    def calls_left(self) -> int | None:
        """What rules that plan calls take to be left of --max-calls."""
        shared = SimpleNamespace(settings=self.settings, journal=self.journal, log=RunLog(self.journal))
        return calls_left(cast(Context, shared))

    def everything(self) -> str:
        """All that the run wrote and said."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return "\n".join([*(path.read_bytes().decode("latin-1") for path in files), *self.said])

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [entry.event.model_dump() for entry in self.journal.entries(Event) if entry.event.kind == kind]
