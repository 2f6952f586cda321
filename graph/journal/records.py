"""The results of a run as typed values: parts of journal events that summary, report and roles read, too.

A record is immutable; `record["key"]` gives the JSON value of one field, as in summary.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import AnyOutcome, Energy, Objective
from tunesmith.kernels.spec.template import Config, assignments, config_key

ENERGY_MARGIN = 0.03
"""Share by which energies must differ for one to be less: windows are accurate to about one or two per cent."""


class ResultRecord(BaseModel):
    """Base of all records. Infinities and NaN are kept, as Python's json module writes and reads them."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    def to_json(self) -> dict[str, Any]:
        """JSON values only, as in summary.json."""
        return self.model_dump(mode="json")

    def __getitem__(self, key: str) -> Any:
        return self.to_json()[key]


class Origin(ResultRecord):
    """Where and how a run was begun. command: program and arguments; commit: of the git repository with the task's
    files, empty without one; in_memory: the task was given from Python as a value."""

    command: str
    host: str
    python: str
    commit: str = ""
    in_memory: bool = False


class Winner(ResultRecord):
    """A configuration of a template, by the template's id."""

    template: str
    config: Config

    @property
    def key(self) -> tuple[str, str]:
        """Template id and configuration as text, by which kernels are told apart."""
        return self.template, config_key(self.config)


class Figures(ResultRecord):
    """A configuration on one workload. ratio: time over the baseline's time, from paired samples, with its 99 %
    interval; seconds of a launch: the baseline's median times that ratio. verdict: what the interval shows. joules of
    a launch, energy_ratio: over the baseline's; None where energy was not measured."""

    seconds: float
    ratio: float
    low: float
    high: float
    verdict: Literal["faster", "slower", "no difference shown"]
    joules: float | None = None
    energy_ratio: float | None = None

    def quantity(self, objective: Objective) -> float | None:
        """The objective quantity over the baseline's; None where the energy is not known."""
        if objective == "time":
            return self.ratio
        if self.energy_ratio is None:
            return None
        return self.energy_ratio * (self.ratio if objective == "edp" else 1.0)

    def gains(self, objective: Objective) -> bool:
        """Whether it is shown to be better than the baseline."""
        if objective == "time":
            return self.verdict == "faster"
        quantity = self.quantity(objective)
        return quantity is not None and quantity < 1 - ENERGY_MARGIN

    @classmethod
    def of(cls, comparison: Comparison, energy: Energy | None = None, baseline: Energy | None = None) -> Figures:
        """The figures of a comparison, and of the energies that were measured beside it."""
        return Figures(
            # The ratio comes from pairs of neighbouring samples, the medians from all samples: on a busy machine they
            # contradict each other. All times of a row are the baseline's times a ratio, so that they agree.
            seconds=comparison.ratio * comparison.baseline.median,
            ratio=comparison.ratio,
            low=comparison.low,
            high=comparison.high,
            verdict=comparison.verdict,
            joules=None if energy is None else energy.joules,
            energy_ratio=None if energy is None or baseline is None else energy.joules / baseline.joules,
        )


class BestHere(Figures, Winner):
    """The fastest configuration on one workload."""


class Dispatched(BestHere):
    """The kernel for the shape of one workload."""

    workload: str
    sizes: dict[str, int]
    types: dict[str, str]


class OpponentRow(ResultRecord):
    """The library call that a kernel replaces, on one workload. seconds: of its call; ratio, low, high: of the general
    configuration's time over its, with the 99 % interval, below 1 where that is faster; None where one of the two was
    not timed. why: it was not timed. over_baseline: it against the baseline. first_seconds: of a function's first call;
    choice: what Triton's autotuner chose in it."""

    name: str
    label: str
    seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""
    over_baseline: Figures | None = None
    first_seconds: float | None = None
    choice: Config | None = None

    @property
    def remark(self) -> str:
        """Why it was not timed, or its choice, for people; empty where there is nothing to say."""
        if self.choice is None:
            return self.why
        return f"chose {assignments(self.choice)} in {self.first_seconds or 0:.1f} s"


class WorkloadRow(ResultRecord):
    """The results of a test on one workload. floor_seconds: the shortest possible time by the measured roofs;
    share_of_floor: floor over the general configuration's time; regret: the general configuration's time over the best
    one's there, less 1, in the objective quantity. baseline_joules: None where energy was not measured. best_exported:
    whether `best` serves this shape in best/; else the general configuration or the baseline does, as the 99 %
    intervals of both overlap, it saves less than 1 %, or the workload is held out; None without a best."""

    workload: str
    sizes: dict[str, int]
    types: dict[str, str]
    floor_seconds: float | None
    baseline_seconds: float | None
    general: Figures | None = None
    best: BestHere | None = None
    best_exported: bool | None = None
    share_of_floor: float | None = None
    regret: float | None = None
    baseline_joules: float | None = None
    opponents: tuple[OpponentRow, ...] = ()


class Suggestion(ResultRecord):
    """A configuration that an earlier run found good, its device, and its time over the baseline's there."""

    config: Config
    device: str
    driver: str
    ratio: float


KnownResult = tuple[Config, float | None, str | None]
"""Configuration, objective, kind of failure."""


class TemplateResults(ResultRecord):
    """The results of another run for one template, by id and name there; both are empty for a table."""

    template: str
    name: str
    results: tuple[KnownResult, ...]


class Disqualified(Winner):
    """A finalist that fails the final comparison or examination. workload: "all" where it is out as a whole."""

    workload: str
    why: str


class FrontPoint(Winner):
    """A finalist's weighted geometric means of time and of energy over the baseline's on the tuned workloads. best: no
    other finalist is better in one and as good in the other."""

    ratio: float
    energy_ratio: float
    best: bool


class Verdict(ResultRecord):
    """The result of a test. general: the best configuration for all workloads; ratio: its weighted geometric mean of
    time over baseline on the tuned workloads; dispatch: the kernels for the tuned workloads on which something is shown
    to be better than the baseline. objective: the meaning of better; energy_ratio: as ratio, of energy; front: the
    finalists by time and energy, the fastest first; both empty where energy was not measured. unexamined: finalists
    that cannot win because they could not be examined."""

    general: Winner | None = None
    ratio: float | None = None
    tuned: tuple[WorkloadRow, ...] = ()
    held_out: tuple[WorkloadRow, ...] = ()
    disqualified: tuple[Disqualified, ...] = ()
    dispatch: tuple[Dispatched, ...] = ()
    sentence: str
    objective: Objective = "time"
    energy_ratio: float | None = None
    front: tuple[FrontPoint, ...] = ()
    unexamined: int = 0

    @property
    def rows(self) -> tuple[WorkloadRow, ...]:
        """The tuned workloads, then the held-out ones."""
        return (*self.tuned, *self.held_out)

    @property
    def special(self) -> tuple[Dispatched, ...]:
        """The dispatched kernels that are not the general configuration."""
        general = self.general and (self.general.template, self.general.config)
        return tuple(one for one in self.dispatch if (one.template, one.config) != general)


class FinalistResult(Winner):
    """A finalist against the baseline on one workload: the comparison, or the failure. code: digest of the machine code
    that was timed (`Artifact.code_digest`), empty if unknown; energy: None where it was not measured."""

    comparison: Comparison | None = None
    failure: AnyOutcome | None = None
    code: str = ""
    energy: Energy | None = None


class Verified(Winner):
    """A winner after the full verdict of `tunesmith check`. workload: empty for all.

    verdict "not examined": the examination itself failed, and `detail` says why; "partial": nothing was found wrong,
    but the template excludes most made-up workloads. unexecuted: the parts of the kernel that ran in no step, a clause
    for each combination of types with some; unreached: whether lines of the source are among them that ran nowhere else
    either (a compiler makes several copies of a line); artifacts: content hashes of the machine code of the candidate
    and of the baseline; seconds: its share of the time of all examinations; seed: with which `tunesmith check` draws
    the same steps.
    """

    workload: str
    verdict: Literal["accepted", "partial", "rejected", "not examined"]
    detail: str = ""
    notes: tuple[str, ...] = ()
    unexecuted: tuple[str, ...] = ()
    unreached: bool = False
    artifacts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seconds: float = 0.0
    seed: int = 0


class ExaminationRow(Verified):
    """The examination in the summary. checks: steps passed; largest_error, baseline_error: of the configuration and the
    baseline on the task's own workloads and contents, as shares of the tolerance."""

    checks: int
    skipped: tuple[str, ...]
    largest_error: float | None
    baseline_error: float | None


class Racing(ResultRecord):
    """The savings of ending measurements of clear losers early. dropped: how many; sampling_seconds: wall clock of all
    samples; saved_seconds: the rest of the dropped ones, if each had taken the mean of the others."""

    dropped: int
    sampling_seconds: float
    saved_seconds: float


class SearchAccount(ResultRecord):
    """The account of a search. points: feasible ones, None where they cannot be counted; cartesian: all combinations of
    values; asked: number of configurations; exhausted: no point is left; failures: count by kind."""

    strategy: str
    points: int | None
    cartesian: int
    asked: int
    exhausted: bool
    failures: dict[str, int]
    racing: Racing


class TemplateAccount(SearchAccount):
    """The search of one template. rng: what its random numbers derive from."""

    template: str
    rng: dict[str, Any]


class FailureExample(ResultRecord):
    """One example of a kind of failure, with its description."""

    kind: str
    what: str
    config: Config
    template: str = ""


class Tokens(ResultRecord):
    """Tokens and US dollars of a call; cost: None without a known price. estimated: the server did not count them."""

    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    cached_tokens: int = 0
    estimated: bool = False


class UsageTotals(ResultRecord):
    """calls: answered, or perhaps answered; unaccounted: calls whose tokens are an estimate; failed: questions without
    a usable answer; cost: US dollars, None without a known price; seconds: waiting for answers."""

    calls: int
    unaccounted: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float


class RoleUsage(UsageTotals):
    """One role's use of one model."""

    role: str
    model: str


class ModelsUsage(UsageTotals):
    """The models' part of a run: totals, and `rows` by role and model. where: the server, or the folder of files;
    failures: questions without a usable answer, by kind."""

    transport: str
    where: str
    failures: dict[str, int]
    rows: tuple[RoleUsage, ...]
