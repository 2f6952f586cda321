"""The journal: everything that was decided and measured in a run, append-only, on disk before it counts.

Owns the SQLite file. An entry is an event of `tunesmith.graph.journal.events` with its place in the run; nothing is
ever changed or removed (a trigger sees to it). The write-ahead log makes each append durable against the death of the
process at any moment. The state that the entries of a run amount to is read by `tunesmith.graph.journal.log`.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from tunesmith import __version__
from tunesmith.graph.journal.events import KINDS, Event
from tunesmith.hw.errors import TunesmithError, refusals
from tunesmith.kernels.spec.taskfile import explain

FORMAT = 4
"""Version of the table and of all events in it; no other is read. A file in which no journal was begun yet has 0."""
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
CREATE INDEX IF NOT EXISTS events_of_kind ON events (kind, sequence);
CREATE INDEX IF NOT EXISTS time_of_sessions ON events (session, elapsed);
CREATE TRIGGER IF NOT EXISTS events_stay BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER IF NOT EXISTS events_remain BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""

E = TypeVar("E", bound=Event, covariant=True)
T = TypeVar("T", bound=Event)
RESTORE = "restore the file from a copy, or start the run anew in another folder"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: "make the folder and its files writable, or copy the run to where they are",
    sqlite3.SQLITE_PERM: "make the folder and its files readable and writable, or copy the run to where they are",
    sqlite3.SQLITE_CANTOPEN: "make the folder and its files readable and writable, or copy the run to where they are",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: "make room on the disk, or copy the run to another disk",
    sqlite3.SQLITE_BUSY: "end the program that has the file open, or wait for it",
}
"""Remedies by SQLite's codes; other errors mean that the file itself is damaged."""


class JournalError(TunesmithError):
    """The folder holds no run, or a run that this version cannot read."""


@contextmanager
def _explained(failed: str, then: str = "") -> Iterator[None]:
    """Makes a `JournalError` of an error of SQLite's: `failed` with the reason, the remedy, and what to do `then`."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # The lowest byte is the kind of error.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        why = " ".join(str(error).split())
        raise JournalError(f"{failed} ({why}): {_REMEDIES.get(code, RESTORE)}{then}.") from error


@dataclass(frozen=True, slots=True)
class Entry(Generic[E]):
    """An event and its place. at: seconds since the epoch."""

    sequence: int
    at: float
    stage: str
    event: E


class Journal(AbstractContextManager["Journal"]):
    """The journal of the run in `folder`. Opening it begins a new session, whose time is added to the old ones'.

    reading: nothing will be written, so that a run on a disk that is full or read-only can be looked at as well.
    """

    def __init__(self, folder: Path, *, create: bool, reading: bool = False) -> None:
        path, self.folder = folder / "journal.sqlite", folder
        if create:
            with refusals(f"The folder {folder} cannot be made", "choose another --run-dir"):
                folder.mkdir(parents=True, exist_ok=True)
        elif not path.is_file():
            raise not_a_run(folder, "journal.sqlite")
        with _explained(f"{path} cannot be used as a journal"):
            self._connection = _connected(path, reading=reading)
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT):
                raise JournalError(
                    f"{path} was written by a version of Tunesmith with the journal format {version}, and this one "
                    f"({__version__}) reads format {FORMAT} only: use the version that began the run, or tune again in "
                    "another folder."
                )
            tables = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not version and (others := {name for (name,) in tables} - {"events", "sqlite_sequence"}):
                raise JournalError(f"{path} is not a journal of Tunesmith: it has a table {min(others)}; {RESTORE}.")
            if reading and not version:  # an empty file
                self._connection.close()
                self._connection = _open(":memory:")
            if not version:
                self._connection.executescript(_SCHEMA)
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
            ended = self._connection.execute("SELECT session, MAX(elapsed) FROM events GROUP BY session").fetchall()
        if not all(isinstance(one, int) and isinstance(elapsed, int | float) for one, elapsed in ended):
            raise JournalError(f"{path} cannot be used as a journal (an entry has no session or no time): {RESTORE}.")
        self._session = max((session for session, _ in ended), default=0) + 1
        self._before: float = sum(elapsed for _, elapsed in ended)
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def append(self, event: Event, stage: str = "") -> int:
        """Writes one event and returns its sequence number; it is on disk on return. Raises `JournalError`."""
        return self.append_all([(event, stage)])

    def append_all(self, events: Sequence[tuple[Event, str]]) -> int:
        """Writes events with their stages in one transaction, which a kill leaves whole or out; else as `append`."""
        place = self._session, time.monotonic() - self._started, time.time()
        rows = [(*place, event.kind, stage, json.dumps(event.to_json())) for event, stage in events]
        resume = f", and go on with `tunesmith resume {self.folder}`; its measurements are kept"
        with _explained(f"The journal in {self.folder} cannot be written", resume):
            cursor = self._connection.execute(
                "INSERT INTO events (session, elapsed, at, kind, stage, data) VALUES "
                + ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows)),
                [value for row in rows for value in row],
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def entries(self, *kinds: type[T], after: int = 0) -> Iterator[Entry[T]]:
        """Entries of `kinds` (all with `Event`) after the number `after`, in order. Raises `JournalError`."""
        names = [] if Event in kinds else [kind.kind for kind in kinds]
        of_kinds = f"AND kind IN ({', '.join('?' * len(names))})" if names else ""
        query = f"SELECT sequence, at, kind, stage, data FROM events WHERE sequence > ? {of_kinds}"
        with _explained(f"The journal in {self.folder} cannot be read"):
            rows = self._connection.execute(f"{query} ORDER BY sequence", [after, *names]).fetchall()
        for row in rows:
            yield self._read(row)

    def seconds_spent(self) -> float:
        """Working time of all sessions; an old session counts up to its last event."""
        return self._before + time.monotonic() - self._started

    def _read(self, row: tuple[Any, ...]) -> Entry[Any]:
        sequence, at, kind, stage, data = row
        model = KINDS.get(kind)
        why = f"there is no kind '{kind}' in this version"
        if model is not None:
            try:
                return Entry(sequence, at, stage, model.model_validate(from_json(data)))
            except ValidationError as error:
                why = explain(error, None)
            except (ValueError, TypeError) as error:
                why = f"its data is not valid JSON: {error}"
        raise JournalError(
            f"Entry {sequence} ({kind}) of the journal in {self.folder} is damaged or of another version ({why}); "
            f"{RESTORE}."
        )


def not_a_run(path: Path, missing: str) -> JournalError:
    """The error for a `path` without the file `missing` of a run, with the run that it lies in or holds."""
    around = [one for one in path.absolute().parents if (one / "journal.sqlite").is_file()]
    held = sorted((one.parent for one in path.glob("*/journal.sqlite")), key=lambda one: -one.stat().st_mtime)
    meant = next((f"; did you mean {one}?" for one in (*around, *held)), ".")
    why = f"it holds no {missing}" if path.exists() else "it does not exist"
    return JournalError(f"{path} is not the folder of a run: {why}{meant}")


def remove_journal(folder: Path) -> None:
    """Removes the files of the journal in `folder`."""
    for suffix in ("", "-wal", "-shm"):
        (folder / f"journal.sqlite{suffix}").unlink(missing_ok=True)


_open = partial(sqlite3.connect, isolation_level=None, check_same_thread=False, timeout=10)


def _connected(path: Path, *, reading: bool) -> sqlite3.Connection:
    """A connection to the file. One for reading makes no file beside it where it can do without."""
    if reading:
        # Without a write-ahead log no process has the journal open, and the file is complete.
        log = path.with_name(f"{path.name}-wal")
        how = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
        return _open(f"{path.absolute().as_uri()}?{how}", uri=True)
    connection = _open(path)
    connection.execute("PRAGMA journal_mode = WAL")
    # NORMAL loses nothing when the process is killed; only a power cut can take the last commits.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
