"""A run's journal as it is on disk: rows with their data as plain JSON, whatever the models of events make of it."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tunesmith.graph.journal.events import Event
from tunesmith.graph.journal.log import Journal, RunLog

T = TypeVar("T", bound=Event)


class Killed(BaseException):
    """The end of the process, for tests: nothing may catch it."""


def end_after(monkeypatch: pytest.MonkeyPatch, count: int, error: type[BaseException] = Killed) -> None:
    """The process ends when it has written `count` entries, or the transaction that has the last of them."""
    append_all, written = Journal.append_all, [0]

    def append_and_end(self: Journal, events: Sequence[Any]) -> int:
        sequence = append_all(self, events)
        before, written[0] = written[0], written[0] + len(events)
        if before < count <= written[0]:
            raise error
        return sequence

    monkeypatch.setattr(Journal, "append_all", append_and_end)


@dataclass(frozen=True)
class Row:
    sequence: int
    session: int
    stage: str
    kind: str
    data: dict[str, Any]


def rows(folder: Path, kind: str | None = None) -> list[Row]:
    """The journal's rows in their order; of one kind, or all."""
    connection = sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True)
    try:
        query = "SELECT sequence, session, stage, kind, data FROM events ORDER BY sequence"
        found = [Row(*row[:4], json.loads(row[4])) for row in connection.execute(query)]
    finally:
        connection.close()
    return [row for row in found if kind is None or row.kind == kind]


def events(folder: Path, kind: type[T], stage: str | None = None) -> list[T]:
    """The journal's entries of one kind, of a stage or all, as a run reads them."""
    with Journal(folder, create=False, reading=True) as journal:
        return RunLog(journal).events(kind, stage)


def alter(run: Path, *statements: tuple[str, Any]) -> None:
    """Changes the journal of `run` as no program of ours does."""
    connection = sqlite3.connect(run / "journal.sqlite", isolation_level=None)
    connection.execute("DROP TRIGGER IF EXISTS events_stay")
    for statement, values in statements:
        connection.execute(statement, values)
    connection.close()
