"""More of a run that was begun: further configurations, rounds and time, also where it had ended.

The journal keeps each extension as the settings that it changed, so that whoever resumes the run afterwards has them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.graph.journal.events import Extended, StepTaken
from tunesmith.graph.journal.log import RunLog
from tunesmith.graph.journal.store import Store
from tunesmith.graph.settings import Seconds, Settings, SettingsError, option_error
from tunesmith.kernels.spec.files.schema_errors import sentence


class More(BaseModel):
    """What a run may take beyond what it has: `more` configurations, in so many rounds and seconds; dispatch_shapes: as
    the setting."""

    model_config = ConfigDict(frozen=True)

    more: int = Field(ge=0)
    rounds: int | None = Field(ge=0)
    time_limit: Seconds | None = Field(ge=0)
    dispatch_shapes: int | None = Field(ge=0)


def settings_of(log: RunLog, begun: Settings) -> Settings:
    """What holds now for a run that began with `begun`."""
    for extension in log.extensions:
        begun = begun.model_copy(update=extension.model_dump(exclude_none=True))
    return begun


def make_more(**values: object) -> More:
    """Raises `SettingsError` naming the value that is wrong."""
    try:
        return More.model_validate(values)
    except ValidationError as error:
        raise option_error(error, values) from error


def extend(journal: Store, settings: Settings, given: More) -> Settings:
    """Writes down what a run may take beyond what it has used; gives the settings that hold from now on. A run that has
    had its last round gets one more, if `rounds` is left out. dispatch_shapes alone lets no search go on. Raises
    `SettingsError`, and then nothing is written."""
    changed: dict[str, Any] = {} if given.dispatch_shapes is None else {"dispatch_shapes": given.dispatch_shapes}
    if given.more or given.rounds or given.time_limit:
        changed |= _further_search(journal, settings, given)
    extended = _valid(settings, changed)
    if changed:
        journal.append(Extended(**changed))
    return extended


def _further_search(journal: Store, settings: Settings, given: More) -> dict[str, Any]:
    """The settings that let the search go on. Raises `SettingsError` where that leaves nothing to do."""
    more, rounds = given.more, given.rounds
    log = RunLog(journal)
    spent, had = log.seconds_spent, max((plan.round for plan in log.plans), default=0)
    # A run also ends by time while what is left would only do for a comparison.
    by_time = any(event.done == "time" for event in list(log.events(StepTaken))[-1:])
    if settings.time_limit is not None and (spent >= settings.time_limit or by_time) and not given.time_limit:
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
    if given.time_limit:
        changed["time_limit"] = spent + given.time_limit
    return changed


def _valid(settings: Settings, changed: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(settings.model_dump(mode="json") | changed)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SettingsError(f"The run cannot be extended so far: {first['loc'][0]}: {sentence(first)}.") from error
