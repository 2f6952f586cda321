"""The database of a user's results: one SQLite file, which several runs may use at once.

TUNESMITH_WISDOM names the file, or is `off`; left out it is `tunesmith/wisdom.sqlite` in XDG_DATA_HOME, or in
~/.local/share (XDG base directory specification).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tunesmith.graph.outputs import require_writable_file
from tunesmith.hw.errors import TunesmithError, named_path
from tunesmith.kernels.spec.files.schema_errors import explain
from tunesmith.kernels.spec.parameter import Config, config_key

VARIABLE = "TUNESMITH_WISDOM"
FORMAT = 1
_EXPORTED = "name one that `tunesmith wisdom export` wrote"
_COLUMNS = ("task", "template", "config", "backend", "device", "driver", "workload", "entry")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS results (
    {", ".join(f"{name} TEXT NOT NULL" for name in _COLUMNS)},
    PRIMARY KEY (task, template, config, backend, device, driver, workload)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS roofs (
    device TEXT NOT NULL, roof TEXT NOT NULL, rate REAL NOT NULL, at TEXT NOT NULL, PRIMARY KEY (device, roof)
) WITHOUT ROWID;
"""


class WisdomError(TunesmithError):
    """The database, or a file of its entries, cannot be used."""


class Known(BaseModel):
    """A configuration on one shape. seconds of a launch, cold; ratio: to the baseline's time, with its 99 % interval
    from low to high; at: when it was measured, ISO 8601, UTC; run: the folder's name, for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    template: str
    config: Config
    backend: str
    device: str
    driver: str
    sizes: dict[str, int]
    types: dict[str, str]
    seconds: float
    ratio: float
    low: float
    high: float
    at: str
    run: str = ""
    tunesmith: str = ""


class Wisdom:
    """The entries in the file `path`, which is made when something is first kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, entries: Iterable[Known]) -> int:
        """Writes entries; of two on the same configuration, device, driver and shape the newer stays. Gives how many
        were written. Raises `WisdomError`."""
        count = 0
        with self._open(create=True) as connection, connection:
            for entry in entries:
                known = connection.execute(
                    "SELECT entry FROM results WHERE " + " AND ".join(f"{name} = ?" for name in _COLUMNS[:-1]),
                    _key(entry),
                ).fetchone()
                if known is None or json.loads(known[0])["at"] < entry.at:
                    row = (*_key(entry), entry.model_dump_json())
                    connection.execute(f"REPLACE INTO results VALUES ({', '.join('?' * len(row))})", row)
                    count += 1
        return count

    def entries(self, task: str | None = None) -> list[Known]:
        """All entries, or those of a task, by name. Raises `WisdomError`."""
        if not self.path.is_file():
            return []
        where, values = ("", ()) if task is None else (" WHERE task = ?", (task,))
        with self._open(create=False) as connection:
            rows = connection.execute(f"SELECT entry FROM results{where}", values).fetchall()
        try:
            return [Known.model_validate_json(text) for (text,) in rows]
        except ValidationError as error:
            raise self._damaged(error) from error

    def best_roofs(self, device: str, measured: Mapping[str, float]) -> dict[str, tuple[float, str]]:
        """The highest rate ever measured of each roof of a device, per second, and when (ISO 8601, UTC). measured: the
        rates found now, which are kept where they are the highest. Raises `WisdomError`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._open(create=True) as connection, connection:
            connection.executemany(
                "INSERT INTO roofs VALUES (?, ?, ?, ?) ON CONFLICT (device, roof) "
                "DO UPDATE SET rate = excluded.rate, at = excluded.at WHERE excluded.rate > rate",
                [(device, roof, rate, now) for roof, rate in measured.items()],
            )
            rows = connection.execute("SELECT roof, rate, at FROM roofs WHERE device = ?", (device,)).fetchall()
        return {roof: (rate, at) for roof, rate, at in rows}

    def write_file(self, path: Path, *, force: bool = False) -> int:
        """All entries as JSON, for another machine; force: also over a file of others. Gives their number. Raises
        `WisdomError`, and `OutputError` where `path` must not be written."""
        require_writable_file(path, "wisdom export", begins=b'{\n "wisdom": ', force=force)
        entries = self.entries()
        data = {"wisdom": FORMAT, "entries": [entry.model_dump(mode="json") for entry in entries]}
        try:
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise WisdomError(f"{path} cannot be written ({error.strerror}); choose another file.") from error
        return len(entries)

    def read_file(self, path: Path) -> int:
        """Keeps the entries of a file that `write_file` wrote. Gives how many were new. Raises `WisdomError`."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise WisdomError(f"{path} cannot be read ({error.strerror}); {_EXPORTED}.") from error
        except (ValueError, RecursionError) as error:
            raise WisdomError(f"{path} is not valid JSON ({_first_line(error)}); {_EXPORTED}.") from error
        if not isinstance(data, dict) or "wisdom" not in data or not isinstance(data.get("entries"), list):
            raise WisdomError(f"{path} holds no results of earlier runs; {_EXPORTED}.")
        if data["wisdom"] != FORMAT:
            raise WisdomError(f"{path} has the format {data['wisdom']}, and this version reads {FORMAT}.")
        found = []
        for number, one in enumerate(data["entries"], 1):
            try:
                found.append(Known.model_validate(one))
            except ValidationError as error:
                why = explain(error, Known, one)
                end = "" if why.endswith("?") else "; export the file again."
                raise WisdomError(f"{path}, entry {number}: {why}{end}") from error
        return self.keep(found)

    @contextmanager
    def _open(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=10)) as connection:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version not in (0, FORMAT):
                    raise WisdomError(
                        f"{self.path} has the format {version}, and this version reads {FORMAT}: set {VARIABLE} to "
                        "another file, or to off."
                    )
                if create:
                    connection.executescript(_SCHEMA)
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                yield connection
        except (sqlite3.DatabaseError, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> WisdomError:
        return WisdomError(
            f"The database of earlier results {self.path} cannot be used ({_first_line(error)}): delete it, or set "
            f"{VARIABLE} to another file or to off."
        )


def open_wisdom(environment: Mapping[str, str] | None = None) -> Wisdom | None:
    """The database of this user, or None where it is switched off, or there is no home to keep it in."""
    environment = os.environ if environment is None else environment
    where = environment.get(VARIABLE, "")
    if where.lower() == "off":
        return None
    if where:
        path = named_path(VARIABLE, where)
        if path.is_dir():
            raise WisdomError(f"{VARIABLE}: {path} is a folder; name a file, such as {path / 'wisdom.sqlite'}, or off.")
        return Wisdom(path)
    home = Path(environment.get("XDG_DATA_HOME", ""))
    try:
        return Wisdom(
            (home if home.is_absolute() else Path.home() / ".local" / "share") / "tunesmith" / "wisdom.sqlite"
        )
    except RuntimeError:
        return None


def _key(entry: Known) -> tuple[str, ...]:
    shape: dict[str, Any] = {"sizes": entry.sizes, "types": entry.types}
    workload = json.dumps(shape, sort_keys=True)
    return (
        entry.task,
        entry.template,
        config_key(entry.config),
        entry.backend,
        entry.device,
        entry.driver,
        workload,
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
