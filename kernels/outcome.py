"""The outcome of one configuration on one workload: measured, or one of the ways to fail.

A failure is a value with a reason, never a score and never an exception. As JSON both are fields of pydantic models, of
the types `AnyOutcome` and `Evaluation`: the journal's events are such models.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

Objective = Literal["time", "energy", "edp"]
"""The quantity that a run makes small: seconds, joules, or joule seconds (the energy-delay product) of a launch."""


@dataclass(frozen=True, slots=True)
class Energy:
    """joules of a launch: the board's energy over a window of `seconds`, divided by the `launches` in it. error: how
    far the window's ends are from where they are taken to be, as a share of the window. sm_clock_hz: of the
    multiprocessors at the window's end; None where it was not told."""

    joules: float
    seconds: float
    launches: int
    error: float
    sm_clock_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Checked against the reference and timed.

    seconds: median kernel time of one launch, L2 cold; low, high: its 95 % interval; samples: number of samples the
    median is over, each the mean of `launches` launches; errors: per checked argument the largest error as a share of
    its tolerance (1.0 is the limit); throttled: reasons the device gave during timing, empty if none, and none where a
    repetition went without. dropped: sampling ended early, as it was clearly slower than the best known.
    sampling_seconds: wall clock of the samples. telemetry: clocks in Hz, power in W, temperature in degrees Celsius,
    after the samples, as far as the device tells. energy: of a launch; None where nobody asked for it, or the device
    does not tell.
    """

    seconds: float
    low: float
    high: float
    samples: int
    launches: int
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    dropped: bool = False
    sampling_seconds: float = 0.0
    telemetry: dict[str, float] = dataclasses.field(default_factory=dict)
    energy: Energy | None = None
    kind: Literal["measured"] = "measured"

    def quantity(self, objective: Objective) -> float | None:
        """The objective's quantity of a launch; None where its energy is not known."""
        if objective == "time":
            return self.seconds
        if self.energy is None:
            return None
        return self.energy.joules * (self.seconds if objective == "edp" else 1.0)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Never ran: a constraint or a limit of the device forbids it. `rule` names which, `detail` says why."""

    reason: str
    rule: str
    detail: str
    kind: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True)
class CompileFailed:
    """The compiler refused the source; `first_error` is its first error with line, `log` the whole text, cut."""

    first_error: str
    log: str = ""
    kind: Literal["compile_failed"] = "compile_failed"


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """Loading or launching failed; `error` is the driver's message. `sticky`: the device context is lost."""

    error: str
    sticky: bool = False
    kind: Literal["launch_failed"] = "launch_failed"


@dataclass(frozen=True, slots=True)
class WrongResult:
    """It ran and its result is not right. `reason`: one of `tunesmith.kernels.check.compare.REASONS`."""

    reason: str
    argument: str
    detail: str
    kind: Literal["wrong_result"] = "wrong_result"


@dataclass(frozen=True, slots=True)
class Implausible:
    """Timed faster than the device can be: the timing or the kernel's result is misleading. seconds: the measured
    time; floor: the shortest time that the measured roofs allow, in seconds, after the margin of docs/trust.md."""

    seconds: float
    floor: float
    detail: str
    kind: Literal["implausible"] = "implausible"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Ended by its deadline. `phase`: "compile" or "run"; `limit`: seconds allowed."""

    phase: str
    limit: float
    kind: Literal["timed_out"] = "timed_out"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process that ran it died. `phase`: "compile" or "run"."""

    phase: str
    detail: str
    kind: Literal["crashed"] = "crashed"


Outcome = Measured | Rejected | CompileFailed | LaunchFailed | WrongResult | Implausible | TimedOut | Crashed
Failure = Rejected | CompileFailed | LaunchFailed | WrongResult | Implausible | TimedOut | Crashed


AnyOutcome = Annotated[Outcome, Field(discriminator="kind")]
"""An `Outcome` as a field of a pydantic model: its JSON object's "kind" tells the type."""


def describe(outcome: Outcome) -> str:
    """One line for people."""
    match outcome:
        case Measured():
            return f"{outcome.seconds * 1e6:.2f} us"
        case Rejected():
            return outcome.detail
        case CompileFailed():
            return f"does not compile: {outcome.first_error}"
        case LaunchFailed():
            return f"cannot be launched: {outcome.error}"
        case WrongResult():
            return f"wrong result in {outcome.argument}: {outcome.detail}"
        case Implausible():
            return outcome.detail
        case TimedOut():
            return f"the {outcome.phase} step exceeded its deadline of {outcome.limit:g} s"
        case Crashed():
            return f"the process died in the {outcome.phase} step: {outcome.detail}"


@dataclass(frozen=True, slots=True)
class Resources:
    """The compiler's figures for a thread and a block: registers per thread, bytes of static shared memory,
    bytes of local (stack) memory per thread, bytes spilled per thread. None where the compiler does not say."""

    registers: int | None = None
    shared: int | None = None
    local: int | None = None
    spills: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One configuration of one template on several workloads: an outcome for each, by workload name.

    compile_seconds and lane_seconds are wall-clock time spent in the compile worker and on the device's lane. cached:
    everything it needed compiled came from the cache on disk, or was being compiled for another configuration.
    """

    template: str
    config: dict[str, bool | int | float | str]
    outcomes: dict[str, AnyOutcome]
    resources: Resources = dataclasses.field(default_factory=Resources)
    artifact: str = ""
    compile_seconds: float = 0.0
    lane_seconds: float = 0.0
    cached: bool = False

    @property
    def failure(self) -> Failure | None:
        """The first outcome that is not a measurement, if any."""
        return next((o for o in self.outcomes.values() if not isinstance(o, Measured)), None)


def versus(got: float, expected: float) -> str:
    """A wrong result beside the right one, with as many digits as tell the two apart."""
    digits = next((count for count in range(6, 17) if f"{got:.{count}g}" != f"{expected:.{count}g}"), 17)
    return f"{got:.{digits}g}, expected {expected:.{digits}g}"
