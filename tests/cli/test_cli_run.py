"""A whole run from the command line, everything it leaves behind, and what is made of it later: `tunesmith report`,
`compare` with another run, `recheck` of a stored choice."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_pool import ended_run

from tunesmith.cli.commands.timing import moved
from tunesmith.graph.journal.log import JournalError
from tunesmith.graph.results import summary as results
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.measure.timing import compare as timed
from tunesmith.kernels.outcome import CompileFailed


def test_json_and_nothing_else_is_on_standard_output_and_progress_on_standard_error(finished_run: Any) -> None:
    assert finished_run.code == 0, finished_run.stderr
    shown, summary = json.loads(finished_run.stdout), finished_run.summary
    assert shown == summary | {"run_dir": str(finished_run.folder)}
    assert "measuring the baseline" in finished_run.stderr and "3/3 evaluations" in finished_run.stderr
    assert "Traceback" not in finished_run.stderr and "raylet" not in finished_run.stderr
    # What was found.
    assert (summary["task"], summary["evaluations"], summary["ended_by"]) == ("scale_add", 3, "rounds")
    assert [[row["workload"] for row in summary[kind]] for kind in ("tuned", "held_out")] == [["16384"], ["5000"]]
    for row in (*summary["tuned"], *summary["held_out"]):
        for figures in (row["general"], row["best"]):
            assert figures["seconds"] > 0 and figures["low"] <= figures["ratio"] <= figures["high"]
            assert figures["verdict"] in ("faster", "slower", "no difference shown")
            assert (figures["verdict"] == "faster") == (figures["high"] < 1)
        assert row["regret"] >= 0
    assert summary["general"]["config"].keys() == {"GROUP", "ITEMS", "UNROLL"} and summary["settings"]["seed"] == 7
    assert "99 % interval" in summary["sentence"] and "baseline" in summary["sentence"]
    assert {"tunesmith", "ray", "langgraph", "numpy"} <= summary["versions"].keys()


def test_the_winner_runs_by_itself_and_says_which_kernel_serves_a_shape(finished_run: Any, tmp_path: Any) -> None:
    best = finished_run.folder / "best"
    dispatch = json.loads((best / "dispatch.json").read_text())
    # Which of them is used depends on what the measurements showed, and nothing that lost is.
    assert dispatch["rule"].get("folder", "general") in ("general", "baseline")
    assert dispatch["verdict"] == finished_run.summary["sentence"]
    assert [shape["sizes"] for shape in dispatch["shapes"]] == [{"n": 16384}, {"n": 5000}]
    assert all((shape["folder"] == "baseline") == (shape["verdict"] != "faster") for shape in dispatch["shapes"])
    for folder in {"general", *(shape["folder"] for shape in dispatch["shapes"])}:
        workloads = json.loads((best / folder / "launch.json").read_text())["workloads"]
        assert all((best / folder / about["source"]).is_file() for about in workloads.values())
        workload = min(workloads, key=int)
        run = [sys.executable, str(best / folder / "launch.py"), workload]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"scale_add on {workload}: right" in done.stdout
    config = finished_run.summary["general"]["config"]
    for source in (best / "general").glob("kernel*.cl"):
        text = source.read_text()
        assert all(f"#define {name} {int(value)}\n" in text for name, value in config.items())
    for arguments, wanted in (
        (["n=5000"], ""),
        ([], "not nothing, as in: python dispatch.py n=16\n"),
        *(([given], f"not {given}, as in") for given in ("n=-5", "n=abc", "m=5000")),
        (["n=5000", "T=float16"], "Give n, with sizes as whole numbers of at least 1, not n=5000 T=float16"),
    ):
        command = [sys.executable, str(finished_run.folder / "best" / "dispatch.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == (1 if wanted else 0) and wanted in done.stderr
        assert wanted or done.stdout.split(":")[0] in ("baseline", "general")


def test_report_and_resume_show_the_run_again_and_its_table(finished_run: Any, here: Any, tmp_path: Path) -> None:
    folder, before = finished_run.folder, finished_run.summary
    plain = here("report", folder)
    assert plain.returncode == 0 and before["sentence"] in plain.stdout
    assert any(line.startswith("Checks of ") and " passed" in line for line in plain.stdout.splitlines())
    assert str(folder / "report.html") in plain.stdout
    assert f"**{before['sentence']}**" in here("report", folder, "--markdown").stdout
    as_json = here("report", folder, "--json")
    assert json.loads(as_json.stdout) == before and as_json.stderr == ""
    done = here("resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert "the run had ended" in done.stderr and "starting workers" not in done.stderr
    after = json.loads(done.stdout)
    assert after["general"] == before["general"] and after["tuned"] == before["tuned"]
    out = tmp_path / "measured.csv"
    done = here("report", finished_run.folder, "--csv", out)
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert done.returncode == 0 and f"{out}: {len(rows)} rows" in done.stdout
    compared = [row for row in rows if row["outcome"] == "compared"]
    assert {row["workload"] for row in compared} == {"16384", "5000"}
    assert all(float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"]) for row in compared)
    rows = [row for row in rows if row["outcome"] != "compared"]
    assert [(row["evaluation"], row["workload"]) for row in rows] == [(number, "16384") for number in "0123"]
    assert all(float(row["low"]) <= float(row["seconds"]) <= float(row["high"]) for row in rows)
    general = {name: str(value) for name, value in finished_run.summary["general"]["config"].items()}
    assert general in [{name: row[name] for name in general} for row in rows[1:]]


@pytest.mark.slow
def test_bench_gives_one_comparison_with_intervals(command: Any, device: Any) -> None:
    done = command("bench", "silu_and_mul", "--config", '{"VEC": 8}', "--workload", "256x4096", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["workloads"]
    assert row["cold"]["low"] <= row["cold"]["ratio"] <= row["cold"]["high"]
    assert found["launch_floor_seconds"] > 0 and found["artifacts"]["candidate"] and found["artifacts"]["baseline"]


@pytest.fixture(scope="module")
def run(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ended_run(tmp_path_factory.mktemp("compared") / "run", seed=7)


def changed(run: Any, folder: Path, **values: Any) -> Path:
    """A copy of a run whose summary says something else."""
    shutil.copytree(run.folder, folder)
    (folder / "summary.json").write_text(json.dumps(run.summary.to_json() | values))
    return folder


@pytest.fixture
def other(run: Any, tmp_path: Path) -> Path:
    """The run as another device would have told it: another seed, nothing right on the held-out shape."""
    device = run.summary["device"] | {"name": "Another CPU", "driver": "9.9"}
    held_out = [row | {"general": None} for row in run.summary["held_out"]]
    settings = run.summary["settings"] | {"seed": 8}
    return changed(run, tmp_path / "other", device=device, held_out=held_out, settings=settings)


def test_shapes_of_runs_stand_side_by_side_or_are_refused(run: Any, other: Path, tmp_path: Path, here: Any) -> None:
    found = results.compare_runs([run.folder, other])
    assert [shape["workload"] for shape in found["shapes"]] == ["16384", "5000"]
    assert [shape["held_out"] for shape in found["shapes"]] == [[False, False], [True, True]]
    assert found["shapes"][0]["results"] == [run.summary["tuned"][0]] * 2
    assert found["shapes"][1]["results"][1]["general"] is None
    assert set(found["differences"]) == {"device", "driver", "setting seed"}
    assert found["differences"]["device"] == [run.summary["device"]["name"], "Another CPU"]
    assert found["differences"]["setting seed"] == ["7", "8"]
    assert found["same"]["backend"] == "opencl" and "reference" in found["same"]
    rows = [row | {"workload": "large"} for row in run.summary["tuned"]]
    shapes = results.compare_runs([changed(run, tmp_path / "alone", held_out=[], tuned=rows), run.folder])["shapes"]
    assert [shape["workload"] for shape in shapes] == ["large", "5000"] and None not in shapes[0]["results"]
    assert shapes[1]["results"][0] is None and shapes[1]["held_out"] == [None, True]
    foreign = changed(run, tmp_path / "foreign", task="softmax")
    with pytest.raises(TunesmithError, match=r"different tasks \(.*run of scale_add, .*foreign of softmax\); name"):
        results.compare_runs([run.folder, foreign])
    with pytest.raises(TunesmithError, match="named twice"):
        results.compare_runs([run.folder, run.folder / ".." / "run"])
    with pytest.raises(JournalError, match="is not the folder of a run"):
        results.compare_runs([run.folder, tmp_path])
    one = here("compare", run.folder)
    assert one.returncode == 2 and one.stderr.count("\n") == 1 and "give at least two" in one.stderr


def test_other_data_types_are_other_shapes(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = results.begun

    def halves(folder: Path) -> Any:
        entry = read(folder)
        arguments = tuple(one.model_copy(update={"dtype": "float16"}) for one in entry.event.task.arguments)
        task = entry.event.task.model_copy(update={"arguments": arguments, "bytes": "6 * n"})
        halved = replace(entry, event=entry.event.model_copy(update={"task": task}))
        return halved if folder.name == "halves" else entry

    monkeypatch.setattr(results, "begun", halves)
    found = results.compare_runs([run.folder, changed(run, tmp_path / "halves")])
    assert {"arguments", "bytes"} <= set(found["differences"]) and "types" in found["same"]
    shapes = {shape["workload"]: shape["results"] for shape in found["shapes"]}
    assert shapes["16384 (n=16384; float32, int32)"][1] is None is shapes["16384 (n=16384; float16)"][0]


def test_all_three_forms_are_printed(run: Any, other: Path, here: Any) -> None:
    table = here("compare", run.folder, other)
    assert table.returncode == 0, table.stderr
    told = ("run 1", "run 2", "5000 (held out)", "Another CPU", "not taken in turn")
    assert all(text in table.stdout for text in told)
    text = here("compare", run.folder, other, "--markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1 and "| no general configuration |" in text
    data = json.loads(here("compare", run.folder, other, "--json").stdout)
    assert data["task"] == "scale_add" and data["differences"]["driver"][1] == "9.9"
    assert data["shapes"][1]["results"][1]["general"] is None


def seen(ratio: float) -> Comparison:
    return timed([[ratio * 1e-6 * (1 + 0.001 * block)] * 3 for block in range(5)], [[1e-6] * 3] * 5)


def test_what_moved_is_told_by_intervals() -> None:
    own = ("own", seen(0.8))
    assert not moved([own, ("other", seen(0.8)), ("slow", seen(0.9))])["moved"]
    assert moved([own, ("other", seen(0.7)), ("best", seen(0.6))])["moved"] == "faster now: best"
    for ratio, said in ((1.2, "baseline is faster"), (1.0, "no longer")):
        assert said in moved([("own", seen(ratio))])["moved"]
    failed = moved([("own", CompileFailed("no such feature", "")), ("other", seen(0.7))])
    assert failed["now"] is None and "no such feature" in failed["moved"]


def test_a_stored_choice_is_timed_again(run: Any, here: Any, ray_cluster: Any) -> None:
    done = here("recheck", run.folder, "--json")
    found = json.loads(done.stdout)
    for row, own in zip(found["workloads"], run.summary.dispatch, strict=True):
        assert row["workload"] == own.workload and f"GROUP={own.config['GROUP']}" in row["configuration"]
        assert row["then"] == own.ratio and row["low"] <= row["now"] <= row["high"]
    assert found["now_on"] == found["tuned_on"] and done.returncode == any(row["moved"] for row in found["workloads"])
