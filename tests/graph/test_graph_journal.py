"""The contract of a journal, what SQLite's file has to survive, and where a run came from."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows

from tunesmith.graph.journal.events import Asked, Compared, Evaluated, Event, Explained
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import FinalistResult
from tunesmith.graph.journal.store import FORMAT, Journal, JournalError
from tunesmith.graph.run import origin_of
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.outcome import Evaluation

WRITER = """
import sys
from pathlib import Path
from tunesmith.graph.journal.events import Asked
from tunesmith.graph.journal.store import Journal
journal = Journal(Path(sys.argv[1]), create=True)
for number in range(10**9):
    journal.append(Asked(number=number, template="x" * 300, config={}), "round-1")
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Journal:
    return Journal(tmp_path, create=True)


def asked(number: int, **config: Any) -> Asked:
    return Asked(number=number, template="t", config=config)


def evaluated(number: int) -> Evaluated:
    return Evaluated(number=number, evaluation=Evaluation("t", {}, {}))


def test_events_come_back_in_their_order_with_their_contents(store: Journal) -> None:
    sequences = [store.append(asked(number, VEC=4, FAST=True), "round-1") for number in range(5)]
    found = list(store.entries(Asked))
    assert [entry.sequence for entry in found] == sequences == sorted(sequences)
    assert [entry.event for entry in found] == [asked(number, VEC=4, FAST=True) for number in range(5)]
    assert found[0].event.config["FAST"] is True
    assert found[0].stage == "round-1" and abs(found[0].at - time.time()) < 60


def test_kinds_and_stages_select_also_while_entries_are_appended(store: Journal) -> None:
    log = RunLog(store)
    for event, stage in ((asked(0), "1"), (evaluated(0), "1"), (asked(0), "2"), (asked(7), "1"), (asked(1), "2")):
        store.append(event, stage)
    assert [entry.sequence for entry in log.entries(Asked, "1")] == [1, 4]
    assert [entry.sequence for entry in store.entries(Asked, Evaluated, after=1)] == [2, 3, 4, 5]
    assert (log.last(Asked), log.last(Asked, "1"), log.last(Explained)) == (asked(1), asked(7), None)
    for entry in store.entries(Asked):
        store.append(evaluated(entry.sequence))
    assert len(log.entries(Asked)) == 4 and log.evaluation_count == 5
    earlier = RunLog(store, before=4)
    assert [entry.sequence for entry in earlier.entries(Asked)] == [1, 3] and earlier.evaluation_count == 1


@pytest.mark.parametrize("statement", ["UPDATE events SET data = '{}'", "DELETE FROM events"])
def test_nothing_can_be_changed_or_removed(tmp_path: Path, statement: str) -> None:
    with Journal(tmp_path, create=True) as journal:
        journal.append(evaluated(1))
    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()
    with Journal(tmp_path, create=False) as journal:
        assert [entry.event for entry in journal.entries(Event)] == [evaluated(1)]


def test_sessions_and_their_time_add_up(tmp_path: Path) -> None:
    inside = 0.0
    for _ in range(2):
        started = time.monotonic()
        with Journal(tmp_path, create=True) as journal:
            time.sleep(0.2)
            journal.append(evaluated(0))
        inside += time.monotonic() - started
    time.sleep(0.3)
    with Journal(tmp_path, create=False) as journal:
        assert 0.4 <= journal.seconds_spent() <= inside, "the time between sessions does not count"
        journal.append(evaluated(0))
    assert [row.session for row in rows(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("attempt", range(2))
def test_everything_appended_survives_a_kill(tmp_path: Path, attempt: int) -> None:
    """Killed at a random moment: whatever `append` returned for is there, in order, and the file goes on working."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline().strip() == "0"
    with Journal(tmp_path, create=False, reading=True) as reader:
        assert next(reader.entries(Asked)), "a reader does not disturb the writer"
    time.sleep(random.Random(attempt).uniform(0.01, 0.4))
    writer.send_signal(signal.SIGKILL)
    returned = [0, *(int(line) for line in writer.stdout.read().splitlines() if line)]
    writer.wait()
    with Journal(tmp_path, create=False) as journal:
        numbers = [entry.event.number for entry in journal.entries(Asked)]
        assert numbers == list(range(len(numbers)))
        # The last append may have succeeded without its number having been printed in full.
        assert len(numbers) >= len(returned) - 1
        journal.append(asked(len(numbers)))
        assert len(list(journal.entries(Asked))) == len(numbers) + 1


def test_a_folder_without_a_journal_and_one_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is not the folder of a run"):
        Journal(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JournalError, match="cannot be made"):
        Journal(tmp_path / "file" / "run", create=True)


@pytest.mark.parametrize("content", [b"this is no database, whatever its name says" * 50, b"\0" * 4096])
def test_a_file_that_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(JournalError, match=r"journal\.sqlite cannot be used as a journal"):
        Journal(tmp_path, create=False)


@pytest.mark.parametrize(("other", "reading"), [(FORMAT - 1, False), (FORMAT + 1, True)])
def test_a_journal_of_another_version_is_refused(tmp_path: Path, other: int, reading: bool) -> None:
    Journal(tmp_path, create=True).close()
    connection = sqlite3.connect(tmp_path / "journal.sqlite")
    connection.execute(f"PRAGMA user_version = {other}")
    connection.close()
    said = rf"journal format {other}, and this one \(.*\) reads format {FORMAT} only: use the version"
    with pytest.raises(JournalError, match=said):
        Journal(tmp_path, create=False, reading=reading)


def test_what_is_compared_later_takes_nothing_from_what_was_known_before(store: Journal) -> None:
    def compared(**ratios: float) -> Compared:
        entries = (
            FinalistResult(template="t", config={"A": name}, comparison=compare([[ratio]] * 5, [[1.0]] * 5))
            for name, ratio in ratios.items()
        )
        return Compared(workload="w", entries=tuple(entries))

    log = RunLog(store)
    store.append(compared(first=0.8, second=1.3), "round-1")
    assert log.slower_than_baseline("t") == []
    # The finalists that take the place of rejected ones, in the same test.
    store.append(compared(third=1.2), "round-1")
    assert log.slower_than_baseline("t") == []
    store.append(compared(first=1.1), "round-2")
    assert log.slower_than_baseline("t") == ["w"] and log.slower_than_baseline("u") == []


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_command_and_the_tasks_commit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/tunesmith", "tune", "a task/task.toml", "--seed", "7"])
    task = tmp_path / "a task" / "task.toml"
    task.parent.mkdir()
    task.write_text("")
    assert origin_of(str(task)).commit == "", "no repository"
    git(tmp_path, "init")
    assert origin_of(str(task)).commit == "", "the repository does not have the task"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a task")
    found = origin_of(str(task))
    assert found.command == "tunesmith tune 'a task/task.toml' --seed 7"
    assert origin_of(str(task.parent)).commit == found.commit, "a task may be given as its folder"
    assert len(found.commit) == 12 and found.host and found.python.startswith("3.")
    task.write_text("# edited")
    assert origin_of(str(task)).commit == f"{found.commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin_of(str(task)).commit == "", "no git"
