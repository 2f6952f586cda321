"""The settings of a run, and what every option that names a file or a folder has in common.

Settings are declared once: the options of `tunesmith tune` (by `tunesmith.cli.options`), the keys of a settings file,
and the keywords of `tunesmith.graph.tune`. They are stored beside the run, so the key of a model's server is never
among them: only the name of the environment variable that has it.

Nothing is overwritten in silence. A command writes a new or an empty file, or replaces its own former output, known by
its first bytes; any other file only with --force. A folder must be new or empty. In the folder of a run, only that run
writes.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from tunesmith.hw.errors import TunesmithError, named_path, refusals
from tunesmith.kernels.outcome import Objective
from tunesmith.kernels.spec.taskfile import explain, sentence
from tunesmith.kernels.spec.template import unknown_key

NO_MODEL = "none"
Method = Literal["json_schema", "function_calling", "json_mode"]
METHODS: tuple[Method, ...] = ("json_schema", "function_calling", "json_mode")
"""The forms of a request for an answer that fits a schema, the most binding first."""
Arm = Literal["tree", "template+search", "template", "rewrite"]

PROFILES: dict[str, dict[str, object]] = {
    "quick": {"evaluations": 40, "rounds": 1, "branches": 1, "max_calls": 4, "time_limit": 600.0},
    "balanced": {},
    "max": {"evaluations": 600, "rounds": 4, "branches": 3, "max_calls": 48, "time_limit": 7200.0},
}
"""The settings of each effort, where nothing else sets them; "balanced" is the defaults of the fields."""


def parse_duration(text: str) -> float:
    """Seconds of a text such as "90", "90s", "10m" or "1h30m"; raises `ValueError`."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if parts is None or not any(parts.groups()):
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 10m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return hours * 3600.0 + minutes * 60.0 + seconds


def _table(given: object, form: str, read: Callable[[str], Any] = str) -> object:
    """A list of texts such as NAME=VALUE as a table; anything else as it is."""
    if not isinstance(given, list):
        return given
    found = {}
    for text in map(str, given):
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise ValueError(f"{text!r} is not of the form {form}")
        found[name] = read(value)
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # such as reasoning_effort=low


Seconds = Annotated[float, BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value)]
"""A number, or a text such as "10m"."""
Text = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _option(
    default: object, description: str, *, metavar: str | None = None, variable: str | None = None, **bounds: Any
) -> Any:
    """A field that is an option of the command line. metavar: its value in the help, where the type does not say;
    variable: the environment variable that is its default; bounds: of pydantic's `Field`."""
    extra: dict[str, Any] = {"metavar": metavar, "variable": variable}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


class Placement(BaseModel, frozen=True, extra="forbid"):
    """The place of a further role: right behind the role `after`."""

    after: str


class Settings(BaseModel, frozen=True, extra="forbid", protected_namespaces=()):
    """All settings of a run; the models' settings come last. `task`, `roles` and `arm` are not options of the command
    line: the task is its argument, roles are placed in a settings file, and `ablate` chooses the arm."""

    task: str
    roles: dict[str, Placement] = {}
    arm: Arm = "tree"
    backend: Literal["auto", "cuda", "triton", "opencl"] = _option("auto", "auto, cuda, triton or opencl.")
    target: str | None = _option(None, "Another device that the winner must fit: name, architecture or TOML file.")
    evaluations: int = _option(100, "Number of configurations to measure.", ge=1, le=10_000_000)
    time_limit: Seconds | None = _option(
        None,
        "End after about this time, such as 90s, 10m or 1h30m (a plain number is in seconds). It includes the start, "
        "the search, the final comparison and the winners' examination, for which the search ends early enough; where "
        "time is short, held-out workloads and the shapes for a dispatch rule are left out, and winners get fewer "
        "checks (default: no limit).",
        metavar="DURATION",
        gt=0,
    )
    rounds: int = _option(2, "How often to repeat the plan/template/tune/test cycle.", ge=1, le=1000)
    objective: Objective = _option(
        "time",
        "What to make small: time, energy, or edp, the product of both (energy-delay product). The last two need an "
        "NVIDIA GPU with an energy counter: docs/energy.md.",
    )
    energy_window: float = _option(0.25, "Minimum seconds of launches for a workload's energy.", ge=0.1, le=5)
    strategy: str = _option("default", "The search strategy; see docs/strategies.md.")
    prior: str | None = _option(None, "An earlier run's folder or table of results: its best points are tried first.")
    wisdom: bool = _option(True, "Begin with the results of earlier runs, and store this run's; see docs/using.md.")
    seed: int = _option(0, "Seed of the search's random choices and of the contents of all buffers.", ge=0, lt=2**63)
    workers: int | None = _option(None, "Number of compile processes (default: one per core).", ge=1, le=1024)
    target_device: str | None = _option(None, "The GPU model to tune on (part of its name), if a cluster has several.")
    dispatch_shapes: int = _option(
        0,
        "At the end, measure the winners on this many more shapes within the task's ranges: half of them fit a rule "
        "that chooses the kernel for a shape, the others test it.",
        ge=0,
        le=10_000,
    )
    lanes: int | None = _option(None, "Number of GPUs to use (default: all of one model).", ge=1, le=4096)
    reference_deadline: float = _option(60.0, "Seconds that the task's reference may take for one workload.", gt=0)
    check_time: Seconds | None = _option(
        None,
        "Time for the checks on made-up sizes, such as 30s (default: 20 s on a GPU, 60 s on a CPU). Compiling, the "
        "task's own sizes, timing and a sanitizer come on top.",
        metavar="DURATION",
        gt=0,
    )
    finalists: int = _option(5, "Number of configurations compared with the baseline after a round.", ge=1, le=64)
    opponents: Literal["usual", "all", "none"] = _option(
        "usual", "Which of the task's opponents the last test times: usual (not those marked on_request), all, or none."
    )
    allow_unexecuted: bool = _option(False, "Also export a winner with lines that no check ran; the report names them.")
    allow_unexamined: bool = _option(False, "Also export a winner that could not be examined; every export says so.")
    effort: Literal["quick", "balanced", "max"] = _option(
        "balanced",
        "quick, balanced or max: sets evaluations, rounds, branches, max-calls and time-limit together; each can still "
        "be set by its own option.",
    )
    branches: int = _option(2, "With a model: maximum number of templates tuned side by side in a round.", ge=1, le=8)
    planner: Literal["model", "rules"] = _option("model", "With a model: who plans, the model (a call) or rules.")
    repairs: int = _option(3, "With a model: how often a broken template is returned for repair.", ge=0, le=20)
    least_gain: float = _option(
        0.03, "With a model: end after a round that brought less than this share, over all workloads.", ge=0, lt=1
    )
    kit: bool = _option(True, "With a model: show CUDA's building blocks, in place of a template of the library.")
    approve: Literal["none", "plans"] = _option("none", "plans (stop before each plan for your approval) or none.")

    model: Text = _option(NO_MODEL, "The language model: its name, command:PROGRAM, batch:DIR, replay:DIR, or none.")
    base_url: str | None = _option(None, "An OpenAI-compatible server (default: OpenAI).", variable="OPENAI_BASE_URL")
    key_env: Text = _option("OPENAI_API_KEY", "The environment variable that has the server's key.")
    model_for: Annotated[dict[str, Text], BeforeValidator(lambda given: _table(given, "ROLE=NAME"))] = _option(
        {}, "Another model for one role; may be repeated.", metavar="ROLE=NAME"
    )
    model_api: Literal["chat", "responses"] = _option("chat", "OpenAI's API for a server's models: chat or responses.")
    model_method: Literal["auto", Method] = _option("auto", f"How to ask for JSON: {', '.join(METHODS)} or auto.")
    model_option: Annotated[
        dict[str, Any], BeforeValidator(lambda given: _table(given, "FIELD=JSON", _json_or_text))
    ] = _option({}, "A further field of each request, such as temperature=0.2; may be repeated.", metavar="FIELD=JSON")
    model_timeout: Seconds = _option(300.0, "Seconds to wait for one answer.", metavar="DURATION", gt=0, le=86_400)
    model_retries: int = _option(4, "Retries after a temporary failure.", ge=0, le=100)
    model_concurrency: int = _option(4, "Number of model calls under way at the same time.", ge=1, le=256)
    requests_per_minute: float | None = _option(None, "Limit on calls per minute (default: none).", ge=0.01, le=1e6)
    answer_tokens: int = _option(16_384, "At most this many tokens per answer, reasoning included.", ge=1, le=1_000_000)
    max_calls: int | None = _option(None, "Limit on the run's model calls (default: none).", ge=0)
    max_tokens: int | None = _option(None, "Limit on the run's tokens (default: none).", ge=0)
    max_cost: Finite | None = _option(None, "Limit on the run's model costs in US dollars (default: none).", ge=0)
    prices: str | None = _option(None, "A TOML file of token prices.")
    batch_model: Text = _option("model", "The model's name in the requests of batch:DIR.")
    replay_exact: bool = _option(False, "Replay an answer only if its prompt is exactly the same.")

    @field_validator("model")
    @classmethod
    def _absolute(cls, value: str) -> str:
        # A run may be resumed from another working directory.
        kind, colon, folder = value.partition(":")
        if colon and kind in ("batch", "replay"):
            if not folder:
                raise ValueError(f"{kind}: needs a folder, as in {kind}:DIR")
            return f"{kind}:{named_path('--model', folder).absolute()}"
        return value

    @field_validator("prices")
    @classmethod
    def _absolute_file(cls, value: str | None) -> str | None:
        return None if value is None else str(named_path("--prices", value).absolute())

    @property
    def transport(self) -> Literal["none", "live", "batch", "replay"]:
        """The carrier of answers."""
        if self.model == NO_MODEL:
            return "none"
        if self.model.startswith("batch:"):
            return "batch"
        return "replay" if self.model.startswith("replay:") else "live"

    @property
    def folder(self) -> Path:
        """DIR of batch:DIR and replay:DIR."""
        return Path(self.model.partition(":")[2])

    def name_for(self, role: str) -> str:
        """The name of the model for a role."""
        default = {"batch": self.batch_model, "replay": "recorded"}.get(self.transport, self.model)
        return self.model_for.get(role, default)

    @property
    def names(self) -> tuple[str, ...]:
        """All models of the run, the general one first."""
        return tuple(dict.fromkeys([self.name_for(""), *self.model_for.values()]))

    @field_validator("dispatch_shapes")
    @classmethod
    def _rule_by_time(cls, shapes: int, info: Any) -> int:
        if shapes and (objective := info.data.get("objective", "time")) != "time":
            raise ValueError(f"a dispatch rule chooses by time; leave this out, or --objective {objective}")
        return shapes

    @property
    def energy_seconds(self) -> float:
        """Seconds for which launches are repeated for their energy; 0 without an energy objective."""
        return 0.0 if self.objective == "time" else self.energy_window

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_effort(cls, data: Any) -> Any:
        return {**PROFILES.get(str(data.get("effort")), {}), **data} if isinstance(data, dict) else data


def make_settings(**values: object) -> Settings:
    """Settings from values of any origin; raises `TunesmithError` naming the wrong one."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, message = ".".join(map(str, first["loc"])), sentence(first)
        if first["type"] == "extra_forbidden" and "." not in key:
            close = get_close_matches(key.replace("-", "_"), list(Settings.model_fields), 1)
            near = f"did you mean --{close[0].replace('_', '-')}?" if close else "`tunesmith tune --help` lists them."
            message = f"there is no such option; {near}"
        option = f"--{key.partition('.')[0].replace('_', '-')}: " if key else ""
        raise TunesmithError(_ended(option + message)) from error


def as_path(given: object, option: str) -> Path:
    """The value of an option as a path; raises `TunesmithError` where no file system takes it."""
    if not isinstance(given, str | PathLike):
        raise TunesmithError(f"{option}: give the path of a folder, not {given!r:.80}.")
    if not str(given):
        raise TunesmithError(f"{option}: the name is empty; name a folder, or leave the option out.")
    path = named_path(option, str(given))
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the path need not exist
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TunesmithError(f"{option}: {str(given)!r:.80} cannot be used ({why}); name another.") from error
    return path


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, by the fields of `Settings`, for `make_settings`; raises `TunesmithError`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TunesmithError(f"--settings: {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        what = "UTF-8 text: save it as UTF-8" if isinstance(error, UnicodeDecodeError) else f"valid TOML: {error}"
        raise TunesmithError(f"--settings: {path} is not {what}.") from error
    keys = [name for name in Settings.model_fields if name != "task"]
    if unknown := sorted(set(data) - set(keys)):
        raise TunesmithError(_ended(f"--settings: {path}: {unknown_key(unknown[0], keys)}"))
    try:
        Settings.model_validate({"task": "any", **data})
    except ValidationError as error:
        raise TunesmithError(_ended(f"--settings: {path}, {explain(error, data)}")) from error
    return data


def _ended(message: str) -> str:
    return message if message.endswith((".", "?")) else f"{message}."


def new_run_dir(task: str, base: Path) -> Path:
    """A folder that does not exist yet, named after the task, or the folder of its file, and a counter."""
    path = Path(task).resolve()
    name = path.parent.name if task.endswith(".toml") else path.name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:80].strip(".-")
    number = 1
    while (path := base / f"{name or 'run'}-{number:03d}").exists():
        number += 1
    return path


def require_writable_file(file: Path, option: str, *, begins: bytes, force: bool = False) -> None:
    """Raises `TunesmithError` where `file`, the value of `option`, must not be written. begins: the first bytes of what
    the command writes; empty where it replaces nothing of its own. force: other files may be replaced."""
    with _outside_of_runs(file, option):
        # Anything but a regular file, such as /dev/stdout or a pipe, has no contents to lose.
        if force or not file.is_file() or not file.stat().st_size:
            return
        with file.open("rb") as there:
            ours = bool(begins) and there.read(len(begins)) == begins
    if not ours:
        what = ", and this command did not write it" if begins else ""
        raise TunesmithError(f"{option}: {file} exists{what}; name another file, or replace it with --force.")


def require_new_folder(folder: Path, option: str) -> None:
    """Raises `TunesmithError` unless `folder`, the value of `option`, is missing or empty, and not inside a run's."""
    with _outside_of_runs(folder, option):
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken:
        what = "is not empty" if folder.is_dir() else "is a file"
        raise TunesmithError(f"{option}: {folder} {what}; name a new or an empty folder.")


@contextmanager
def _outside_of_runs(path: Path, option: str) -> Iterator[None]:
    """Looks at a path that is not in the folder of a run; also an error of the file system is a `TunesmithError`."""
    with refusals(f"{option}: {path} cannot be written", "choose another place"):
        if run := next((one for one in path.resolve().parents if (one / "journal.sqlite").is_file()), None):
            where = f"would lie in {run}, the folder of a run, where only that run writes"
            raise TunesmithError(f"{option}: {path} {where}; choose another place.")
        yield
