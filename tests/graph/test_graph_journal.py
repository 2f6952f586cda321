"""The contract of a journal, what its file has to survive, a run's damaged and foreign files, and which files a command
may replace."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compiling import files_of_at_most
from journal_rows import alter, rows
from simulated_pool import SCALE_ADD

from tunesmith.graph import resume
from tunesmith.graph.history import ResultsStore, read_prior
from tunesmith.graph.journal.events import Asked, Compared, Evaluated, Event, FinalistResult
from tunesmith.graph.journal.log import FORMAT, Journal, JournalError, RunLog
from tunesmith.graph.results.exports import read_results
from tunesmith.graph.results.summary import Summary, compare_runs, read_summary, summary_schema, write_csv
from tunesmith.graph.run import origin_of
from tunesmith.graph.study.exhaust import exhaust
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.outcome import Evaluation
from tunesmith.kernels.search.tables import read_cache

WRITER = """
import sys
from pathlib import Path
from tunesmith.graph.journal.events import Asked
from tunesmith.graph.journal.log import Journal
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


def test_kinds_and_stages_select_also_while_entries_are_appended(store: Journal) -> None:
    log = RunLog(store)
    for event, stage in ((asked(0), "1"), (evaluated(0), "1"), (asked(0), "2"), (asked(7), "1"), (asked(1), "2")):
        store.append(event, stage)
    assert [entry.sequence for entry in log.entries(Asked, "1")] == [1, 4]
    assert [entry.sequence for entry in store.entries(Asked, Evaluated, after=1)] == [2, 3, 4, 5]
    assert (log.last(Asked), log.last(Asked, "1"), log.last(Compared)) == (asked(1), asked(7), None)
    for entry in store.entries(Asked):
        store.append(evaluated(entry.sequence))
    assert len(log.entries(Asked)) == 4 and log.evaluation_count == 5
    earlier = RunLog(store, before=4)
    assert [entry.sequence for entry in earlier.entries(Asked)] == [1, 3] and earlier.evaluation_count == 1

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


def test_nothing_can_be_changed_or_removed(tmp_path: Path) -> None:
    with Journal(tmp_path, create=True) as journal:
        journal.append(evaluated(1))
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        for statement in ("UPDATE events SET data = '{}'", "DELETE FROM events"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
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


def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    told = pytest.raises(JournalError, match=r"cannot be written.*tunesmith resume.*\.$")
    with Journal(tmp_path, create=True) as journal, files_of_at_most(400_000), told:
        for number in range(2000):
            journal.append(asked(number, text="x" * 1000))
    with Journal(tmp_path, create=False) as journal:
        assert [entry.event.number for entry in journal.entries(Asked)] == list(range(number))
        journal.append(asked(number))


def test_what_is_no_journal_and_where_none_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is not the folder of a run"):
        Journal(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"
    for content in (b"this is no database, whatever its name says" * 50, b"\0" * 4096):
        (tmp_path / "journal.sqlite").write_bytes(content)
        with pytest.raises(JournalError, match=r"journal\.sqlite cannot be used as a journal"):
            Journal(tmp_path, create=False)
    with pytest.raises(TunesmithError, match="cannot be made"):
        Journal(tmp_path / "journal.sqlite" / "run", create=True)


@pytest.mark.parametrize(("other", "reading"), [(FORMAT - 1, False), (FORMAT + 1, True)])
def test_a_run_of_another_version_is_refused_and_not_called_damaged(ended: Path, other: int, reading: bool) -> None:
    summary = json.loads((ended / "summary.json").read_text())
    summary["templates"] = [{"id": "of another version's field"}]
    (ended / "summary.json").write_text(json.dumps(summary))
    alter(ended, (f"PRAGMA user_version = {other}", ()))
    said = rf"journal format {other}, and this one \(.*\) reads format {FORMAT} only: use the version"
    for read in (lambda: Journal(ended, create=False, reading=reading), lambda: read_summary(ended)):
        with pytest.raises(JournalError, match=said):
            read()


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
    assert read_summary(str(ended)).to_json() == json.loads(path.read_text()) == written and written["evaluations"] == 3


OF_KIND = "UPDATE events SET data = ? WHERE kind = ?"
DAMAGES = (
    *((OF_KIND, (data, "evaluation"), r"Entry \d+ \(evaluation\) .* is damaged") for data in ("{}", '"text"')),
    (OF_KIND, ("[]", "baseline"), r"Entry \d+ \(baseline\) .* is damaged"),
    (OF_KIND, ("never JSON", "plan"), r"Entry \d+ \(plan\) .* is damaged"),
    (OF_KIND, ('{"settings": 3, "task": {}, "device": {}, "origin": {}}', "run"), r"Entry \d+ \(run\) .* is damaged"),
    # JSON can name half a character, and no file that is written from it can hold it.
    ("UPDATE events SET data = replace(data, ?, ?)", ('"scale_add"', r'"half \ud83d"'), "is not valid JSON"),
    ("UPDATE events SET data = json_set(data, '$.evaluation.template', 'x') WHERE kind = 'evaluation'", (),
     "no entry with the template 'x'"),
)  # fmt: skip


@pytest.mark.parametrize(("statement", "values", "said"), DAMAGES)
def test_a_damaged_entry_is_named(ended: Path, statement: str, values: tuple[str, ...], said: str) -> None:
    alter(ended, (statement, values))
    with pytest.raises(JournalError, match=said):
        resume(ended, more=2, as_recorded=True)
    if values and "plan" not in values:
        with pytest.raises(JournalError, match=said):
            write_csv(ended, ended / "table.csv")


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


def test_odd_paths_are_shown_odd_verdicts_read_and_odd_kinds_named(here: Any, tmp_path: Path, ended: Path) -> None:
    """What cannot be encoded is shown by its numbers."""
    done = here("report", shutil.copytree(ended, tmp_path / os.fsdecode(b"run-\xff")))
    assert done.returncode == 0 and "run-\\udcff" in done.stdout, done.stderr
    alter(ended, ("UPDATE events SET data = json_set(data, '$.verdict.general', NULL) WHERE kind = 'verdict'", ()))
    assert not resume(ended).valid
    alter(ended, ("INSERT INTO events (session, elapsed, at, kind, stage, data) VALUES (9, 0, 0, 'new', '', '{}')", ()))
    with Journal(ended, create=False) as journal, pytest.raises(JournalError, match="there is no kind 'new'"):
        list(journal.entries(Event))


def test_the_schema_in_the_docs_is_that_of_the_summary() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "summary.schema.json").read_text(encoding="utf-8")
    assert text == summary_schema(), "run `make schema`"
    assert set(Summary.model_fields) <= json.loads(text)["properties"].keys()


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
        with pytest.raises(JournalError, match=r"readonly.*make the folder .* writable, or copy"):
            Journal(place / "run", create=False)


def test_each_kind_of_failure_has_its_own_remedy(ended: Path) -> None:
    class Failing:
        code = 0

        def execute(self, *_: object) -> None:
            error = sqlite3.DatabaseError("it failed")
            error.sqlite_errorcode = self.code
            raise error

    journal, failing = Journal(ended, create=False), Failing()
    journal.close()
    journal._connection = failing  # type: ignore[assignment]
    for code, remedy in (
        (sqlite3.SQLITE_FULL, "make room on the disk, and go on with"),
        (sqlite3.SQLITE_IOERR_WRITE, "make room on the disk, or copy the run to another disk, and go on with"),
        (sqlite3.SQLITE_READONLY, "make the folder and its files writable, or copy"),
        (sqlite3.SQLITE_CORRUPT, "restore the file from a copy"),
    ):
        failing.code = code
        with pytest.raises(JournalError, match=remedy):
            journal.append(Asked(number=1, template="t", config={}))
        with pytest.raises(JournalError, match=remedy.partition(", and")[0]):
            list(journal.entries(Asked))


@pytest.fixture(params=["csv", "wisdom"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., int]:
    """Writes a file that repeating the command may replace."""
    if request.param == "wisdom":
        return ResultsStore(tmp_path / "wisdom.sqlite").write_file
    run = request.getfixturevalue("ended")
    return lambda out, **how: write_csv(run, out, **how)


def test_a_file_is_replaced_where_the_command_wrote_it(write: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    write(out)
    text = out.read_bytes()
    out.write_bytes(text + b"\n")
    write(out)
    assert out.read_bytes() == text
    out.write_bytes(b"my only copy")
    with pytest.raises(TunesmithError, match="--force"):
        write(out)
    assert out.read_bytes() == b"my only copy"
    write(out, force=True)
    assert out.read_bytes() == text


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_a_table_that_took_hours_is_replaced_by_force_alone(simulation: Any, tmp_path: Path, name: str) -> None:
    out, kept = tmp_path / name, tmp_path / f"{name}.journal"
    write = partial(exhaust, str(SCALE_ADD), out, backend="opencl", fixed={"ITEMS": 1})
    done = write()
    assert done[1] == len(read_cache(out).results) and not kept.exists()
    with pytest.raises(TunesmithError, match="exists; name another file"):
        write()
    # Killed after the table was written, and before the measurements were removed.
    kept.mkdir()
    (kept / "remark.txt").touch()
    assert write() == done and [one.name for one in kept.iterdir()] == ["remark.txt"] and write(force=True) == done
