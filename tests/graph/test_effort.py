"""Effort profiles: what they set, and that what is given goes before them."""

from __future__ import annotations

import pytest

from tunesmith.graph.settings import PROFILES, make_settings
from tunesmith.hw.errors import TunesmithError


@pytest.mark.parametrize("effort", sorted(PROFILES))
def test_a_profile_sets_what_is_not_given(effort: str) -> None:
    settings = make_settings(task="any", effort=effort)
    assert {name: getattr(settings, name) for name in PROFILES[effort]} == PROFILES[effort]
    given = make_settings(task="any", effort=effort, evaluations=7, rounds=3)
    assert (given.evaluations, given.rounds) == (7, 3) and given.branches == settings.branches
    # What a run was started with is what it is resumed with, whatever a later version's profile says.
    assert make_settings(**given.model_dump()) == given


def test_the_default_is_balanced_and_another_effort_is_a_sentence() -> None:
    assert make_settings(task="any") == make_settings(task="any", effort="balanced")
    with pytest.raises(TunesmithError, match="--effort: choose 'quick', 'balanced' or 'max'"):
        make_settings(task="any", effort="huge")
