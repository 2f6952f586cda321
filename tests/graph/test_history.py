"""What earlier runs found begins the next: from the results store, and by `--prior`; on a simulated device."""

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from journal_rows import end_after, events, rows
from simulated_pool import SCALE_ADD, SimulatedPool, add_templates, tuned

from tunesmith.graph import resume
from tunesmith.graph.history import (
    MAX_SUGGESTIONS,
    ResultsStore,
    StoredResult,
    evidence,
    open_store,
    prior_of,
    read_prior,
    suggest,
)
from tunesmith.graph.journal.events import (
    EarlierResults,
    Evaluated,
    RunStarted,
    TemplateAdded,
    TemplateResults,
    TemplateVetoed,
)
from tunesmith.graph.journal.log import Journal, JournalError, RunLog
from tunesmith.graph.settings import make_settings
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import Inventory
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.search import Prior
from tunesmith.kernels.space import Space
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import LaunchGeometry, Parameter, Template

pytestmark = pytest.mark.usefixtures("simulation")
run = partial(tuned, evaluations=8, rounds=1, strategy="default")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultsStore:
    monkeypatch.setenv("TUNESMITH_WISDOM", str(tmp_path / "deep" / "wisdom.sqlite"))
    return open_store()


def entry(**changes: Any) -> StoredResult:
    values: dict[str, Any] = {"task": "scale_add", "sizes": {"n": 16384}, "types": {}}
    values |= {"at": "2026-01-01T00:00:00+00:00"}
    values |= {"template": "runs", "config": {"GROUP": 64, "ITEMS": 4, "UNROLL": 1}, "backend": "opencl"}
    values |= {"device": "another device", "driver": "1", "seconds": 1e-6, "ratio": 0.5, "low": 0.49, "high": 0.51}
    return StoredResult.model_validate(values | changes)


def last_suggestions(folder: Path) -> Any:
    (found,) = events(folder, EarlierResults)
    return found.suggestions


def test_what_a_run_finds_is_measured_first_by_the_next(store: ResultsStore, tmp_path: Path) -> None:
    run(tmp_path / "off", wisdom=False)
    assert not store.path.exists() and store.entries() == [], "switched off, nothing is read or kept"
    first = run(tmp_path / "one")
    kept = store.entries("scale_add")
    assert kept and all(one.ratio < 1 and one.run == "one" for one in kept)
    SimulatedPool.measured.clear()
    second = run(tmp_path / "two", seed=5)
    assert SimulatedPool.measured[0] in [one.config for one in kept], "it is measured again, before anything else"
    assert second.summary.ratio <= first.summary.ratio + 1e-9
    assert open_store({"TUNESMITH_WISDOM": "off"}) is None
    assert open_store({"XDG_DATA_HOME": str(tmp_path)}).path == tmp_path / "tunesmith" / "wisdom.sqlite"
    with pytest.raises(TunesmithError, match=r"is a folder; name a file, such as .*/wisdom\.sqlite, or off"):
        open_store({"TUNESMITH_WISDOM": str(tmp_path)})


def test_what_ends_again_keeps_its_date(store: ResultsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run")
    kept = store.entries()
    time.sleep(1.1)  # dates are in seconds
    resume(tmp_path / "run")
    assert kept and store.entries() == kept
    store.path.unlink()
    resume(tmp_path / "run")
    assert store.entries() == kept, "as after a kill before anything was kept"
    (started,) = events(tmp_path / "run", RunStarted)
    newer = replace(started.device, driver="another")
    monkeypatch.setattr("tunesmith.graph.run.inventory_for", lambda backend: Inventory((newer,), ()))
    resume(tmp_path / "run")
    assert store.entries() == kept


def test_another_devices_answers_come_after_this_ones(store: ResultsStore, device: Any, tmp_path: Path) -> None:
    mine = entry(config={"GROUP": 16, "ITEMS": 4, "UNROLL": 0}, device=device.name, ratio=0.9)
    store.keep([entry(ratio=0.1), mine, entry(backend="cuda", config={"GROUP": 4, "ITEMS": 1, "UNROLL": 0})])
    said = list[str]()
    run(tmp_path / "run", listener=lambda progress: said.append(progress.message))
    assert any("earlier runs go first: 2; --no-wisdom omits them" in message for message in said)
    assert SimulatedPool.measured[:2] == [mine.config, entry().config]
    assert [one.device for one in last_suggestions(tmp_path / "run")] == [device.name, "another device"]


def test_what_no_template_of_the_run_can_have_takes_no_place(store: ResultsStore, device: Any, tmp_path: Path) -> None:
    mine = entry(ratio=0.9, device="a third device")
    others = [entry(template="wide", config={"WIDTH": width}, device=device.name, ratio=0.1) for width in range(7)]
    # Of the template's parameters, but infeasible on every workload, or with a value that it does not have.
    broken = [entry(config=entry().config | one, ratio=0.2) for one in ({"ITEMS": 1}, {"GROUP": 5})]
    store.keep([mine, *others, *broken, entry(template="whole", config={}, ratio=0.01)])
    # A model may write a template that has them: they come after what is known to fit.
    task = load_task(SCALE_ADD)
    kept = suggest(task, device, make_settings(task=task.name), [device.limits], written=True)
    assert kept is not None and len(kept.suggestions) == MAX_SUGGESTIONS
    assert [one.config for one in kept.suggestions[:3]] == [mine.config, {"WIDTH": 0}, {"WIDTH": 1}]
    run(tmp_path / "run")
    assert SimulatedPool.measured[0] == mine.config
    assert [one.config for one in last_suggestions(tmp_path / "run")] == [mine.config]


def test_floors_are_from_the_best_roofs_of_the_device(store: ResultsStore, tmp_path: Path, monkeypatch: Any) -> None:
    """The second run measures on a busy machine, the third without the database."""
    floors, notes = [], []
    for name, copy, peak, known in [("idle", 90e9, 5e11, True), ("busy", 60e9, 8e11, True), ("off", 60e9, 8e11, False)]:
        roofs = Roofline(((1 << 20, copy), (1 << 24, copy / 2)), {"float32": peak}, 1e-7)
        monkeypatch.setattr(SimulatedPool, "calibrate", lambda self, roofs=roofs: roofs)
        summary = run(tmp_path / name, wisdom=known).summary
        (row,) = summary.tuned
        floors.append(row.floor_seconds)
        notes += [note for note in summary.notes if "measured now" in note]
        assert summary.roofline.peak_flops == {"float32": peak}
    moved = 3 * 16384 * 4
    assert floors == pytest.approx([moved / 90e9, moved / 90e9, moved / 60e9])
    today = datetime.now(UTC).date()
    (note,) = notes
    assert f"copy bandwidth measured now, 60 GB/s, is far below the 90 GB/s measured on {today}" in note


def test_the_newer_of_two_entries_stays_and_all_travel_as_a_file(store: ResultsStore, tmp_path: Path) -> None:
    new = entry(ratio=0.7, at="2026-02-01T00:00:00+00:00")
    assert (store.keep([entry()]), store.keep([new]), store.keep([entry()])) == (1, 1, 0) and store.entries() == [new]
    assert store.keep([entry(driver="2")]) == 1 and store.write_file(tmp_path / "all.json") == 2
    other = ResultsStore(tmp_path / "other.sqlite")
    assert (other.read_file(tmp_path / "all.json"), other.read_file(tmp_path / "all.json")) == (2, 0)
    assert other.entries() == store.entries()


def test_what_a_change_brought_is_the_median_of_runs_whatever_their_shapes() -> None:
    def found(task: str, day: int, gain: float, bound: str = "memory", **changes: float) -> StoredResult:
        return entry(task=task, at=f"2026-01-0{day}T00:00:00+00:00", bound=bound, changes={"vectors": gain, **changes})

    # A run on three shapes has no more weight than one on a single shape.
    results = [found("first", 1, gain) for gain in (1.2, 1.4, 9.0)] + [found("first", 2, 3.0), found("other", 1, 2.0)]
    results += [found("other", 1, 1.0, "latency"), found("other", 1, 8.0, "unknown"), entry()]
    results += [found("third", 3, 2.0, unrolling=2.5)]
    assert evidence(results) == {
        "memory": [
            "unrolling: 2.50 times as fast (median of 1 run(s), 1 kernel(s)) where memory bound",
            "vectors: 2.00 times as fast (median of 4 run(s), 3 kernel(s)) where memory bound",
        ],
        "latency": ["vectors: 1.00 times as fast (median of 1 run(s), 1 kernel(s)) where latency bound"],
    }
    assert evidence([]) == {}


def test_what_cannot_be_used_is_told_in_a_sentence_and_leaves_no_run(store: ResultsStore, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    with pytest.raises(TunesmithError, match="cannot be read"):
        store.read_file(file)
    file.write_text("no database, but long enough to be taken for one" * 40)
    with pytest.raises(TunesmithError, match=r"cannot be used \(file is not a database\).*TUNESMITH_WISDOM"):
        ResultsStore(file).entries()
    with pytest.raises(TunesmithError, match="is not valid JSON"):
        store.read_file(file)
    foreign = r"does not hold results of earlier runs \(.*\); name a file that .* wrote\.$"
    misspelt = entry().model_dump_json().replace('"seconds"', '"second"')
    misspelt = f'{{"wisdom": 1, "entries": [{misspelt}]}}'
    for text in ("{}", "[]", '{"wisdom": 1}', '{"entries": []}', misspelt):
        file.write_text(text)
        with pytest.raises(TunesmithError, match=foreign if text != misspelt else "'second'; did you mean 'seconds'"):
            store.read_file(file)
    (tmp_path / "empty").mkdir()
    table = '{"tune_params_keys": ["BM"], "tune_params": {"BM": [1, 2]}, "objective": "time", "cache": '
    table += '{"1": {"BM": 1, "time": 1.5}, "2": {"BM": 2, "time": 1.0}}}'
    for name, text, error, sentence in (
        ("nothing", "", TunesmithError, "--prior"),
        ("empty", "", JournalError, "is not the folder of a run"),
        ("file.json", "no table", TunesmithError, "no JSON object"),
        ("file.json", table, TunesmithError, r"have the parameters BM; .* also need GROUP, ITEMS, UNROLL"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=sentence):
            run(tmp_path / "run", prior=str(tmp_path / name))
    assert not (tmp_path / "run").exists()


def asks(folder: Path) -> list[dict[str, Any]]:
    return [row.data["config"] for row in rows(folder, "asked")]


def test_resumed_runs_need_no_source(store: ResultsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = run(tmp_path / "source", evaluations=12)
    chosen: dict[str, Any] = {"evaluations": 6, "prior": str(source.folder)}
    copy = store.path.read_bytes()
    whole = run(tmp_path / "whole", **chosen)
    store.path.write_bytes(copy)
    with monkeypatch.context() as patch:
        end_after(patch, 9, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "ended", **chosen)
    (kept,) = rows(tmp_path / "ended", "history")
    assert kept.data["suggestions"] and kept.data["results"] and kept.data["prior"] == "the run source"
    assert source.summary["general"]["config"] in asks(tmp_path / "whole")
    shutil.rmtree(source.folder)
    store.path.unlink()
    resume(tmp_path / "ended")
    assert asks(tmp_path / "ended") == asks(tmp_path / "whole") and whole.valid


def configs(prior: Prior | None) -> list[dict[str, Any]]:
    return [] if prior is None else [config for config, _ in prior.results]


def test_each_search_gets_the_results_of_its_own_template(tmp_path: Path) -> None:
    task = shutil.copytree(SCALE_ADD.parent, tmp_path / "task")
    add_templates(task, "other")
    source = tuned(tmp_path / "source", task, evaluations=12, rounds=2, seed=3).folder
    measured: dict[str, list[dict[str, Any]]] = {}
    runs, other = (event.template for event in events(source, TemplateAdded))
    for one in events(source, Evaluated):
        measured.setdefault(one.evaluation.template, []).append(one.evaluation.config)
    assert measured.keys() == {runs.id, other.id}

    def priors(name: str, *templates: Template) -> list[Any]:
        with Journal(tmp_path / name, create=True) as journal:
            journal.append(read_prior(source))
            found = [prior_of(RunLog(journal), one, Space.build(one.parameters, [])) for one in templates]
        return [configs(prior) for prior in found]

    # A changed source is another template, of the same name.
    changed = other.model_copy(update={"source": f"// changed\n{other.source}"})
    assert changed.id != other.id
    own, others = measured[runs.id], measured[other.id]
    assert priors("own", runs, other, changed) == [own, others, others]
    # What a role took out of the other run counts no more, and the rest is better than nothing.
    with Journal(source, create=False) as journal:
        journal.append(TemplateVetoed(template=other.id, why="A test says so."), "round-2")
    assert priors("vetoed", runs, other) == [own, own]


def test_results_of_another_template_lead_only_where_the_space_has_them(tmp_path: Path) -> None:
    space = Space.build((Parameter(name="A", values=(1, 2)),), [])
    launch = LaunchGeometry(grid=("1",), block=("1",))
    parameters = space.domain.parameters
    mine = Template(name="mine", backend="opencl", source="//", entry="mine", parameters=parameters, launch=launch)
    kept = EarlierResults(
        prior="another run",
        results=(
            TemplateResults(template="", name="", results=(({"A": 2, "B": 7}, 0.5, None),)),
            TemplateResults(template="x-1", name="x", results=(({"A": 1}, 0.7, None), ({"A": 3}, 0.1, None))),
            TemplateResults(template="y-1", name="mine", results=(({"A": 1}, None, "compile failed"),)),
        ),
    )
    with Journal(tmp_path, create=True) as journal:
        journal.append(kept)
        prior = prior_of(RunLog(journal), mine, space)
    assert prior is not None and {"A": 3} not in configs(prior)
    assert [space.config(point) for point in prior.best(space, 4)] == [{"A": 2}, {"A": 1}]
