"""What the driver holds against a GPU: nothing, a note, or a reason to leave it alone."""

from __future__ import annotations

from typing import Any

import pytest
from hw_fakes import MIG_UUID, UUIDS, FakeGpu, FakeNvml

from tunesmith.hw.errors import Unavailable
from tunesmith.hw.probe import GpuHealth, query_gpu_health

GPU = f"GPU-{UUIDS[0]}"


class FakeMemory(FakeNvml):
    """With the calls about memory; `uncorrected` errors, `rows` as NVML gives them."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    uncorrected: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return self._answer("ecc", gpu, self.uncorrected)

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        return self._answer("rows", gpu, self.rows)


def one_gpu(**failing: int) -> FakeMemory:
    return FakeMemory([FakeGpu(GPU, "00000000:3B:00.0", failing=failing)])


def ask(nvml: Any, uuid: str = GPU) -> GpuHealth:
    found = query_gpu_health(uuid, nvml_module=nvml)
    assert getattr(nvml, "started", 0) == 0, "the session with NVML was not ended"
    return found


def test_a_well_gpu_and_one_that_reports_nothing() -> None:
    assert ask(one_gpu()) == GpuHealth()
    assert ask(one_gpu(ecc=FakeNvml.NVML_ERROR_NOT_SUPPORTED, rows=FakeNvml.NVML_ERROR_NOT_SUPPORTED)) == GpuHealth()


def test_errors_are_a_note_and_rows_without_a_spare_are_a_fault() -> None:
    nvml = one_gpu()
    nvml.uncorrected = 3
    assert ask(nvml).note == "it has 3 uncorrected memory errors since the driver was loaded" and not ask(nvml).fault
    nvml.rows = (1, 1, 0, 1)
    assert ask(nvml).fault == "it has memory rows that could not be remapped"


def test_a_lost_gpu_is_trouble_and_an_unknown_one_is_not() -> None:
    assert "no longer reaches it" in ask(one_gpu(ecc=FakeNvml.NVML_ERROR_GPU_IS_LOST)).fault
    assert ask(one_gpu(), "GPU-of-a-slice") == GpuHealth()


@pytest.mark.parametrize("nvml", [Unavailable("none here"), FakeMemory(init_error=9)])
def test_without_nvml_nothing_is_said(nvml: Any) -> None:
    assert ask(nvml) == GpuHealth()


def test_a_slice_shares_the_health_of_its_gpu() -> None:
    nvml = one_gpu()
    nvml.uncorrected = 3
    assert "3 uncorrected memory errors" in ask(nvml, f"MIG-{MIG_UUID}").note
    assert "parent" in nvml.calls
