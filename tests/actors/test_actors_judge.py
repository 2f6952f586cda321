"""The reasons a verdict gives for outcomes that are not measurements."""

from __future__ import annotations

import pytest

from tunesmith.actors.judging.judge import reason_of
from tunesmith.kernels.outcome import CompileFailed


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        # As NVRTC 13.0 said it under a bound on its address space.
        ("candidate(11): catastrophic error: out of memory", "compile_crashed"),
        ('candidate(3): error: identifier "memory" is undefined', "compile_failed"),
    ],
)
def test_a_compiler_that_ran_out_of_memory_did_not_refuse_the_source(said: str, reason: str) -> None:
    assert reason_of(CompileFailed(said)) == reason
