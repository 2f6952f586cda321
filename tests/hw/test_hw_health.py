"""What the driver holds against a GPU: nothing, a note, or a reason to leave it alone."""

from __future__ import annotations

from typing import Any

import pytest
from hw_fakes import MIG_UUID, UUIDS, FakeGpu, FakeNvml

from tunesmith.hw.errors import Unavailable
from tunesmith.hw.probe import GpuHealth, query_gpu_health

GPU = f"GPU-{UUIDS[0]}"


def one_gpu(**failing: int) -> FakeNvml:
    return FakeNvml([FakeGpu(GPU, "00000000:3B:00.0", failing=failing)])


def ask(nvml: Any, uuid: str = GPU) -> GpuHealth:
    found = query_gpu_health(uuid, nvml_module=nvml)
    assert getattr(nvml, "started", 0) == 0, "the session with NVML was not ended"
    return found


@pytest.mark.parametrize(
    ("failing", "uncorrected", "rows", "expected"),
    [
        ({}, 0, (0, 0, 0, 0), GpuHealth()),
        ({"ecc": FakeNvml.NVML_ERROR_NOT_SUPPORTED, "rows": FakeNvml.NVML_ERROR_NOT_SUPPORTED}, 0, (), GpuHealth()),
        ({}, 3, (0, 0, 0, 0), GpuHealth(note="it has 3 uncorrected memory errors since the driver was loaded")),
        ({}, 3, (1, 1, 0, 1), GpuHealth("it has memory rows that could not be remapped")),
    ],
)
def test_errors_are_a_note_and_rows_without_a_spare_are_a_fault(
    failing: dict[str, int], uncorrected: int, rows: Any, expected: GpuHealth
) -> None:
    nvml = one_gpu(**failing)
    nvml.uncorrected, nvml.rows = uncorrected, rows
    found = ask(nvml)
    assert found.fault == expected.fault and (expected.fault or found.note == expected.note)
    # A slice shares the health of its GPU.
    assert ask(nvml, f"MIG-{MIG_UUID}") == found and "parent" in nvml.calls


def test_a_lost_gpu_is_a_fault_and_one_that_nvml_does_not_know_is_not() -> None:
    assert "no longer reaches it" in ask(one_gpu(ecc=FakeNvml.NVML_ERROR_GPU_IS_LOST)).fault
    assert ask(one_gpu(), "GPU-of-a-slice") == GpuHealth()
    for nvml in (Unavailable("none here"), FakeNvml(init_error=9)):
        assert ask(nvml) == GpuHealth()
