"""What the command line imports, prints and promises, without a run; its settings; and the budget of `make lint`."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tunesmith
from tunesmith.cli import tables
from tunesmith.cli.main import COMMANDS
from tunesmith.graph.settings import PROFILES, make_settings

HEAVY = {"ray", "langgraph", "langchain_core", "numpy", "sklearn", "scipy", "cupy", "pyopencl", "pynvml", "jinja2"}


@pytest.mark.parametrize(("asked", "heavy"), [(["--help"], HEAVY), (["tune", "--help"], HEAVY - {"numpy"})])
def test_help_imports_nothing_heavy(asked: list[str], heavy: set[str]) -> None:
    """So that it answers at once, everywhere."""
    code = (
        "import sys\nfrom tunesmith.cli.main import main\n"
        f"try:\n    main({asked!r})\nexcept SystemExit as ended:\n"
        f"    print('ENDED', ended.code, *sorted({heavy!r} & set(sys.modules)), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    shown, rest = done.stdout.split("ENDED 0")
    assert "tunesmith" in shown.lower() and rest == "\n", done.stdout


def test_a_file_of_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    from tunesmith.graph.settings import TunesmithError, read_settings

    path = tmp_path / "settings.toml"
    path.write_text("\ufeffrounds = 2\n", encoding="utf-8")
    assert read_settings(path) == {"rounds": 2}
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TunesmithError, match="is not UTF-8 text: save it as UTF-8"):
        read_settings(path)


def test_the_shell_completes_options_and_a_reader_that_goes_away_ends_nothing(environment: dict[str, str]) -> None:
    asked = {"_TUNESMITH_COMPLETE": "complete_bash", "COMP_WORDS": "tunesmith tune --see", "COMP_CWORD": "2"}
    run = [sys.executable, "-m", "tunesmith.cli.main"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, env=environment | asked)
    assert "--seed" in done.stdout.split(), done.stderr
    program = (
        "from tunesmith.cli.live import view\nfrom tunesmith.graph.progress import Progress\n"
        "with view() as show:\n    for number in range(3): show(Progress('plan', f'line {number}'))\n"
        "print('the result')"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=gone, text=True)
    assert (done.returncode, done.stdout) == (0, "the result\n")


def test_help_devices_tasks_settings_and_spaces_are_listed(here: Any, device: Any) -> None:
    shown = here("--help").stdout
    assert all(name in shown for name in COMMANDS)
    assert "..." not in shown.split("Commands:")[1], "what a command does is not cut"
    assert device.name in [entry["name"] for entry in json.loads(here("devices", "--json").stdout)["devices"]]
    listed = {entry["name"]: entry for entry in json.loads(here("tasks", "--json").stdout)}
    assert {"silu_and_mul", "fused_add_rmsnorm", "merge_attn_states", "gemm"} <= set(listed)
    assert all(entry["workloads"] and entry["backends"] for entry in listed.values())
    assert "c[m, n] = a[m, k] @ b[k, n]" in here("tasks").stdout, "brackets are no markup"
    from tunesmith.cli.options import NOT_OPTIONS
    from tunesmith.graph.settings import Settings

    shown = " ".join(here("tune", "-h").stdout.split())
    for name, field in Settings.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        assert (f" {option} " in shown) == (name not in NOT_OPTIONS), name
        assert name in NOT_OPTIONS or str(field.description).removesuffix(".") in shown, name
    done = here("space", "gemm", "--target", "sm_80", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["template"] for one in told["templates"]] == ["tensor_cores", "tiles"]
    assert told["for_other_devices"] == {"warpgroups": ["compute_capability == 90"]}
    for found in told["templates"]:
        assert found["cartesian"] == found["feasible"] + sum(entry["points"] for entry in found["rejected"])
        assert found["feasible"] > 0


def test_the_public_names_are_there_and_on_the_page_of_the_api() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in tunesmith.__all__:
        assert getattr(tunesmith, name).__name__ == name and re.search(rf"^\.\. auto\w+:: {name}$", page, re.MULTILINE)
    with pytest.raises(AttributeError, match="no attribute 'tuned'"):
        tunesmith.tuned  # noqa: B018


@pytest.mark.parametrize("width", [20, 40, 57, 58, 60, 80, 160])
def test_nothing_is_cut_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: out)
    rows = [
        ("1048576-float32", "4335.99", "out[n, d] = silu(input[:, :d]), arithmetic in float"),
        ("65x5003", "1131.67", ""),
        ("a…b", "", ""),
        ("two words", "1.54-2.46 and 3", ""),
    ]
    headings = ("workload", "baseline", "what it is")
    tables.print_rows(headings, rows, "a task [/] on [a device", prose=("what it is",))
    text = re.sub("\x1b\\[[0-9;]*m", "", out.file.getvalue())  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    assert "1048576-float32" in text and "4335.99" in text and "1.54-2.46 and 3" in text and text.count("…") == 1
    assert ("──" in text) == (width >= 58) and "[n,d]=silu(input[:,:d])" in re.sub(r"\s", "", text)
    assert "a task [/] on [a device" in " ".join(text.split())


def test_kernels_without_parameters_and_free_replays_are_told(finished_run: Any, here: Any, tmp_path: Path) -> None:
    """As a model writes one."""
    failed = {"kind": "compile_failed", "what": "does not compile", "config": {}, "template": "whole-2"}
    totals = {"calls": 2, "unaccounted": 0, "failed": 0, "prompt_tokens": 9, "completion_tokens": 9, "cost": 0.5}
    rows = [{"role": "plan", "model": "m", **totals, "seconds": 0.0}]
    models = {"transport": "replay", "where": "there", "failures": {}, "rows": rows, **totals, "seconds": 0.0}
    folder = shutil.copytree(finished_run.folder, tmp_path / "run")
    changes = {"general": {"template": "whole-1", "config": {}}, "failure_examples": [failed], "models": models}
    (folder / "summary.json").write_text(json.dumps(finished_run.summary | changes))
    shown = str(here("report", folder).stdout)
    assert "General configuration: whole-1, a kernel without parameters" in shown
    assert "such as whole-2, a kernel without parameters: does not compile" in shown
    assert "2 calls, 18 tokens, no cost, as they are replayed" in shown and "$" not in shown


PROGRAM = Path(__file__).parents[2] / ".ci" / "lines.py"
FUNCTION = "def many(a, b, c, d, e, f, g, h, *rest):\n" + "    pass\n" * 60


@pytest.mark.parametrize("over", ["", "hw", "tests", "files", "classes"])
def test_what_is_over_its_budget_fails(tmp_path: Path, over: str) -> None:
    bounds = {name: count - (name == over) for name, count in {"files": 1, "classes": 1, "hw": 62, "tests": 3}.items()}
    lines = [f"{name} = {count}" for name, count in bounds.items()]
    lines.insert(2, "[tool.tunesmith.lines.rooms]")
    files = {"hw/a.py": f"class A: ...\n{FUNCTION}", "hw/a.j2": "x\n", "tests/b.py": "class B:\n  x = 1\n\n"}
    for name, text in (files | {"pyproject.toml": "\n".join(["[tool.tunesmith.lines]", *lines])}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True)
    assert done.returncode == bool(over), done
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith("OVER BUDGET")] == [over] * bool(over)
    assert "hw/a.py:2: many has 61 lines and 9 parameters" in done.stdout
    assert "templates (.j2): 1 lines, 1 files" in done.stdout


@pytest.mark.parametrize("effort", sorted(PROFILES))
def test_an_effort_profile_sets_what_is_not_given(effort: str) -> None:
    settings = make_settings(task="any", effort=effort)
    assert {name: getattr(settings, name) for name in PROFILES[effort]} == PROFILES[effort]
    assert (effort == "balanced") == (make_settings(task="any") == settings)
    given = make_settings(task="any", effort=effort, evaluations=7, rounds=3)
    assert (given.evaluations, given.rounds) == (7, 3) and given.branches == settings.branches
    # What a run was started with is what it is resumed with, whatever a later version's profile says.
    assert make_settings(**given.model_dump()) == given
