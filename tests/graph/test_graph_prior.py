"""A run may begin with what another run or a table knows; it is kept in its own journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from journal_rows import rows
from simulated_pool import simulate_device

from tunesmith.graph import resume, tune
from tunesmith.graph.history import prior_of
from tunesmith.graph.journal.events import EarlierResults, TemplateAdded, TemplateVetoed
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import TemplateResults
from tunesmith.graph.journal.store import Journal, JournalError
from tunesmith.graph.run import RunResult
from tunesmith.graph.settings import SettingsError
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.search import Prior
from tunesmith.kernels.space.space import Space
from tunesmith.kernels.spec.parameter import Parameter
from tunesmith.kernels.spec.template import Launch, Template

TASK = str(Path(__file__).resolve().parent.parent / "data" / "scale_add" / "task.toml")


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    simulate_device(monkeypatch)


def run(folder: Path, **settings: Any) -> RunResult:
    return tune(TASK, run_dir=folder, **({"backend": "opencl", "evaluations": 8, "rounds": 1} | settings))


def asks(folder: Path) -> list[dict[str, Any]]:
    return [row.data["config"] for row in rows(folder, "asked")]


def test_the_best_of_an_earlier_run_is_among_the_first(tmp_path: Path) -> None:
    best = run(tmp_path / "long", evaluations=12).summary["general"]["config"]
    run(tmp_path / "transferred", evaluations=5, prior=str(tmp_path / "long"))
    assert best in asks(tmp_path / "transferred")
    with Journal(tmp_path / "transferred", create=False) as journal:
        log = RunLog(journal)
        (template,) = log.events(TemplateAdded)
        prior = prior_of(log, template.template, Space.build(template.template.parameters, []))
    assert prior is not None and len(prior.results) == 12 and "long" in prior.name


def test_a_resumed_run_needs_the_source_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "source", evaluations=12)
    whole = run(tmp_path / "whole", evaluations=6, prior=str(tmp_path / "source"))
    append, written = Journal.append, [0]

    def append_and_end(self: Journal, *arguments: Any) -> int:
        sequence = append(self, *arguments)
        written[0] += 1
        if written[0] == 9:
            raise KeyboardInterrupt
        return sequence

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_and_end)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "ended", evaluations=6, prior=str(tmp_path / "source"))
    shutil.rmtree(tmp_path / "source")
    resume(tmp_path / "ended")
    assert asks(tmp_path / "ended") == asks(tmp_path / "whole") and whole.valid


def test_what_is_neither_run_nor_table_is_a_sentence_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--prior"):
        run(tmp_path / "run", prior=str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(JournalError):
        run(tmp_path / "run", prior=str(tmp_path / "empty"))
    (tmp_path / "table.json").write_text("no table")
    with pytest.raises(TunesmithError):
        run(tmp_path / "run", prior=str(tmp_path / "table.json"))
    assert not (tmp_path / "run").exists()


def test_a_prior_that_lacks_parameters_is_refused_before_anything_starts(tmp_path: Path) -> None:
    table = tmp_path / "other.json"
    text = '{"tune_params_keys": ["BM"], "tune_params": {"BM": [1, 2]}, "objective": "time", "cache": '
    table.write_text(text + '{"1": {"BM": 1, "time": 1.5}, "2": {"BM": 2, "time": 1.0}}}')
    with pytest.raises(SettingsError, match=r"have the parameters BM; .* also need GROUP, ITEMS, UNROLL"):
        run(tmp_path / "run", prior=str(table))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """scale_add with a second template, which has the same parameters."""
    folder = tmp_path / "task"
    shutil.copytree(Path(TASK).parent, folder)
    text = (folder / "template.toml").read_text().replace('name = "runs"', 'name = "other"')
    (folder / "other.toml").write_text(text.replace("template.cl", "other.cl"))
    (folder / "other.cl").write_text("// other\n" + (folder / "template.cl").read_text())
    described = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(described.replace('["template.toml"]', '["template.toml", "other.toml"]'))
    return folder


def priors(folder: Path) -> dict[str, Prior | None]:
    """The prior of each template of a run, by its name."""
    with Journal(folder, create=False) as journal:
        log = RunLog(journal)
        templates = [event.template for event in log.events(TemplateAdded)]
        return {one.name: prior_of(log, one, Space.build(one.parameters, [])) for one in templates}


def configs(prior: Prior | None) -> list[dict[str, Any]]:
    return [] if prior is None else [config for config, _ in prior.results]


def test_each_search_gets_the_results_of_its_own_template(two: Path, tmp_path: Path) -> None:
    def begin(name: str, **settings: Any) -> Path:
        chosen: dict[str, Any] = {"strategy": "random", "evaluations": 12, "rounds": 2, "seed": 3}
        return tune(two, run_dir=tmp_path / name, backend="opencl", **(chosen | settings)).folder

    source = begin("source")
    measured: dict[str, list[dict[str, Any]]] = {}
    with Journal(source, create=False) as journal:
        log = RunLog(journal)
        for one in log.evaluations():
            measured.setdefault(log.template(one.template).name, []).append(one.config)
        vetoed = next(event.id for event in log.events(TemplateAdded) if event.template.name == "other")
    assert measured.keys() == {"runs", "other"}
    found = priors(begin("own", prior=str(source)))
    assert {name: configs(prior) for name, prior in found.items()} == measured

    # A changed source is another template, of the same name.
    (two / "other.cl").write_text("// changed\n" + (two / "other.cl").read_text())
    assert configs(priors(begin("changed", prior=str(source)))["other"]) == measured["other"]

    # What a role took out of the other run counts no more, and the rest is better than nothing.
    with Journal(source, create=False) as journal:
        journal.append(TemplateVetoed(template=vetoed, why="A test says so."), "round-2")
    found = priors(begin("vetoed", prior=str(source)))
    assert [configs(found[name]) for name in ("runs", "other")] == [measured["runs"]] * 2


def test_results_of_another_template_lead_only_where_the_space_has_them(tmp_path: Path) -> None:
    space = Space.build((Parameter(name="A", values=(1, 2)),), [])
    launch = Launch(grid=("1",), block=("1",))
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
