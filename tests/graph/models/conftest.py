"""A fake server, and the models of a run that ask it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI
from opened_models import KEY, Opened

from tunesmith.graph.journal.log import Journal
from tunesmith.graph.models.opening import open_models
from tunesmith.graph.progress import Progress
from tunesmith.graph.settings import make_settings


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(KEY) as made:
        made.answers = {"Move": {"name": "unroll", "factor": 4}}
        yield made


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def open_run(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens the models of the run in a folder, again for the same folder: as `tunesmith resume` does."""
    with ExitStack() as journals:

        def make(folder: str = "run", **values: Any) -> Opened:
            settings, said = make_settings(task="scale_add", **values), list[str]()
            journal = journals.enter_context(Journal(tmp_path / folder, create=True))
            limit = math.inf if settings.time_limit is None else settings.time_limit

            def seconds_left() -> float:
                return limit - (time.monotonic() - opened)

            def listen(progress: Progress) -> None:
                said.append(progress.message)

            models = open_models(settings, journal, tmp_path / folder, listen, seconds_left)
            opened = time.monotonic()
            return Opened(tmp_path / folder, journal, models, settings, said)

        yield make


@pytest.fixture
def live(open_run: Callable[..., Opened], server: FakeOpenAI) -> Callable[..., Opened]:
    """Opens models that ask the fake server."""
    return lambda **values: open_run(**({"model": "tester", "base_url": server.base_url} | values))
