"""More of a run that was begun: further configurations, rounds and time, also where it had ended.

The journal keeps each extension as the settings that it changed, so that whoever resumes the run afterwards has them.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tunesmith.graph.journal.events import Extended, StepTaken
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Store
from tunesmith.graph.settings import Settings, SettingsError


def settings_of(log: RunLog, begun: Settings) -> Settings:
    """What holds now for a run that began with `begun`."""
    for extension in log.extensions:
        begun = begun.model_copy(update=extension.model_dump(exclude_none=True))
    return begun


def extend(
    journal: Store,
    settings: Settings,
    *,
    more: int = 0,
    rounds: int | None = None,
    time_limit: float | None = None,
    dispatch_shapes: int | None = None,
) -> Settings:
    """Writes down that a run may measure `more` configurations, in so many `rounds` and seconds (`time_limit`) beyond
    what it has used; gives the settings that hold from now on. A run that has had its last round gets one more, if
    `rounds` is left out. dispatch_shapes: as the setting, which alone lets no search go on. Raises `SettingsError`."""
    for option, value in (("more", more), ("rounds", rounds or 0), ("time-limit", time_limit or 0)):
        if value < 0:
            raise SettingsError(f"--{option}: {value} is negative; write how much more the run may take.")
    changed: dict[str, Any] = {} if dispatch_shapes is None else {"dispatch_shapes": dispatch_shapes}
    if more or rounds or time_limit:
        changed |= _further_search(journal, settings, more, rounds, time_limit)
    extended = _valid(settings, changed)
    if changed:
        journal.append(Extended(**changed))
    return extended


def _further_search(
    journal: Store, settings: Settings, more: int, rounds: int | None, time_limit: float | None
) -> dict[str, Any]:
    """The settings that let the search go on. Raises `SettingsError` where that leaves nothing to do."""
    log = RunLog(journal)
    spent, had = log.seconds_spent, max((plan.round for plan in log.plans), default=0)
    # A run also ends by time while what is left would only do for a comparison.
    by_time = any(event.done == "time" for event in list(log.events(StepTaken))[-1:])
    if settings.time_limit is not None and (spent >= settings.time_limit or by_time) and not time_limit:
        raise SettingsError(
            f"The run's time limit of {settings.time_limit:.0f} s is spent; say with --time-limit how much longer it "
            "may take."
        )
    changed: dict[str, Any] = {}
    if more:
        # What a limit on time or an early end left over is measured as well.
        changed["evaluations"] = settings.evaluations + more
    elif settings.evaluations <= log.evaluation_count:
        raise SettingsError("The run has measured all that it may; say with --more how many configurations to add.")
    changed["rounds"] = had + rounds if rounds else max(settings.rounds, had + 1)
    if time_limit:
        changed["time_limit"] = spent + time_limit
    return changed


def _valid(settings: Settings, changed: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(settings.model_dump(mode="json") | changed)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingsError(f"The run cannot be extended so far: {first['loc'][0]}: {first['msg']}.") from error
