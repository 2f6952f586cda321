"""The state of a GPU around a measurement: clocks, power, energy, temperature, throttling.

Owns the reading of one sample from NVML, not the decision whether it makes a measurement invalid. A sample without
energy costs some ten microseconds (H200; the first one milliseconds). Power is NVML's average (over a second on many
GPUs). Energy is a counter, so the difference of two samples is the energy between them; reading it costs 4 ms on an
H200 and it moves every 0.1 s, so it is read only on request and says something only about spans of a second or more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from tunesmith.hw.drivers import nvml as nvml_access
from tunesmith.hw.errors import Unavailable

#: Bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, "NvmlClocksEventReasons"). Idleness
#: (bit 0) is not throttling and is left out.
_IDLE: Final = 0x1
_REASONS: Final[dict[int, str]] = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_SETTINGS: Final = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting"})


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One sample. None marks a value that this GPU does not report, and energy that was not asked for.

    Clocks in Hz, power in W, energy in J since the driver was loaded, temperature in degrees Celsius.
    """

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: float | None
    throttle_reasons: tuple[str, ...] | None

    def figures(self) -> dict[str, float]:
        """Clocks, power and temperature by field name, as far as the GPU reports them."""
        fields = ("sm_clock_hz", "memory_clock_hz", "power_w", "temperature_c")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class NoTelemetry:
    """Why there is no telemetry. Also serves as a source: every sample is itself, without an energy counter."""

    reason: str

    def sample(self, *, energy: bool = False) -> NoTelemetry:
        return self

    def joules(self) -> float | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def harmful(sample: Telemetry | NoTelemetry) -> tuple[str, ...]:
    """The reasons of a sample for which clocks were lower than a kernel alone would have them; none without telemetry.

    Settings (applications clocks, display clocks, sync boost) are how the GPU is run and not events.
    """
    if isinstance(sample, NoTelemetry):
        return ()
    return tuple(reason for reason in sample.throttle_reasons or () if reason not in _SETTINGS)


def decode_throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons in an NVML bit mask, without idleness; unknown bits as ``unknown_0x200``."""
    names = [name for bit, name in _REASONS.items() if bits & bit]
    unknown = bits & ~(_IDLE | sum(_REASONS))
    return tuple(names + [f"unknown_{1 << n:#x}" for n in range(unknown.bit_length()) if unknown >> n & 1])


@dataclass(slots=True)
class NvmlTelemetry:
    """Samples one GPU. Opened by `open_telemetry`; the end of a `with` ends the session with NVML."""

    nvml: Any = field(repr=False)
    handle: Any = field(repr=False)
    #: Fields that this GPU does not report, as far as it was asked.
    unsupported: set[str] = field(default_factory=set)

    def sample(self, *, energy: bool = False) -> Telemetry | NoTelemetry:
        """Read the GPU once; NoTelemetry where it was lost. Never raises.

        `energy` adds the energy counter, which is slow to read.
        """
        nvml, handle = self.nvml, self.handle

        def hertz(domain: int) -> float:
            return float(nvml.nvmlDeviceGetClockInfo(handle, domain) * 1e6)

        def celsius() -> float:
            return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

        try:
            bits = self._read("throttle_reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
            return Telemetry(
                sm_clock_hz=self._read("sm_clock_hz", hertz, nvml.NVML_CLOCK_SM),
                memory_clock_hz=self._read("memory_clock_hz", hertz, nvml.NVML_CLOCK_MEM),
                power_w=self._read("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
                energy_j=self._joules() if energy else None,
                temperature_c=self._read("temperature_c", celsius),
                throttle_reasons=None if bits is None else decode_throttle_reasons(bits),
            )
        except nvml.NVMLError as error:
            return NoTelemetry(f"NVML no longer reads the GPU ({error}): check it with nvidia-smi.")

    def joules(self) -> float | None:
        """The energy counter alone, in J since the driver was loaded; None where this GPU has none, or was lost."""
        try:
            return self._joules()
        except self.nvml.NVMLError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.nvmlShutdown()

    def _joules(self) -> float | None:
        joules: float | None = self._read("energy_j", nvml_access.total_energy_joules, self.nvml, self.handle)
        return joules

    def _read(self, name: str, query: Any, *arguments: Any) -> Any:
        """The answer, or None once the GPU said that it does not have one; other errors pass."""
        if name in self.unsupported:
            return None
        try:
            return query(*arguments)
        except self.nvml.NVMLError as error:
            if not nvml_access.is_absent(self.nvml, error):
                raise
            self.unsupported.add(name)
            return None


def open_telemetry(uuid: str, *, nvml_module: Any = None) -> NvmlTelemetry | NoTelemetry:
    """Open the GPU with this UUID (``GPU-...``, or ``MIG-...`` for the GPU around a slice). Never raises: for a missing
    driver or GPU, and a device of another vendor, the answer is NoTelemetry with the reason."""
    nvml: Any = nvml_access.load() if nvml_module is None else nvml_module
    failed = nvml if isinstance(nvml, Unavailable) else nvml_access.start(nvml)
    if failed is not None:
        return NoTelemetry(failed.reason)
    try:
        return NvmlTelemetry(nvml, nvml_access.physical_gpu(nvml, uuid))
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        return NoTelemetry(f"NVML does not find the GPU {uuid} ({error}): list the GPUs with nvidia-smi -L.")
