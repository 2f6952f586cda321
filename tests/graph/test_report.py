"""The report of runs on a simulated device: as data, as HTML in a real browser, and as Markdown."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import ended_run

from tunesmith.graph.journal.events import Evaluated, Figures, OpponentRow
from tunesmith.graph.journal.log import Journal, RunLog
from tunesmith.graph.results import report
from tunesmith.graph.results.report import effect_charts, render_markdown, render_report, search_charts
from tunesmith.graph.results.summary import Summary, read_summary
from tunesmith.kernels.outcome import Evaluation, Measured
from tunesmith.kernels.spec.template import assignments

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MAX_PAGE_BYTES = 150_000
Found = tuple[RunLog, Summary, Path]


@pytest.fixture(scope="module")
def found(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """A run of 20 of the 28 feasible points, some of which fail to compile."""
    folder = ended_run(tmp_path_factory.mktemp("report") / "run", evaluations=20, rounds=2, seed=3).folder
    with Journal(folder, create=False) as journal:
        yield RunLog(journal), read_summary(folder), folder


def test_the_page_begins_with_what_matters(found: Found) -> None:
    log, summary, folder = found
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page == render_report(log, summary), "what the run wrote can be made again from its journal"
    assert len(page.encode()) < MAX_PAGE_BYTES
    body = page[page.index("<body>") :]
    sections = re.findall(r'<h2 id="([^"]*)">', body)
    ending = ["failures", "examination", "source", "caveats"]
    assert sections == ["speed-up", "times", "search", "parameters", "plans", *ending]
    assert re.findall(r'<a href="#([^"]*)">', body[: body.index("<h2")]) in (sections, ["caveats", *sections])
    assert body.index(summary.sentence) < body.index(summary.device.name) < body.index("<h2")
    assert summary.origin is not None and summary.origin.commit and "UTC on " + summary.origin.host in body
    assert "seed 3" in body
    config = (summary.general or pytest.fail("nothing is right")).config
    assert assignments(config) in body and f"#define GROUP {config['GROUP']}" in body
    assert not re.search(r"<td>\s*-\s*</td>", body) and ">None<" not in body and "nan" not in body
    links = set(re.findall(r'(?:src|href)="(?!data:,|#)([^"]*)"', page))
    assert "best/" in links and all((folder / link).exists() for link in links) and "<script" not in page
    _, summary, _ = found
    text = render_markdown(summary)
    assert text.startswith(f"## {summary.task} on {summary.device.name}\n\n**{summary.sentence}**\n")
    table = [line for line in text.splitlines() if line.startswith("|")]
    for row in (*summary.tuned, *summary.held_out):
        assert any(line.startswith(f"| {row.workload}") for line in table)
    assert "\n\n\n" not in text and text.count("<details>") == text.count("</details>") == 1 and len(text) < 20_000


def test_every_configuration_is_in_the_chart_and_effects_are_the_device_s(found: Found) -> None:
    log, summary, _ = found
    (chart,) = search_charts(log, summary)
    evaluations = log.evaluations()
    assert [text.split(":")[0] for *_, text in chart.marks] == [f"number {at + 1}" for at in range(len(evaluations))]
    failed = [text for _, _, kind, text in chart.marks if kind == "failed"]
    assert len(failed) == sum(one.failure is not None for one in evaluations) > 0
    assert all("compile_failed" in text and "GROUP=1," in text for text in failed)
    # The best so far goes down only, and ends at the least time that was measured.
    (heights,) = ([y for _, y in corners] for kind, corners in chart.lines if kind == "sofar")
    assert heights == sorted(heights)
    least = min(one.seconds for e in evaluations for one in e.outcomes.values() if isinstance(one, Measured))
    assert heights[-1] == pytest.approx(100 - chart.up.place(least * 1e6), abs=0.02)
    log, summary, _ = found
    charts = effect_charts(log, summary)
    assert {chart.across.label for chart in charts[:2]} == {"GROUP", "ITEMS"}
    config = (summary.general or pytest.fail("nothing is right")).config
    for chart in charts:
        [(_, height, _, chosen)] = [mark for mark in chart.marks if mark[2] == "general"]
        assert chosen == str(config[chart.across.label]), "the best was chosen"
        assert height == max(y for _, corners in chart.lines for _, y in corners)


def test_a_long_run_stays_a_small_page_and_throttling_is_told(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    log, summary, _ = found
    entries, whole = list(log.entries(Evaluated)), RunLog.entries
    many = [
        replace(one, sequence=one.sequence + 1000 * turn, at=one.at + turn) for turn in range(150) for one in entries
    ]
    monkeypatch.setattr(
        RunLog, "entries", lambda self, kind, stage=None: many if kind is Evaluated else whole(self, kind)
    )
    (chart,) = search_charts(log, summary)
    bests = sum(kind == "newbest" for _, _, kind, _ in chart.marks)
    assert bests == len(chart.lines[-1][1]) // 2 and len(many) == 3_000 and len(chart.marks) <= report.MAX_MARKS + bests
    assert f"{len(many) - len(chart.marks)} of the marks are not drawn" in chart.caption
    assert len(render_report(log, summary).encode()) < MAX_PAGE_BYTES


def test_throttling_is_told(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    log, summary, _ = found
    assert "While it measured" not in render_report(log, summary)

    def hot(evaluation: Evaluation) -> Evaluation:
        outcomes = evaluation.outcomes.items()
        measured = {name: one for name, one in outcomes if isinstance(one, Measured)}
        heated = {name: replace(one, throttled=("sw_power_cap",)) for name, one in measured.items()}
        return replace(evaluation, outcomes=evaluation.outcomes | heated)

    cool = RunLog.evaluations
    monkeypatch.setattr(RunLog, "evaluations", lambda self, stage=None: [hot(one) for one in cool(self, stage)])
    assert "throttled (sw_power_cap)" in render_report(log, summary)


def test_bars_show_every_kernel_and_a_page_without_a_result_has_none(found: Found) -> None:
    _, summary, _ = found
    (row,) = summary.tuned
    other = row.best.model_copy(update={"config": {**row.best.config, "GROUP": 1}, "ratio": row.best.ratio * 0.9})
    told = Figures(seconds=9e-6, ratio=0.45, low=0.44, high=0.47, verdict="faster")
    opponents = (
        OpponentRow(name="library", label="tuned by hand", seconds=9e-6, over_baseline=told),
        OpponentRow(name="absent", label="eager", why="it does not run here"),
    )
    several = summary.model_copy(
        update={"tuned": (row.model_copy(update={"best": other, "regret": 0.1, "opponents": opponents}),)}
    )
    (own,) = (one.model_copy(update={"config": other.config}) for one in summary.dispatch)
    for used, one in (("general", several), ("best", several.model_copy(update={"dispatch": (own,)}))):
        axis, bars = report.speedup_bars(one) or pytest.fail("nothing was compared")
        mine = [bar for bar in bars if bar["workload"] == row.workload]
        assert [bar["kind"] for bar in mine] == ["general", "best", "opponent"]
        assert [bar["kind"] for bar in mine if not bar["idle"]] == [used, "opponent"]
        assert mine[-1]["name"] == "library (tuned by hand)" and mine[-1]["bar"][1] == axis.place(1 / 0.45)
        assert mine[-1]["whisker"][0] < mine[-1]["bar"][1] < mine[-1]["whisker"][1]
    log, summary, _ = found
    nothing = {"general": None, "ratio": None, "tuned": (), "held_out": (), "dispatch": (), "examined": ()}
    poor = summary.model_copy(update=nothing | {"sentence": "no valid configuration was found."})
    page = render_report(log, poor)
    assert "no valid configuration was found." in page and "The search" in page
    assert 'id="source"' not in page and 'id="speed-up"' not in page and "best/" not in page and ">None<" not in page
    assert "no valid configuration was found." in render_markdown(poor)

    class Few(RunLog):
        """A log that has only the beginning."""

        def entries(self, kind: Any, stage: str | None = None) -> Any:
            return log.entries(kind, stage) if kind.kind in ("run", "template") else []

    bare = poor.model_copy(update={"templates": (), "evaluations": 0, "plans": (), "searches": (), "failures": {}})
    page = render_report(Few(log._journal), bare)
    assert re.findall(r'<h2 id="([^"]*)">', page) == ["caveats"], "nothing empty has a heading"


def test_axes_have_round_ticks_and_numbers_few_digits() -> None:
    many = ["5", "10", "20", "50", "100", "200", "500"]
    for values, labels in (([3.1, 480], many), ([99.0, 101.0], ["98", "100", "102"]), ([1e-3, 1e9], None)):
        axis = report.log_axis("us", values)
        places = [at for at, _ in axis.ticks]
        assert 2 <= len(places) <= 9 and all(0 <= at <= 100 for at in places) and places == sorted(set(places))
        assert all(0 < axis.place(value) < 100 for value in values)
        assert labels is None or [label for _, label in axis.ticks] == labels
    shown = " ".join(report.rounded(value) for value in (0, 1234567.8, 811450.23, 72.56, 0.0123456, 2.5e-9, 5.0))
    assert shown == "0 1,234,568 811,450 72.6 0.0123 2.5e-09 5" and report.rounded(1577.801, 4) == "1,578"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on PATH")
def test_a_browser_shows_it_on_a_phone_and_a_desktop(found: Found, tmp_path: Path) -> None:
    probe = tmp_path / "probe.html"
    text = Path(__file__).with_name("probe.html").read_text(encoding="utf-8")
    probe.write_text(text.replace("PAGE", (found[2] / "report.html").as_uri()), encoding="utf-8")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
        + [f"--user-data-dir={tmp_path / 'profile'}", "--allow-file-access-from-files", "--enable-logging=stderr"]
        + [probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
    )
    inner = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert done.returncode == 0 and inner is not None, done.stderr + done.stdout[:500]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(console) == 1 and "the probe has ended" in console[0], "the page says nothing on the console"
    for name, page in json.loads(inner[1]).items():
        assert page["overflow"] == 0, f"the page is wider than the {name}"
        assert page["marks"] == page["inside"] > 40
