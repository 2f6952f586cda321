"""The journal: everything that was decided and measured in a run, append-only, on disk before it counts.

Owns the SQLite file. An event is a kind, a stage and a JSON object; nothing is ever changed or removed (a trigger sees
to it). The write-ahead log makes each append durable against the death of the process at any moment. Meaning is given
to events by those who write them: the roles.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunesmith.hw.errors import TunesmithError

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    elapsed REAL NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    stage TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind, stage);
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER IF NOT EXISTS events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


class JournalError(TunesmithError):
    """The folder holds no run, or one that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry. at: seconds since the epoch; session: which process wrote it, counted from 1."""

    sequence: int
    session: int
    at: float
    kind: str
    stage: str
    data: dict[str, Any]


class Store(Protocol):
    """What roles need of a journal; tests/graph/test_graph_journal.py is its contract."""

    def append(self, kind: str, data: dict[str, Any], stage: str = "") -> int: ...
    def events(self, kind: str | None = None, stage: str | None = None) -> Iterator[Event]: ...
    def last(self, kind: str, stage: str | None = None) -> Event | None: ...
    def count(self, kind: str) -> int: ...
    def seconds_spent(self) -> float: ...


class Journal:
    """The journal of the run in `folder`. Opening it begins a new session, whose time is added to the old ones'."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        path, self._folder = folder / "journal.sqlite", folder
        if create:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                why = error.strerror
                raise JournalError(f"The folder {folder} cannot be made ({why}); choose another --run-dir.") from error
        elif not path.is_file():
            raise JournalError(f"{folder} is not the folder of a run: it holds no journal.sqlite.")
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # NORMAL loses nothing when the process is killed; only a power cut can take the last commits.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise JournalError(f"{path} has the format {version}; this version of Tunesmith reads {FORMAT}.")
            self._connection.executescript(_SCHEMA)
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            row = self._connection.execute("SELECT MAX(session) FROM events").fetchone()
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path} cannot be used as a journal: {error}.") from error
        self._session = (row[0] or 0) + 1
        self._started = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def append(self, kind: str, data: dict[str, Any], stage: str = "") -> int:
        """Writes one event and returns its sequence number; it is on disk on return. Raises `JournalError`."""
        row = (self._session, time.monotonic() - self._started, time.time(), kind, stage, json.dumps(data))
        try:
            cursor = self._connection.execute(
                "INSERT INTO events (session, elapsed, at, kind, stage, data) VALUES (?, ?, ?, ?, ?, ?)", row
            )
        except sqlite3.OperationalError as error:
            raise JournalError(
                f"The journal in {self._folder} cannot be written ({error}); what was measured before is kept: make "
                f"room on the disk, and go on with `tunesmith resume {self._folder}`."
            ) from error
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def events(self, kind: str | None = None, stage: str | None = None) -> Iterator[Event]:
        """Events in the order they were written."""
        query = "SELECT sequence, session, at, kind, stage, data FROM events WHERE 1"
        values: list[str] = []
        if kind is not None:
            query, values = query + " AND kind = ?", [*values, kind]
        if stage is not None:
            query, values = query + " AND stage = ?", [*values, stage]
        for row in self._connection.execute(query + " ORDER BY sequence", values).fetchall():
            yield Event(row[0], row[1], row[2], row[3], row[4], json.loads(row[5]))

    def last(self, kind: str, stage: str | None = None) -> Event | None:
        """The newest event of a kind, if any."""
        found = None
        for event in self.events(kind, stage):
            found = event
        return found

    def count(self, kind: str) -> int:
        number: int = self._connection.execute("SELECT COUNT(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0]
        return number

    def seconds_spent(self) -> float:
        """Working time of all sessions; an old session counts up to its last event."""
        rows = self._connection.execute(
            "SELECT MAX(elapsed) FROM events WHERE session < ? GROUP BY session", (self._session,)
        ).fetchall()
        total: float = sum(row[0] for row in rows) + time.monotonic() - self._started
        return total
