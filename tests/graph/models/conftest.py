"""A fake server, and the models of a run that ask it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI
from opened_models import KEY, Opened

from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.opening import open_models
from tunesmith.graph.progress import Progress
from tunesmith.graph.settings import make_settings


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
    journals: list[Journal] = []

    def make(folder: str = "run", **values: Any) -> Opened:
        settings = make_settings(task="scale_add", **values)
        journals.append(Journal(tmp_path / folder, create=True))
        said: list[str] = []

        def listen(progress: Progress) -> None:
            said.append(progress.message)

        journal = journals[-1]

        def seconds_left() -> float:
            limit = settings.time_limit
            return math.inf if limit is None else limit - journal.seconds_spent()

        models = open_models(settings, journal, tmp_path / folder, listen, seconds_left)
        assert models is not None
        return Opened(tmp_path / folder, journal, models, settings, said)

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def live(open_run: Callable[..., Opened], server: FakeOpenAI) -> Callable[..., Opened]:
    """Opens models that ask the fake server."""

    def make(**values: Any) -> Opened:
        return open_run(**({"model": "tester", "base_url": server.base_url} | values))

    return make
