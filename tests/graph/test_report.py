"""The report of runs on a simulated device: what it shows, as data, as HTML in a real browser, and as Markdown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_models import DATA
from simulated_pool import simulate_device

from tunesmith.graph import tune
from tunesmith.graph.journal.events import Evaluated
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.records import Figures, OpponentRow
from tunesmith.graph.journal.store import Entry, Journal
from tunesmith.graph.results.report import render_markdown, render_report
from tunesmith.graph.results.report.axis import axis_of, rounded
from tunesmith.graph.results.report.caveats import warnings
from tunesmith.graph.results.report.clocks import clocks
from tunesmith.graph.results.report.convergence import MOST_MARKS, search_charts
from tunesmith.graph.results.report.parameters import template_effects
from tunesmith.graph.results.report.roofs import roof_picture
from tunesmith.graph.results.report.rounds import rounds
from tunesmith.graph.results.report.spaces import template_spaces
from tunesmith.graph.results.report.speedups import speed_ups
from tunesmith.graph.results.summary import Summary, read_summary
from tunesmith.hw.roofline import Roofline
from tunesmith.kernels.outcome import Evaluation, Measured
from tunesmith.kernels.spec.parameter import assignments

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def found(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunLog, Summary, Path]]:
    """A run of 20 of the 28 feasible points, some of which fail to compile."""
    folder = tmp_path_factory.mktemp("report") / "run"
    with pytest.MonkeyPatch.context() as patch:
        simulate_device(patch)
        tune(DATA / "scale_add" / "task.toml", evaluations=20, rounds=2, seed=3, strategy="random", run_dir=folder)
    with Journal(folder, create=False) as journal:
        yield RunLog(journal), read_summary(folder), folder


def test_the_page_begins_with_what_matters(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, folder = found
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page == render_report(log, summary), "what the run wrote can be made again from its journal"
    assert len(page.encode()) < MOST_BYTES
    body = page[page.index("<body>") :]
    assert "Not recorded: this device reports neither clocks nor temperature." in body
    order = [summary.sentence, summary.device.name, "Speed-up on each shape", "The search", "What each parameter does"]
    order += ["Plans, and what each gained", "The space", "Failures", "Clocks", "The winning source", "Caveats"]
    places = [body.index(text) for text in order]
    assert places == sorted(places)
    assert summary.origin is not None and summary.origin.commit and "UTC on " + summary.origin.host in body
    assert "seed 3" in body and "strategy random" in body
    config = (summary.general or pytest.fail("nothing is right")).config
    assert assignments(config) in body and f"#define GROUP {config['GROUP']}" in body
    assert not re.search(r"<td>\s*-\s*</td>", body) and ">None<" not in body and "nan" not in body
    assert "<script" not in page and not re.search(r'(?:src|href)="(?!data:,|#)', page)
    for name in re.findall(r'class="([^"]*)"', body):
        assert re.fullmatch(r"[a-z][a-z-]*( [a-z-]+)*", name), name


def test_every_configuration_is_in_the_chart(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    (chart,) = search_charts(log, summary)
    evaluations = log.evaluations()
    assert [mark.number for *_, mark in chart.marks] == list(range(1, len(evaluations) + 1))
    failed = [mark for *_, mark in chart.marks if mark.kind == "failed"]
    assert len(failed) == chart.failed == sum(one.failure is not None for one in evaluations) > 0
    assert all("compile_failed" in mark.text and "GROUP=1," in mark.text for mark in failed)
    # Steps go down only, and end at the least time that was measured.
    heights = [y for _, _, y in chart.steps]
    assert heights == sorted(heights)
    least = min(one.seconds for e in evaluations for one in e.outcomes.values() if isinstance(one, Measured))
    assert heights[-1] == pytest.approx(100 - chart.seconds.place(least * 1e6), abs=0.02)
    assert [level.name for level in chart.levels][:1] == ["baseline"]
    assert chart.baseline_seconds == pytest.approx(20e-6) and chart.left_out == 0


def test_a_long_run_stays_a_small_page(found: tuple[RunLog, Summary, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    log, summary, _ = found
    entries = list(log.entries(Evaluated))
    many = [
        Entry(entry.sequence + number * 1000, entry.session, entry.at + number, entry.stage, entry.event)
        for number in range(150)
        for entry in entries
    ]
    whole = RunLog.entries
    monkeypatch.setattr(
        RunLog, "entries", lambda self, kind, stage=None: many if kind is Evaluated else whole(self, kind)
    )
    (chart,) = search_charts(log, summary)
    assert len(many) == 3_000 and len(chart.marks) <= MOST_MARKS + 1
    assert chart.left_out == len(many) - len(chart.marks)
    assert sum(mark.best for *_, mark in chart.marks) == len(chart.steps) // 2
    assert len(render_report(log, summary).encode()) < MOST_BYTES


def test_the_time_between_two_sessions_does_not_count(
    found: tuple[RunLog, Summary, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, summary, _ = found
    entries = [
        Entry(entry.sequence, 1 + (place >= 10), entry.at + 86_400 * (place >= 10), entry.stage, entry.event)
        for place, entry in enumerate(log.entries(Evaluated))
    ]
    whole = RunLog.entries
    monkeypatch.setattr(
        RunLog, "entries", lambda self, kind, stage=None: entries if kind is Evaluated else whole(self, kind)
    )
    (chart,) = search_charts(log, summary)
    assert max(mark.at for *_, mark in chart.marks) < 3600


def test_effects_are_those_of_the_simulated_device(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    ((template, space),) = template_spaces(log, summary).items()
    effects = template_effects(log, summary, template, space)
    assert effects is not None and not effects.unsaid and not effects.weak
    assert {one.name for one in effects.parameters[:2]} == {"GROUP", "ITEMS"}
    chosen = {one.name: value.text for one in effects.parameters for value in one.values if value.chosen}
    assert summary.general is not None and chosen == {k: str(v) for k, v in summary.general.config.items()}
    first = effects.maps[0]
    cells = [cell for _, row in first.rows for cell in row]
    assert len(cells) == 16 and sum(cell.chosen for cell in cells) == 1
    assert min((cell.us, cell.level) for cell in cells if cell.us is not None)[1] == 0.0
    infeasible = [cell.kind for one in effects.maps[1:] for _, row in one.rows for cell in row]
    assert "infeasible" in infeasible, "UNROLL=1 with ITEMS=1 is no configuration"


def test_too_few_measurements_are_said_to_be_too_few(found: tuple[RunLog, Summary, Path], device: Any) -> None:
    log, summary, _ = found
    ((template, space),) = template_spaces(log, summary).items()

    class Short(RunLog):
        def evaluations_of(self, template_id: str) -> Any:
            return list(log.evaluations_of(template_id))[:4]

    effects = template_effects(Short(log._journal), summary, template, space)
    assert effects is not None and "too few" in effects.unsaid and not effects.parameters


def test_rounds_say_what_they_gained(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    told = rounds(log, summary)
    assert [one.plan.round for one in told] == list(range(1, len(summary.plans) + 1))
    assert told[0].before == pytest.approx(20e-6) and told[0].after < told[0].before
    assert sum(one.evaluations for one in told) == summary.evaluations
    assert told[-1].ratio == summary.ratio


def test_roofs_are_drawn_where_they_were_measured(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    bare = roof_picture(log, summary)
    assert bare is not None and bare.missing and not bare.roof and len(bare.kernels) >= 4
    measured = Roofline(bandwidth=((1 << 20, 8e9), (1 << 26, 11e9)))
    picture = roof_picture(log, summary.model_copy(update={"roofline": measured}))
    assert picture is not None and not picture.missing and picture.up.label == "GB/s"
    assert len({y for _, y in picture.roof}) == 1 and len(picture.copies) == 2
    # Twice as fast is twice the bandwidth: the winner stands above the baseline.
    by_kind = {one.kind: one for one in picture.kernels if one.workload == summary.tuned[0].workload}
    assert by_kind["general"].y < by_kind["baseline"].y and by_kind["general"].x == by_kind["baseline"].x


def test_the_classic_roofline_needs_an_arithmetic(found: tuple[RunLog, Summary, Path], monkeypatch: Any) -> None:
    log, summary, _ = found
    started = log.started
    assert started is not None
    task = started.task.model_copy(update={"arithmetic": "float32"})
    monkeypatch.setattr(RunLog, "started", started.model_copy(update={"task": task}))
    roofs = Roofline(bandwidth=((1 << 26, 10e9),), peak_flops={"float32": 40e9})
    picture = roof_picture(log, summary.model_copy(update={"roofline": roofs}))
    assert picture is not None and (picture.across.label, picture.up.label) == ("flop per byte", "GFLOP/s")
    slope, ridge, flat = picture.roof
    assert slope[1] > ridge[1] == flat[1], "the roof rises to the ridge and is flat behind it"


def test_clocks_are_shown_where_a_device_reports_them(
    found: tuple[RunLog, Summary, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, summary, _ = found
    assert clocks(log).charts == ()
    told = {"sm_clock_hz": 1.98e9, "temperature_c": 41.0}

    def hot(evaluation: Evaluation) -> Evaluation:
        outcomes = {
            name: replace(one, telemetry=told, throttled=("sw_power_cap",)) if isinstance(one, Measured) else one
            for name, one in evaluation.outcomes.items()
        }
        return replace(evaluation, outcomes=outcomes)

    cool = RunLog.evaluations
    monkeypatch.setattr(RunLog, "evaluations", lambda self, stage=None: [hot(one) for one in cool(self, stage)])
    found_clocks = clocks(log)
    assert [(one.label, one.low) for one in found_clocks.charts] == [
        ("clock of the multiprocessors, MHz", 1980.0),
        ("temperature, degrees Celsius", 41.0),
    ]
    assert found_clocks.throttled["sw_power_cap"] > 10
    assert "clock of the multiprocessors, MHz: 1,980 to 1,980" in render_report(log, summary)


def test_a_run_without_a_result_has_a_page_too(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    nothing = {"general": None, "ratio": None, "tuned": (), "held_out": (), "dispatch": (), "examined": ()}
    older = {"origin": None, "started_at": None, "sentence": "no valid configuration was found."}
    poor = summary.model_copy(update=nothing | older)
    page = render_report(log, poor)
    assert "no valid configuration was found." in page and "The search" in page
    assert "The winning source" not in page and "Speed-up on each shape" not in page and ">None<" not in page
    assert "no valid configuration was found." in render_markdown(poor)

    class Unmeasured(RunLog):
        def entries(self, kind: Any, stage: str | None = None) -> Any:
            return log.entries(kind, stage) if kind.kind in ("run", "template") else []

    bare = poor.model_copy(update={"templates": (), "evaluations": 0, "plans": (), "searches": (), "failures": {}})
    page = render_report(Unmeasured(log._journal), bare)
    assert "The search" not in page and "What each parameter does" not in page and "Failures" in page


def test_the_gravest_warning_comes_first(found: tuple[RunLog, Summary, Path]) -> None:
    _, summary, _ = found
    row = summary.tuned[0]
    assert row.general is not None
    shaky = row.model_copy(update={"general": row.general.model_copy(update={"low": 0.1, "high": 3.0})})
    slow = row.model_copy(update={"general": row.general.model_copy(update={"verdict": "slower"})})
    worse = summary.model_copy(update={"tuned": (shaky,), "held_out": (slow,), "notes": ("A lane was replaced.",)})
    told = warnings(worse)
    assert "interval of the speed-up is wide" in told[0] and "slower than the baseline" in told[1]
    assert told[-1] == "A lane was replaced."


def test_markdown_is_for_a_pull_request(found: tuple[RunLog, Summary, Path]) -> None:
    _, summary, _ = found
    text = render_markdown(summary)
    assert text.startswith(f"## {summary.task} on {summary.device.name}\n\n**{summary.sentence}**\n")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1, "every row has the columns of the heading"
    for row in (*summary.tuned, *summary.held_out):
        assert any(line.startswith(f"| {row.workload}") for line in table)
    assert "\n\n\n" not in text and text.count("<details>") == text.count("</details>") == 1
    assert len(text) < 20_000


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ([0, 40], False, ["0", "10", "20", "30", "40"]),
        ([3.1, 480], True, ["5", "10", "20", "50", "100", "200", "500"]),
        ([99.0, 101.0], True, ["98", "100", "102"]),
        ([5.0, 5.0], True, None),
        ([1e-3, 1e9], True, None),
        ([0.0, 0.0], False, None),
    ],
)
def test_axes_have_round_ticks(values: list[float], log: bool, labels: list[str] | None) -> None:
    axis = axis_of("us", values, log=log)
    ticks = axis.ticks
    assert 2 <= len(ticks) <= 9 and all(0 <= tick.at <= 100 for tick in ticks)
    assert [tick.at for tick in ticks] == sorted({tick.at for tick in ticks})
    assert all(0 < axis.place(value) < 100 for value in values)
    if labels is not None:
        assert [tick.label for tick in ticks] == labels


def test_numbers_have_few_digits() -> None:
    assert [rounded(value, digits=4) for value in (1577.801, 9.9801, 10.04, 0.9)] == ["1,578", "9.98", "10.04", "0.9"]
    assert [rounded(value) for value in (0, 1234567.8, 811450.23, 72.56, 0.0123456, 2.5e-9, 5.0)] == [
        "0",
        "1,234,568",
        "811,450",
        "72.6",
        "0.0123",
        "2.5e-09",
        "5",
    ]


PROBE = """<!doctype html><body><pre id="found"></pre>
<iframe id="phone" src="{page}" style="width: 360px; height: 800px"></iframe>
<iframe id="desktop" src="{page}" style="width: 1200px; height: 800px"></iframe>
<script>
window.onload = () => {{
  const found = {{}};
  for (const name of ["phone", "desktop"]) {{
    const page = document.getElementById(name).contentDocument, root = page.documentElement;
    const inside = [...page.querySelectorAll(".area circle")].filter(mark => {{
      const at = mark.getBoundingClientRect(), area = mark.closest(".area").getBoundingClientRect();
      return at.left >= area.left - 8 && at.right <= area.right + 8
        && at.top >= area.top - 8 && at.bottom <= area.bottom + 8;
    }});
    found[name] = {{
      overflow: root.scrollWidth - root.clientWidth, marks: page.querySelectorAll(".area circle").length,
      inside: inside.length, ink: getComputedStyle(page.body).color, paper: getComputedStyle(page.body).backgroundColor,
    }};
  }}
  document.getElementById("found").textContent = JSON.stringify(found);
  console.error("the probe has ended");
}};
</script></body>"""


def browse(probe: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """What the probe found, and the lines of the browser's console."""
    assert BROWSER is not None
    base = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    profile = f"--user-data-dir={probe.parent / 'profile'}"
    look = ["--allow-file-access-from-files", "--enable-logging=stderr", "--dump-dom", *options, probe.as_uri()]
    done = subprocess.run([*base, profile, *look], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    inner = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert inner is not None, done.stdout[:500]
    return json.loads(inner[1]), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on PATH")
def test_a_browser_shows_it_on_a_phone_and_a_desktop(found: tuple[RunLog, Summary, Path], tmp_path: Path) -> None:
    _, _, folder = found
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(page=(folder / "report.html").as_uri()), encoding="utf-8")
    pages, console = browse(probe)
    assert len(console) == 1 and "the probe has ended" in console[0], "the page says nothing on the console"
    for name in ("phone", "desktop"):
        assert pages[name]["overflow"] == 0, f"the page is wider than the {name}"
        assert pages[name]["marks"] == pages[name]["inside"] > 40
    assert pages["phone"]["ink"] != pages["phone"]["paper"] == "rgb(255, 255, 255)"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on PATH")
def test_a_browser_shows_it_dark_and_prints_it(found: tuple[RunLog, Summary, Path], tmp_path: Path) -> None:
    _, _, folder = found
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(page=(folder / "report.html").as_uri()), encoding="utf-8")
    pages, _ = browse(probe, "--blink-settings=preferredColorScheme=0")
    assert pages["phone"]["paper"] == "rgb(16, 22, 30)" and pages["phone"]["ink"] == "rgb(230, 235, 242)"
    assert BROWSER is not None
    paper = tmp_path / "report.pdf"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={paper}"]
    subprocess.run([*command, (folder / "report.html").as_uri()], check=True, capture_output=True, timeout=100)
    assert paper.read_bytes().startswith(b"%PDF")


def with_opponents(summary: Summary) -> Summary:
    """The tuned workload with a library's call that was timed, one of a former version's run, and one that was not."""
    told = Figures(seconds=9e-6, ratio=0.45, low=0.44, high=0.47, verdict="faster")
    others = (
        OpponentRow(
            name="library", label="tuned by hand", seconds=9e-6, ratio=0.8, low=0.7, high=0.9, over_baseline=told
        ),
        OpponentRow(name="former", label="eager", seconds=12e-6),
        OpponentRow(name="absent", label="eager", why="it does not run here"),
    )
    return summary.model_copy(
        update={"tuned": tuple(row.model_copy(update={"opponents": others}) for row in summary.tuned)}
    )


def test_opponents_stand_in_the_roofline_picture_and_beside_the_bars(found: tuple[RunLog, Summary, Path]) -> None:
    log, summary, _ = found
    plain, several = speed_ups(summary), speed_ups(with_opponents(summary))
    assert plain is not None and several is not None and all(bar.kind != "opponent" for bar in plain.bars)
    (bar,) = (bar for bar in several.bars if bar.kind == "opponent")
    assert (bar.name, bar.workload) == ("library (tuned by hand)", summary.tuned[0].workload)
    assert bar.low < bar.at < bar.high and bar.at == several.axis.place(1 / 0.45)
    picture = roof_picture(log, with_opponents(summary))
    assert picture is not None
    marks = [one for one in picture.kernels if one.kind == "opponent"]
    assert [one.text.split(":")[0] for one in marks] == [
        f"{summary.tuned[0].workload}, {name}" for name in ("library (tuned by hand)", "former (eager)")
    ]
    # The faster call reaches more: it stands higher.
    assert marks[0].y < marks[1].y
    page = render_report(log, with_opponents(summary))
    assert "Orange bars" in page and ">opponents</span>" in page and 'class="bar-opponent"' in page
    bare = render_report(log, summary)
    assert "Orange bars" not in bare and ">opponents</span>" not in bare
