"""What the user asked of a run, as stored beside it; validated where it comes in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.graph.models.settings import ModelSettings
from tunesmith.hw.errors import TunesmithError


class SettingsError(TunesmithError):
    """A setting has no meaning."""


class Placement(BaseModel):
    """Where a further role stands: right behind the role `after`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    after: str


Arm = Literal["template+search", "template", "rewrite"]


class Settings(ModelSettings):
    """evaluations: configurations to measure in the search; time_limit: seconds of work, None for no limit; rounds:
    turns of the loop; target: another device the winner must also fit; target_device: part of the name of the model to
    tune on, where there are several; lanes: GPUs to use, None for all of that model; workers: compile processes, None
    for as many as there are cores; prior: another run's folder or a recorded table, to lead the searches; finalists:
    how many configurations are re-measured against the baseline; reference_deadline: seconds the reference may take for
    one workload.

    With a model: branches: most templates a round may tune side by side; repairs: how often a template that does not
    work goes back to its author; explain: whether the model sums up each round for the next plan. approve: "plans"
    stops before each plan is carried out. roles: further roles by name, and where they stand. arm: what of the graph
    works, for ablations (`tunesmith.graph.roles.arms`).
    """

    task: str
    backend: Literal["auto", "cuda", "opencl"] = "auto"
    target: str | None = None
    evaluations: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    time_limit: Annotated[float, Field(gt=0)] | None = None
    rounds: Annotated[int, Field(ge=1, le=1000)] = 2
    strategy: str = "default"
    prior: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    target_device: str | None = None
    lanes: Annotated[int, Field(ge=1, le=4096)] | None = None
    finalists: Annotated[int, Field(ge=1, le=64)] = 5
    branches: Annotated[int, Field(ge=1, le=8)] = 2
    repairs: Annotated[int, Field(ge=0, le=20)] = 3
    explain: bool = True
    approve: Literal["none", "plans"] = "none"
    roles: dict[str, Placement] = Field(default_factory=dict)
    reference_deadline: Annotated[float, Field(gt=0)] = 60.0
    arm: Arm = "template+search"


def make_settings(**values: object) -> Settings:
    """Settings from values of any origin; raises `SettingsError` naming the one that is wrong."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise SettingsError(f"{option}: {first['msg']}, not {first['input']!r}.") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, for `make_settings`; raises `SettingsError`.

    Keys are those of `Settings`; time_limit may be a text such as "10m". `[roles.NAME]` with `after` places a role.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--settings: {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--settings: {path} is not valid TOML: {error}.") from error
    if unknown := sorted(set(data) - (set(Settings.model_fields) - {"task"})):
        options = ", ".join(name for name in Settings.model_fields if name != "task")
        raise SettingsError(f"--settings: {path} has the unknown key '{unknown[0]}'; the keys are {options}.")
    if isinstance(data.get("time_limit"), str):
        data["time_limit"] = parse_duration(data["time_limit"])
    try:
        Settings.model_validate({"task": "any", **data})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise SettingsError(f"--settings: {path}, key {key}: {first['msg']}, not {first['input']!r}.") from error
    return data


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_duration(text: str) -> float:
    """Seconds of a text such as "90", "90s", "10m" or "1h30m"; raises `SettingsError`."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if parts is None or not any(parts.groups()):
        raise SettingsError(f"--time-limit: '{text}' is no duration; write it as 90s, 10m or 1h30m.")
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return hours * _UNITS["h"] + minutes * _UNITS["m"] + seconds


def new_run_dir(task: str, base: Path) -> Path:
    """A folder that does not exist yet, named by task and a counter."""
    path = Path(task).resolve()
    name = path.parent.name if task.endswith(".toml") else path.name
    number = 1
    while (path := base / f"{name or 'run'}-{number:03d}").exists():
        number += 1
    return path
