"""What NVML tells of one GPU: a sample of its state, missing figures, and its health."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hw_fakes import MIG_UUID, UUIDS, FakeGpu, FakeNvml

from tunesmith.hw.drivers.nvml import with_prefix
from tunesmith.hw.errors import Unavailable
from tunesmith.hw.probe import GpuHealth, query_gpu_health
from tunesmith.hw.telemetry import NoTelemetry, NvmlTelemetry, Telemetry, decode_throttle_reasons, open_telemetry

GPU = f"GPU-{UUIDS[0]}"


def one_gpu(**failing):
    return FakeNvml([FakeGpu(GPU, "00000000:3B:00.0", failing=failing)])


def test_a_sample_is_in_si_units():
    nvml = one_gpu()
    nvml.throttle_bits = 0x1 | 0x4
    with open_telemetry(GPU, nvml_module=nvml) as source:
        full = Telemetry(1.98e9, 3.201e9, 350.5, 12.345, 41.0, ("sw_power_cap",))
        assert source.sample(energy=True) == full
        assert source.sample() == dataclasses.replace(full, energy_j=None)
    assert (nvml.started, nvml.calls.count("energy")) == (0, 1)


def test_reasons_are_named_and_idleness_is_none():
    assert decode_throttle_reasons(0) == decode_throttle_reasons(1) == ()
    assert decode_throttle_reasons(0x8 | 0x20 | 0x40 | 0x80 | 0x10 | 0x2) == (
        "applications_clocks_setting",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    )
    assert decode_throttle_reasons(0x600) == ("unknown_0x200", "unknown_0x400")


def test_what_a_gpu_does_not_report_is_none_and_asked_once():
    nvml = one_gpu(energy=3, power=4)
    with open_telemetry(GPU, nvml_module=nvml) as source:
        first, second = source.sample(energy=True), source.sample(energy=True)
    assert isinstance(source, NvmlTelemetry)
    assert first == second
    assert isinstance(first, Telemetry)
    assert (first.energy_j, first.power_w, first.sm_clock_hz) == (None, None, 1.98e9)
    assert (nvml.calls.count("energy"), sorted(source.unsupported)) == (1, ["energy_j", "power_w"])


def test_the_energy_counter_alone():
    nvml = one_gpu()
    with open_telemetry(GPU, nvml_module=nvml) as source:
        assert source.joules() == 12.345
        nvml.gpus[0].failing["energy"] = nvml.NVML_ERROR_GPU_IS_LOST
        assert source.joules() is None
    assert (NoTelemetry("none").joules(), "power" in nvml.calls) == (None, False)
    lacking = one_gpu(energy=3)
    with open_telemetry(GPU, nvml_module=lacking) as source:
        assert (source.joules(), source.joules(), lacking.calls.count("energy")) == (None, None, 1)


def test_a_gpu_that_is_lost_is_a_reason_and_not_an_exception():
    nvml = one_gpu()
    with open_telemetry(GPU, nvml_module=nvml) as source:
        nvml.gpus[0].failing["power"] = nvml.NVML_ERROR_GPU_IS_LOST
        lost = source.sample()
    assert isinstance(lost, NoTelemetry) and "no longer reads the GPU" in lost.reason
    assert nvml.started == 0


def test_a_slice_is_named_as_nvml_finds_it_and_read_through_its_gpu():
    nvml = one_gpu()
    with open_telemetry(f"MIG-{MIG_UUID}", nvml_module=nvml) as source:
        assert isinstance(source.sample(), Telemetry) and "parent" in nvml.calls
    for bare, full in ((MIG_UUID, f"MIG-{MIG_UUID}"), (UUIDS[0], f"GPU-{UUIDS[0]}"), ("unknown", "GPU-unknown")):
        assert with_prefix(bare, nvml_module=nvml) == full
    assert nvml.started == 0
    assert with_prefix(UUIDS[0], nvml_module=Unavailable("not here")) == f"GPU-{UUIDS[0]}"


@pytest.mark.parametrize(
    ("nvml", "uuid", "said"),
    [
        (FakeNvml([FakeGpu("GPU-a", "")]), "opencl-x", "does not find the GPU opencl-x"),
        (FakeNvml(init_error=12), "GPU-a", "No NVIDIA driver was found"),
    ],
)
def test_why_there_is_no_telemetry(nvml, uuid, said):
    source = open_telemetry(uuid, nvml_module=nvml)
    assert isinstance(source, NoTelemetry) and said in source.reason
    assert source.sample() is source
    assert nvml.started == 0


def test_this_machine():
    with open_telemetry(GPU) as source:
        sample = source.sample()
    assert isinstance(sample, Telemetry) or sample.reason.endswith(".")


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
