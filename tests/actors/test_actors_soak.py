"""The short version of scripts/measure/soak.py; the long one's result is in docs/results."""

from __future__ import annotations

import pytest
from pretence import aside

from tunesmith.cli.measure.soak import soak


@pytest.mark.slow
def test_a_thousand_evaluations_with_faults_of_every_kind() -> None:
    with aside():
        found = soak(1000, seed=3)
    assert found["not_as_planted"] == []
    assert (found["lost"], found["twice"], found["in_journal"]) == (0, 0, 1000)
    assert found["workers_left"] == 0 and found["killed_from_outside"] >= 2
    assert found["outcomes"]["timed_out"] == found["outcomes"]["launch_failed"] == 1
    assert found["passed"]
