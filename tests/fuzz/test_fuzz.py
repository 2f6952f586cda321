"""Task files, templates, expressions, sources, settings, tables and the files of a run, changed at random.

Whatever is read ends in a result or in one sentence with exit code 2: no traceback, no hang. In the usual suite each
test tries a few dozen examples, always the same. TUNESMITH_FUZZ=100 has each try a hundred times as many new ones:

    TUNESMITH_FUZZ=100 python -m pytest tests/fuzz -m "" -p no:cacheprovider
"""

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from journal_rows import alter
from mutations import EXPRESSIONS, VALUES, json_texts, toml_texts
from simulated_pool import SCALE_ADD, simulate_device

from tunesmith.graph.settings import make_settings, read_settings
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.reader.parse import SourceError
from tunesmith.kernels.reader.syntax import Syntax
from tunesmith.kernels.rewrite.facts import Facts
from tunesmith.kernels.rewrite.sharing import sharing
from tunesmith.kernels.spec.expression import ExpressionError, parse
from tunesmith.kernels.spec.taskfile import load_task, parse_config

TIMES = int(os.environ.get("TUNESMITH_FUZZ", "1"))
"""How many times as many examples each test tries."""
HANG_SECONDS = 30
"""No example takes a tenth of this."""
pytestmark = pytest.mark.timeout(120 * TIMES)


class Hang(Exception):
    """An example does not end."""


@contextmanager
def deadline() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(examples: int, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Tries `check` on `examples` values of `strategy`, or on many more."""

    def one(value: Any) -> None:
        with deadline():
            check(value)

    usual = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    number = 0 if TIMES == 1 else random.randrange(2**32)
    settings(max_examples=examples * TIMES, **usual)(seed(number)(given(strategy)(one)))()


@pytest.fixture
def said(here: Any) -> Callable[..., int]:
    """Runs a command line here; it must succeed, or tell the mistake in one sentence. Gives the exit code."""

    def run(*arguments: object) -> int:
        done = here(*arguments)
        assert done.returncode in (0, 2, 3), done.stderr
        assert not any(word in done.stderr for word in ("Traceback", "pydantic", "bug in Tunesmith")), done.stderr
        if done.returncode == 2:
            last = done.stderr.strip().split("\n")[-1]
            assert last.startswith("tunesmith: ") and last.endswith((".", "?")), done.stderr
            assert done.stdout == "" or "--json" in arguments
        return int(done.returncode)

    return run


def test_expressions() -> None:
    def check(text: str) -> None:
        try:
            parse(text).evaluate({"n": np.arange(4), "GROUP": 16, "ITEMS": 0, "T": "float16"})
        except ExpressionError as error:
            assert str(error).endswith(".") and str(error).encode(), "it can be printed"

    fuzz(400, EXPRESSIONS, check)


def test_sources() -> None:
    def check(code: str) -> None:
        try:
            found = Facts(Syntax(code, "cuda", None))
            sharing(found)
            assert isinstance(found.oddities, dict)
            draft(code, None, "the source")
        except SourceError as error:
            assert str(error).startswith("the source")

    fuzz(100, st.text(alphabet="__global__ void k(float* p){}[];<>=+*if for return 0123\n#define", max_size=200), check)


@pytest.mark.parametrize(("name", "options"), [("task.toml", ()), ("template.toml", ("--json",))])
def test_task_files(tmp_path: Path, device: Any, said: Callable[..., int], name: str, options: Any) -> None:
    task = shutil.copytree(SCALE_ADD.parent, tmp_path / "task")
    whole = (task / name).read_text()

    def check(text: str) -> None:
        (task / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        said("space", task / "task.toml", *options)

    fuzz(20, toml_texts(whole), check)


def test_configurations() -> None:
    (template,) = load_task(SCALE_ADD).sources("opencl").templates

    def check(text: str) -> None:
        try:
            parse_config(text, template)
        except TunesmithError as error:
            assert str(error).endswith((".", "?"))

    fuzz(60, json_texts({"GROUP": 16, "ITEMS": 1, "UNROLL": 0}), check)


def test_settings_files(tmp_path: Path) -> None:
    lines = 'evaluations = 3\ntime_limit = "10m"\nmodel_option = { temperature = 0.2 }\nmodel = "none"\n'
    lines += 'model_for = { plan = "large" }\nseed = 1\nmax_cost = 1.5\n\n[roles.own]\nafter = "plan"\n'

    def check(text: str) -> None:
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            make_settings(**{"task": "any", **read_settings(path)})
        except TunesmithError as error:
            assert "pydantic" not in str(error) and str(error).endswith((".", "?"))

    fuzz(60, toml_texts(lines), check)


def test_option_values(said: Callable[..., int]) -> None:
    options = ["--evaluations", "--rounds", "--seed", "--time-limit", "--max-cost", "--strategy", "--prior", "--target"]
    options += ["--model-for", "--model-option", "--workers", "--backend", "--settings", "--finalists", "--model"]

    def check(given: tuple[str, Any]) -> None:
        option, value = given
        # A command line holds no zero bytes.
        text = str(value).replace("\x00", "").encode(errors="replace")
        said("tune", "there-is-no-such-task", option, os.fsdecode(text))

    fuzz(20, st.tuples(st.sampled_from(options), VALUES), check)


def test_tables(tmp_path: Path, said: Callable[..., int]) -> None:
    table: dict[str, Any] = {"device_name": "a device", "kernel_name": "a kernel", "objective": "time"}
    table |= {"tune_params_keys": ["GROUP", "ITEMS"], "tune_params": {"GROUP": [1, 16], "ITEMS": [1, 4]}}
    table["cache"] = {
        f"{group},{items}": {"GROUP": group, "ITEMS": items, "time": 1.0 + group * items, "compile_time": 3.0}
        for group in (1, 16)
        for items in (1, 4)
    }

    def check(text: str) -> None:
        path = tmp_path / "table.json"
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        said("simulate", path, "--budgets", "2", "--seeds", "1", "--strategy", "random")

    fuzz(20, json_texts(table), check)


@pytest.fixture(autouse=True)
def simulation(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs that go on."""
    simulate_device(monkeypatch)


def test_summaries(ended: Path, said: Callable[..., int]) -> None:
    path = ended / "summary.json"
    whole = json.loads(path.read_text())

    def check(text: str) -> None:
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        said("report", ended)
        said("report", ended, "--json")

    fuzz(30, json_texts(whole), check)


def checkpointed(run: Path) -> list[tuple[int, str]]:
    """Number and data of each entry of a journal, all of which is now in one file."""
    connection = sqlite3.connect(run / "journal.sqlite")
    rows: list[tuple[int, str]] = connection.execute("SELECT sequence, data FROM events").fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return rows


def test_journals(ended: Path, tmp_path: Path, said: Callable[..., int]) -> None:
    rows = checkpointed(ended)
    changed = st.sampled_from(rows).flatmap(
        lambda row: st.tuples(st.just(row[0]), json_texts(json.loads(row[1])), st.booleans())
    )
    number = 0

    def check(change: tuple[int, str, bool]) -> None:
        nonlocal number
        sequence, data, more = change
        number += 1
        copy = shutil.copytree(ended, tmp_path / f"copy-{number}")
        alter(copy, ("UPDATE events SET data = ? WHERE sequence = ?", (data, sequence)))
        said("report", copy, "--csv", copy / "table.csv")
        said("resume", copy, *(("--more", 1) if more else ()))
        shutil.rmtree(copy)

    fuzz(10, changed, check)


def test_journals_that_are_no_database(ended: Path, tmp_path: Path, said: Callable[..., int]) -> None:
    checkpointed(ended)
    whole = (ended / "journal.sqlite").read_bytes()
    places = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=16)), max_size=4)

    def check(change: tuple[list[tuple[int, bytes]], int]) -> None:
        written, kept = change
        data = bytearray(whole)
        for at, bytes_there in written:
            data[at : at + len(bytes_there)] = bytes_there
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        copy = shutil.copytree(ended, tmp_path / "copy")
        (copy / "journal.sqlite").write_bytes(data[:kept])
        said("report", copy, "--csv", copy / "table.csv")
        said("resume", copy)

    sizes = st.one_of(st.just(len(whole)), st.just(len(whole)), st.integers(0, len(whole)))
    fuzz(10, st.tuples(places, sizes), check)
