"""A fake server, and the models of a run that ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI
from pydantic import BaseModel, ConfigDict, Field

from tunesmith.graph.context import Progress
from tunesmith.graph.journal import Journal
from tunesmith.graph.models import Call, Message, ModelFailed, Models, Reply
from tunesmith.graph.models.opening import open_models
from tunesmith.graph.settings import Settings, make_settings

KEY = "sk-test-4fA9zQ2LmX7"


class Move(BaseModel):
    """What the calls of these tests ask for."""

    model_config = ConfigDict(extra="forbid")

    name: str
    factor: int = Field(ge=1, le=64)


def call(name: str = "moves", text: str = "What next?", stage: str = "round-1", role: str = "plan") -> Call:
    messages = (Message("system", "You tune kernels."), Message("user", text))
    return Call(role, stage, name, messages, Move)


@dataclass
class Opened:
    """The models of a run in `folder`, and what they said."""

    folder: Path
    journal: Journal
    models: Models
    settings: Settings
    said: list[str] = field(default_factory=list)

    def ask(self, *calls: Call) -> list[Reply | ModelFailed]:
        return self.models.ask_all(calls or (call(),))

    def failure(self) -> ModelFailed:
        (answer,) = self.ask()
        assert isinstance(answer, ModelFailed), answer
        return answer

    def reply(self, asked: Call | None = None) -> Reply:
        (answer,) = self.ask(asked or call())
        assert isinstance(answer, Reply), answer
        return answer

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.journal.events(kind)]


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(key=KEY) as made:
        made.answers = {"Move": {"name": "unroll", "factor": 4}}
        yield made


@pytest.fixture
def open_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    """Opens the models of the run in a folder, again for the same folder: as `tunesmith resume` does."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("tunesmith.graph.models.asker.FIRST_WAIT", 0.01)
    journals: list[Journal] = []

    def make(folder: str = "run", **values: Any) -> Opened:
        settings = make_settings(task="scale_add", **values)
        journals.append(Journal(tmp_path / folder, create=True))
        said: list[str] = []

        def listen(progress: Progress) -> None:
            said.append(progress.message)

        models = open_models(settings, journals[-1], tmp_path / folder, listen)
        assert models is not None
        return Opened(tmp_path / folder, journals[-1], models, settings, said)

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def live(open_run: Callable[..., Opened], server: FakeOpenAI) -> Callable[..., Opened]:
    """Opens models that ask the fake server."""

    def make(**values: Any) -> Opened:
        return open_run(**({"model": "tester", "base_url": server.base_url} | values))

    return make
