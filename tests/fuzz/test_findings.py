"""What files changed at random once found, each by itself: a traceback, or a sentence of several lines."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from journal_rows import alter, rows
from simulated_pool import ended_run, simulate_device

from tunesmith.graph import resume
from tunesmith.graph.journal.store import Journal, JournalError


@pytest.fixture
def ended(tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    ended_run(tmp_path / "run")
    simulate_device(monkeypatch)  # for runs that go on
    return tmp_path / "run"


def test_half_a_character_in_a_journal(ended: Path) -> None:
    """JSON can name it, and no file that is written from it can hold it."""
    (began,) = rows(ended, "run")
    began.data["task"]["description"] = began.data["task"]["caveat"] = began.data["task"]["name"] = "half \ud83d"
    alter(ended, ("UPDATE events SET data = ? WHERE sequence = ?", (json.dumps(began.data), began.sequence)))
    with pytest.raises(JournalError, match=rf"Entry {began.sequence} .*its data is not valid JSON"):
        resume(ended, more=1, as_recorded=True)


def test_a_journal_whose_texts_are_bytes(ended: Path, tmp_path: Path) -> None:
    """SQLite's message quotes the bytes that it cannot read; the sentence is one line all the same."""
    whole = (ended / "journal.sqlite").read_bytes()
    at = whole.index(b"CREATE TABLE events")
    for number, there in enumerate((b"CREATE\n\nTA\xff", b"\xff\xfe\x80", b"CREATE TABLE \n(\n")):
        folder = shutil.copytree(ended, tmp_path / str(number))
        for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
            (folder / name).unlink(missing_ok=True)
        (folder / "journal.sqlite").write_bytes(whole[:at] + there + whole[at + len(there) :])
        with pytest.raises(JournalError, match="cannot be used as a journal") as caught:
            Journal(folder, create=False)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["session", "elapsed"])
def test_a_journal_whose_numbers_are_none(ended: Path, column: str) -> None:
    without = "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'events'"
    alter(ended, ("PRAGMA writable_schema = 1", ()), (without, ()))
    connection = sqlite3.connect(ended / "journal.sqlite", isolation_level=None)
    connection.execute(f"UPDATE events SET {column} = NULL")
    connection.close()
    with pytest.raises(JournalError, match="no session or no time"):
        Journal(ended, create=False)


def test_a_path_of_bytes_that_are_no_text(here: Any, tmp_path: Path, ended: Path) -> None:
    """What cannot be encoded is shown by its numbers."""
    folder = shutil.copytree(ended, tmp_path / os.fsdecode(b"run-\xff"))
    done = here("report", folder)
    assert done.returncode == 0 and "run-\\udcff" in done.stdout, done.stderr


def test_an_evaluation_of_a_template_that_no_entry_has(ended: Path) -> None:
    alter(
        ended, ("UPDATE events SET data = json_set(data, '$.evaluation.template', 'x') WHERE kind = 'evaluation'", ())
    )
    with pytest.raises(JournalError, match="no entry with the template 'x'"):
        resume(ended, more=1)


def test_a_verdict_with_rows_of_a_configuration_that_it_does_not_name(ended: Path) -> None:
    changed = "UPDATE events SET data = json_set(data, '$.verdict.general', NULL) WHERE kind = 'verdict'"
    alter(ended, (changed, ()))
    assert not resume(ended).valid
