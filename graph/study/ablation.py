"""An ablation: the same task by several arms of the graph, each several times, with equal caps, and what that shows.

Owns the runs of an ablation (each is an ordinary run in a folder of its own, so that an interruption loses nothing) and
the arithmetic over them. What an arm does: `tunesmith.graph.roles.planner`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

from tunesmith.graph.journal.log import JournalError, begun, weighted_geomean
from tunesmith.graph.models.calls import Models, Waiting
from tunesmith.graph.models.recorded import ANSWERS
from tunesmith.graph.progress import Listener, Progress, silent
from tunesmith.graph.results.summary import read_summary
from tunesmith.graph.run import RunResult, resume, tune
from tunesmith.graph.settings import Arm, make_settings, require_new_folder
from tunesmith.hw.errors import TunesmithError

ARMS: tuple[Arm, ...] = get_args(Arm)
WITHOUT_KIT = "-without-kit"
"""Ends the name of an arm whose templates' authors are not shown the kit."""
CONFIDENCE = 0.95
UNCHECKED = {"model", "base_url", "max_calls"}
"""Settings that are valid only beside others, which each run gets by itself."""
ModelsOf = Callable[[str], Models]
"""Models for a run by its name, such as "rewrite-2"."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run. speedup: of the general configuration over the baseline at the end, at least 1.0, as the user may keep the
    baseline; by_shape: the same with the best for each tuned workload; calls, tokens: None without a count."""

    name: str
    speedup: float
    by_shape: float
    valid: bool
    evaluations: int
    calls: int | None
    seconds: float
    ended_by: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ArmResult:
    """mean, by_shape: geometric means of the repeats' speed-ups; spread: their standard deviation as a factor; low,
    high: Student's t interval of the mean logarithm, as speed-ups; None for a single repeat."""

    arm: str
    repeats: tuple[Repeat, ...]
    mean: float
    by_shape: float
    spread: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How many times faster `better` is than `than`: the ratio of geometric means, with Student's t interval of the
    mean difference of logarithms, over repeats of one seed or over tasks. by_shape: compares the best for each
    workload."""

    by_shape: bool
    better: str
    than: str
    ratio: float
    low: float | None
    high: float | None


def ablate(
    tasks: Sequence[str | Path],
    *,
    folder: Path,
    arms: Sequence[str],
    repeats: int = 3,
    calls: int | None = None,
    listener: Listener = silent,
    models: ModelsOf | None = None,
    **settings: Any,
) -> dict[str, tuple[list[ArmResult], list[Difference]]]:
    """Runs every arm `repeats` times for each task and compares them; finished runs are read, interrupted ones resumed.

    folder: of the runs; several tasks have one each in it. settings: of `tune`; each repeat has a seed of its own, the
    same for all arms. calls: limit on the model calls of a run. Arms without a search go on for as many rounds as they
    have calls or evaluations. models: of your own; else the settings name them. Where runs wait for answers, all others
    go on before `Waiting` is raised.
    """
    unknown = [arm for arm in arms if arm.removesuffix(WITHOUT_KIT) not in ARMS]
    if unknown or not arms or len(set(arms)) < len(arms):
        what = f"there is no arm '{unknown[0]}'" if unknown else "name each arm once"
        raise TunesmithError(f"--arms: {what}; they are {', '.join(ARMS)}, also with {WITHOUT_KIT} behind.")
    if repeats < 1:
        raise TunesmithError(f"--repeats: give at least 1, not {repeats}.")
    if models is None and settings.get("model", "none") == "none":
        raise TunesmithError("--model: an ablation compares ways to use a model; name a model.")
    places = {str(task): _place(str(task)) if len(tasks) > 1 else "" for task in tasks}
    if len(set(places.values())) < len(tasks):
        raise TunesmithError("TASK: the folders of several tasks have the same name; give each an ablation of its own.")
    found, waiting = {}, []
    for task, place in places.items():
        wanted = {**settings, **_own_files(settings, place)}
        question = {"task": task, "arms": list(arms), "repeats": repeats, "calls": calls, "settings": wanted}
        _agree(folder / place, question)
        results: dict[str, list[Repeat]] = {arm: [] for arm in arms}
        # Repeat by repeat, so that what drifts (temperature, neighbours) drifts for all arms alike.
        for repeat, arm in product(range(1, repeats + 1), arms):
            run = folder / place / f"{arm}-{repeat}"
            name = str(run.relative_to(folder))
            listener(Progress("ablate", f"{name} of {repeats}"))
            own = None if models is None else models(name)
            try:
                if (ended := _ended(run)) is not None:
                    result = ended
                elif (run / "journal.sqlite").is_file():
                    result = resume(run, as_recorded=True, listener=listener, models=own)
                else:
                    values = _settings_of(task, run.name, repeat, calls, wanted)
                    if own is None and calls is not None:
                        values["max_calls"] = calls
                    result = tune(task, run_dir=run, listener=listener, models=own, **values)
                results[arm].append(_repeat_of(result))
            except Waiting as wait:
                waiting.append(str(wait.requests or f"{name} ({str(wait).rstrip('.')})"))
            except JournalError as error:
                raise JournalError(f"{run}: {error}") from error
        if all(len(done) == repeats for done in results.values()):
            found[task] = compare(results)
    if waiting:
        raise Waiting(
            f"{len(waiting)} run(s) wait: answer {', '.join(waiting)} (OpenAI's batch API, `vllm run-batch`, or by "
            f"hand), put the answers into {ANSWERS} beside each, then run the same ablation again."
        )
    return found


def _place(task: str) -> str:
    """The folder's name of one task among several."""
    path = Path(task)
    return path.parent.resolve().name if path.name == "task.toml" else path.resolve().name


def _own_files(settings: Mapping[str, Any], place: str) -> dict[str, str]:
    """The setting `model` with a folder of its own, where answers come from files: runs ask the same questions by
    name."""
    kind, colon, where = str(settings.get("model", "")).partition(":")
    return {"model": f"{kind}:{Path(where) / place}"} if colon and kind in ("batch", "replay") else {}


def _settings_of(task: str, name: str, repeat: int, calls: int | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the run `name`, which begins with its arm."""
    named = name.rpartition("-")[0]
    arm = named.removesuffix(WITHOUT_KIT)
    # Without earlier results: repeats and arms would learn from each other. All take the same number of calls.
    values = {"least_gain": 0.0, **settings, "wisdom": False, "arm": arm}
    values |= {"kit": arm == named and settings.get("kit", True), "seed": int(settings.get("seed", 0)) + repeat - 1}
    if arm == "rewrite":
        values["repairs"] = 0
    if arm != "template+search" and (arm != "tree" or values.get("planner") == "rules"):
        known = {name: value for name, value in values.items() if name not in UNCHECKED}
        chosen = make_settings(task=task, **known)
        # Rules ask for `branches` answers a round, two kinds in the first: rounds without any would repeat a test.
        a_round = min(chosen.branches, 2) if arm == "tree" else 1
        cap = chosen.max_calls if calls is None else calls
        most = chosen.evaluations if cap is None else cap
        values["rounds"] = min(chosen.evaluations, max(1, math.ceil(most / a_round)), 1000)
    return values | _own_files(values, name)


def _ended(run: Path) -> RunResult | None:
    """The result of a run that has ended, for which its device is not needed."""
    summary = read_summary(run) if (run / "summary.json").is_file() else None
    return RunResult(folder=run, summary=summary) if summary is not None and summary.ended_by else None


def _repeat_of(result: RunResult) -> Repeat:
    """The figures of a run that the ablation compares."""
    summary, usage = result.summary, result.summary.models
    ratio = summary.ratio if summary.general is not None else None
    weights = begun(result.folder).event.task.weights
    ratios = {row.workload: 1.0 if row.best is None else min(1.0, row.best.ratio) for row in summary.tuned}
    counted = ("calls", "prompt_tokens", "completion_tokens")
    counts: dict[str, Any] = {name: usage and getattr(usage, name) for name in counted}
    return Repeat(
        name=result.folder.name,
        speedup=1.0 if ratio is None else max(1.0, 1 / ratio),
        by_shape=1 / weighted_geomean(ratios, weights) if ratios else 1.0,
        valid=ratio is not None,
        evaluations=summary.evaluations,
        seconds=summary.seconds,
        ended_by=summary.ended_by,
        **counts,
    )


def compare(runs: Mapping[str, Sequence[Repeat]]) -> tuple[list[ArmResult], list[Difference]]:
    """Means, intervals and pairwise differences, on logarithms: speed-ups multiply."""
    results = []
    speedups = {arm: [math.log(repeat.speedup) for repeat in repeats] for arm, repeats in runs.items()}
    by_shape = {arm: [math.log(repeat.by_shape) for repeat in repeats] for arm, repeats in runs.items()}
    for arm, repeats in runs.items():
        spread = math.exp(stdev(speedups[arm])) if len(repeats) > 1 else None
        mean, low, high = _interval(speedups[arm])
        results.append(ArmResult(arm, tuple(repeats), mean, math.exp(fmean(by_shape[arm])), spread, low, high))
    return results, _differences(speedups, by_shape)


def over_tasks(results: Sequence[Sequence[ArmResult]]) -> list[Difference]:
    """The differences of arms over several tasks, each of which counts by its geometric means. results: the same arms
    for each task."""
    arms = [one.arm for one in results[0]]
    means = {arm: [math.log(task[at].mean) for task in results] for at, arm in enumerate(arms)}
    return _differences(means, {arm: [math.log(task[at].by_shape) for task in results] for at, arm in enumerate(arms)})


def _differences(speedups: Mapping[str, Sequence[float]], by_shape: Mapping[str, Sequence[float]]) -> list[Difference]:
    """speedups, by_shape: logarithms of each arm, of the same repeats or tasks in the same order."""
    differences = []
    for logs, (one, other) in product((speedups, by_shape), combinations(speedups, 2)):
        gaps = [a - b for a, b in zip(logs[one], logs[other], strict=False)]
        if fmean(gaps) < 0:
            one, other, gaps = other, one, [-gap for gap in gaps]
        differences.append(Difference(logs is by_shape, one, other, *_interval(gaps)))
    return differences


def _interval(logs: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The geometric mean of values by their logarithms, and Student's t interval of it; None for a single value."""
    from scipy.special import stdtrit

    mean = fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = float(stdtrit(len(logs) - 1, 0.5 + CONFIDENCE / 2)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _agree(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Raises `TunesmithError` where an ablation is continued with other settings; repeats and arms may be added."""
    make_settings(task="any", **{name: value for name, value in wanted["settings"].items() if name not in UNCHECKED})
    file = folder / "ablation.json"
    text = json.dumps(wanted, indent=2, default=str) + "\n"
    if not file.is_file():
        require_new_folder(folder, "--out")
    else:
        try:
            before, ours = json.loads(file.read_text(encoding="utf-8")), json.loads(text)
            key = next((key for key in ("task", "calls", "settings") if before[key] != ours[key]), None)
        except (ValueError, KeyError, TypeError) as error:
            raise TunesmithError(f"--out: {file} was not written by `tunesmith ablate`; choose another.") from error
        if key is not None:
            other = f"an ablation with another {key} ({before[key]})"
            raise TunesmithError(f"{folder} holds {other}: give the same, or choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
