"""Damaged and foreign files of a run: one sentence for the user, and what can be written anew is."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from journal_rows import alter

from tunesmith.graph import resume
from tunesmith.graph.history import read_prior
from tunesmith.graph.journal.events import Asked, Event
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import FORMAT, Journal, JournalError
from tunesmith.graph.results.exports import read_results
from tunesmith.graph.results.summary import Summary, read_summary, summary_schema, write_csv
from tunesmith.graph.study.compare import compare_runs

REPOSITORY = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("simulation")


@pytest.mark.parametrize("content", ["{}", "[1]", "", "never JSON", "\udc80", "fast"])
def test_a_damaged_summary_is_one_sentence_and_is_written_anew(ended: Path, content: str) -> None:
    path = ended / "summary.json"
    if content == "fast":
        summary = json.loads(path.read_text())
        summary["tuned"][0]["general"]["ratio"] = content
        content = json.dumps(summary)
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(JournalError, match=r"summary\.json is damaged .*`tunesmith resume .*` writes it anew\.$"):
        read_summary(ended)
    written = resume(ended).summary.to_json()
    assert read_summary(ended).to_json() == json.loads(path.read_text()) == written and written["evaluations"] == 3


def test_a_summary_of_another_version_is_not_called_damaged(ended: Path) -> None:
    summary = json.loads((ended / "summary.json").read_text())
    summary["templates"] = [{"id": "of a former field"}]
    (ended / "summary.json").write_text(json.dumps(summary))
    alter(ended, (f"PRAGMA user_version = {FORMAT - 1}", ()))
    with pytest.raises(JournalError, match=f"journal format {FORMAT - 1}, and this one"):
        read_summary(ended)


OF_EVALUATIONS = "UPDATE events SET data = json_set(data, {}) WHERE kind = 'evaluation'"
ENTRIES = (
    *(("evaluation", "{}"), ("baseline", "[]"), ("plan", "never JSON"), ("evaluation", '"text"')),
    ("run", '{"settings": 3, "task": {}, "device": {}, "origin": {}}'),
)
"""Kinds, and data that entries of them do not have."""


@pytest.mark.parametrize(
    ("statement", "values", "said"),
    [
        *(
            ("UPDATE events SET data = ? WHERE kind = ?", (data, kind), rf"Entry \d+ \({kind}\) .* is damaged")
            for kind, data in ENTRIES
        ),
        # JSON can name half a character, and no file that is written from it can hold it.
        ("UPDATE events SET data = replace(data, ?, ?)", ('"scale_add"', r'"half \ud83d"'), "is not valid JSON"),
        (OF_EVALUATIONS.format("'$.evaluation.template', 'x'"), (), "no entry with the template 'x'"),
    ],
)
def test_a_damaged_entry_is_named(ended: Path, statement: str, values: tuple[str, ...], said: str) -> None:
    alter(ended, (statement, values))
    with pytest.raises(JournalError, match=said):
        resume(ended, more=2, as_recorded=True)
    if values and "plan" not in values:
        with pytest.raises(JournalError, match=said):
            write_csv(ended, ended / "table.csv")


def test_an_entry_of_an_unknown_kind_is_named(ended: Path) -> None:
    alter(ended, ("INSERT INTO events (session, elapsed, at, kind, stage, data) VALUES (9, 0, 0, 'new', '', '{}')", ()))
    with Journal(ended, create=False) as journal, pytest.raises(JournalError, match="there is no kind 'new'"):
        list(journal.entries(Event))


def test_a_verdict_with_rows_of_a_configuration_that_it_does_not_name(ended: Path) -> None:
    alter(ended, ("UPDATE events SET data = json_set(data, '$.verdict.general', NULL) WHERE kind = 'verdict'", ()))
    assert not resume(ended).valid


def test_a_journal_whose_texts_are_bytes(ended: Path, tmp_path: Path) -> None:
    """SQLite's message quotes the bytes that it cannot read; the sentence is one line all the same."""
    whole = (ended / "journal.sqlite").read_bytes()
    at = whole.index(b"CREATE TABLE events")
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (ended / name).unlink(missing_ok=True)
    for there in (b"CREATE\n\nTA\xff", b"\xff\xfe\x80", b"CREATE TABLE \n(\n"):
        (ended / "journal.sqlite").write_bytes(whole[:at] + there + whole[at + len(there) :])
        with pytest.raises(JournalError, match="cannot be used as a journal") as caught:
            Journal(ended, create=False)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["session", "elapsed"])
def test_a_journal_whose_numbers_are_none(ended: Path, column: str) -> None:
    without = "UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = 'events'"
    alter(ended, ("PRAGMA writable_schema = 1", ()), (without, ()))
    with closing(sqlite3.connect(ended / "journal.sqlite", isolation_level=None)) as connection:
        connection.execute(f"UPDATE events SET {column} = NULL")
    with pytest.raises(JournalError, match="no session or no time"):
        Journal(ended, create=False)


def test_a_path_of_bytes_that_are_no_text(here: Any, tmp_path: Path, ended: Path) -> None:
    """What cannot be encoded is shown by its numbers."""
    done = here("report", shutil.copytree(ended, tmp_path / os.fsdecode(b"run-\xff")))
    assert done.returncode == 0 and "run-\\udcff" in done.stdout, done.stderr


def test_the_log_keeps_up_with_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path, create=True) as journal:
        log = RunLog(journal)
        for number in range(5):
            journal.append(Asked(number=number, template="t", config={}), f"round-{number % 2}")
            assert [event.number for event in log.events(Asked)] == list(range(number + 1))
        assert [event.number for event in log.events(Asked, "round-1")] == [1, 3]


def test_the_schema_in_the_docs_is_that_of_the_summary() -> None:
    path = REPOSITORY / "docs" / "summary.schema.json"
    assert path.read_text(encoding="utf-8") == summary_schema(), "run `make schema`"
    assert set(Summary.model_fields) <= json.loads(summary_schema())["properties"].keys()


@contextmanager
def locked(run: Path) -> Iterator[Path]:
    """A folder with two copies of a run, "run" and "other", that this process may only read, also where it is root's:
    as on a disk that is mounted read-only, or of another user."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folders = [Path(place, name) for name in ("run", "other")]
        for folder in folders:
            shutil.copytree(run, folder)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)
        os.chmod(place, 0o777)
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(place)
        finally:
            if user == 0:
                os.seteuid(0)
            for folder in folders:
                folder.chmod(0o755)


READERS: dict[str, Callable[[Path], object]] = {
    "csv": lambda place: write_csv(place / "run", place / "table.csv"),
    "t4": lambda place: read_results(place / "run"),
    "compare": lambda place: compare_runs([place / "run", place / "other"]),
    "prior": lambda place: read_prior(place / "run"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_run_that_cannot_be_written_is_read(ended: Path, reader: str) -> None:
    shutil.copytree(ended, ended.parent / "other")
    READERS[reader](ended.parent)  # imports what it needs
    with locked(ended) as place:
        READERS[reader](place)
        assert not list(place.glob("*/journal.sqlite-*"))


def test_a_run_that_cannot_be_written_is_not_called_damaged(ended: Path) -> None:
    with locked(ended) as place, pytest.raises(JournalError, match=r"readonly.*make the folder .* writable, or copy"):
        Journal(place / "run", create=False)


def test_what_a_killed_run_left_in_the_log_is_read(ended: Path) -> None:
    with Journal(ended, create=False) as journal:
        journal.append(Asked(number=99, template="t", config={}))
        with Journal(ended, create=False, reading=True) as reader:
            last = RunLog(reader).last(Asked)
    assert last is not None and last.number == 99


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (sqlite3.SQLITE_FULL, "make room on the disk, and go on with"),
        (sqlite3.SQLITE_IOERR_WRITE, "make room on the disk, or copy the run to another disk, and go on with"),
        (sqlite3.SQLITE_READONLY, "make the folder and its files writable, or copy"),
        (sqlite3.SQLITE_CORRUPT, "restore the file from a copy"),
    ],
)
def test_each_kind_of_failure_has_its_own_remedy(ended: Path, code: int, remedy: str) -> None:
    class Failing:
        def execute(self, *_: object) -> None:
            error = sqlite3.DatabaseError("it failed")
            error.sqlite_errorcode = code
            raise error

    journal = Journal(ended, create=False)
    journal.close()
    journal._connection = Failing()  # type: ignore[assignment]
    with pytest.raises(JournalError, match=remedy):
        journal.append(Asked(number=1, template="t", config={}))
    with pytest.raises(JournalError, match=remedy.partition(", and")[0]):
        list(journal.entries(Asked))
