"""What the command line imports, prints and promises, without a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import tunesmith
from tunesmith.cli.commands.tune import drive
from tunesmith.cli.main import COMMANDS

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


def test_every_setting_is_an_option_with_its_description(here: Any) -> None:
    from tunesmith.cli.options import NOT_OPTIONS
    from tunesmith.graph.settings import Settings

    shown = " ".join(here("tune", "-h").stdout.split())
    for name, field in Settings.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        assert (f" {option} " in shown) == (name not in NOT_OPTIONS), name
        assert name in NOT_OPTIONS or str(field.description).removesuffix(".") in shown, name


def test_a_file_of_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    from tunesmith.graph.settings import TunesmithError, read_settings

    path = tmp_path / "settings.toml"
    path.write_text("\ufeffrounds = 2\n", encoding="utf-8")
    assert read_settings(path) == {"rounds": 2}
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TunesmithError, match="is not UTF-8 text: save it as UTF-8"):
        read_settings(path)


def test_the_shell_completes_commands_and_options(environment: dict[str, str]) -> None:
    asked = {"_TUNESMITH_COMPLETE": "complete_bash", "COMP_WORDS": "tunesmith tune --see", "COMP_CWORD": "2"}
    run = [sys.executable, "-m", "tunesmith.cli.main"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, env=environment | asked)
    assert "--seed" in done.stdout.split(), done.stderr


def test_every_command_has_help(here: Any) -> None:
    shown = here("--help").stdout
    assert all(name in shown for name in COMMANDS)
    assert "..." not in shown.split("Commands:")[1], "what a command does is not cut"


def test_devices_and_tasks_as_json(here: Any, device: Any) -> None:
    assert device.name in [entry["name"] for entry in json.loads(here("devices", "--json").stdout)["devices"]]
    shown = {entry["name"]: entry for entry in json.loads(here("tasks", "--json").stdout)}
    assert {"silu_and_mul", "fused_add_rmsnorm", "merge_attn_states", "gemm"} <= set(shown)
    assert all(entry["workloads"] and entry["backends"] for entry in shown.values())


def test_a_space_as_json_adds_up(here: Any) -> None:
    done = here("space", "gemm", "--target", "sm_80", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["template"] for one in told["templates"]] == ["tensor_cores", "tiles"]
    assert told["for_other_devices"] == {"warpgroups": ["compute_capability == 90"]}
    for found in told["templates"]:
        assert found["cartesian"] == found["feasible"] + sum(entry["points"] for entry in found["rejected"])
        assert found["feasible"] > 0


def test_the_graph_is_a_mermaid_drawing(here: Any) -> None:
    done = here("graph")
    assert done.returncode == 0
    assert "graph TD" in done.stdout
    assert all(role in done.stdout for role in ("plan", "template", "tune", "test"))


@pytest.mark.parametrize(
    ("valid", "unexamined", "evaluations", "code"),
    [(True, 0, 9, 0), (True, 2, 9, 0), (False, 0, 9, 3), (False, 0, 0, 5), (False, 2, 9, 6)],
)
def test_each_way_to_end_without_a_winner_has_a_code_of_its_own(
    valid: bool, unexamined: int, evaluations: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = SimpleNamespace(unexamined=unexamined, evaluations=evaluations, to_json=dict)
    result: Any = SimpleNamespace(valid=valid, summary=summary, folder=tmp_path)
    try:
        drive(tmp_path, lambda **_: result, as_json=True)
        found = 0
    except typer.Exit as end:
        found = end.exit_code
    assert found == code and str(tmp_path) in capsys.readouterr().out


def test_the_public_names_are_there_and_on_the_page_of_the_api() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in tunesmith.__all__:
        assert getattr(tunesmith, name).__name__ == name and re.search(rf"^\.\. auto\w+:: {name}$", page, re.MULTILINE)
    with pytest.raises(AttributeError, match="no attribute 'tuned'"):
        tunesmith.tuned  # noqa: B018
