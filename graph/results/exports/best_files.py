"""The files of `best/` as they are read back: dispatch.json and each folder's launch.json.

`tunesmith.graph.results.export` writes them; people may have edited or damaged them since.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Part(BaseModel):
    """Further keys are for people, and are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)


class RuleNode(_Part):
    """Either a folder, or a test with what follows from both answers."""

    folder: str | None = None
    test: str | None = None
    yes: RuleNode | None = None
    no: RuleNode | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> RuleNode:
        if (self.folder is None) == (None in (self.test, self.yes, self.no)):
            raise ValueError("a rule has either a folder, or a test with yes and no")
        return self

    def folders(self) -> set[str]:
        """All that the rule may choose."""
        return {self.folder or ""} if self.yes is None or self.no is None else self.yes.folders() | self.no.folders()

    def tests(self) -> list[str]:
        """All conditions in it."""
        if self.test is None or self.yes is None or self.no is None:
            return []
        return [self.test, *self.yes.tests(), *self.no.tests()]


class ShapeFigures(_Part):
    """Time over the baseline's, with its interval where there is one."""

    ratio: float
    low: float | None
    high: float | None
    verdict: str


class Shape(ShapeFigures):
    """A measured shape, and the folder it uses. general: the figures of the general configuration."""

    workload: str
    held_out: bool
    sizes: dict[str, int]
    types: dict[str, str]
    folder: str
    general: ShapeFigures | None


class DispatchFile(_Part):
    """dispatch.json."""

    device: str
    backend: Literal["cuda", "opencl"]
    driver: str
    verdict: str
    compiler: str
    rule: RuleNode
    shapes: list[Shape]
    policies: list[dict[str, Any]]


class MachineCode(_Part):
    """The machine code of a source; file: None where there is none."""

    file: str | None = None
    architecture: str = ""
    sha256: str = ""
    measured: bool = False


class SourceFile(_Part):
    """A kernel for one combination of types."""

    types: dict[str, str]
    source: str
    max_registers: int | None
    fast_math: bool
    machine_code: MachineCode | None = None


class Geometry(_Part):
    """Expressions over sizes, types and the configuration."""

    grid: list[str]
    block: list[str]
    shared_bytes: str


class LaunchFile(_Part):
    """launch.json."""

    template: str
    config: dict[str, bool | int | float | str]
    entry: str
    launch: Geometry
    requires: list[str]
    sources: list[SourceFile] = Field(min_length=1)
