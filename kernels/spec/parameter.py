"""A tunable parameter and the values it may take.

Owns the parameter's own validity; which combinations are feasible is the business of `tunesmith.kernels.space.space`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
Config = dict[str, bool | int | float | str]
"""One point: a value for every parameter, by name."""

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
MAX_VALUES = 4096


class Parameter(BaseModel):
    """A parameter of a template: it becomes a preprocessor macro of the same name, unless it is `launch_only`.

    `values` are in their natural order; when they are numbers a neighbour is the next value up or down. `default` is
    where a search starts and what an untuned template uses; left out, it is the first value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=NAME_PATTERN, description="an identifier; the macro's name in the source")]
    values: Annotated[tuple[Scalar, ...], Field(min_length=1, max_length=MAX_VALUES)]
    default: Scalar | None = None
    launch_only: Annotated[
        StrictBool,
        Field(
            description="true for a parameter that only the launch geometry uses: the source gets no macro of it, and "
            "values that differ in nothing else share one compilation"
        ),
    ] = False
    doc: Annotated[str, Field(description="what the parameter does to the generated code")] = ""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        # Equal values of different types (1, 1.0 and true) make one macro, and files may lose the difference.
        if len(set(self.values)) != len(self.values):
            first, again = _equal(self.values)
            alike = (
                f"{first!r} and {again!r} are one value in a macro" if repr(first) != repr(again) else "list it once"
            )
            raise ValueError(f"the values of parameter {self.name} repeat {again!r}: {alike}")
        for value in self.values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"the value {value!r} of parameter {self.name} is not finite; a macro cannot hold it")
            if isinstance(value, str) and ("\n" in value or "\r" in value or value.endswith("\\")):
                raise ValueError(f"the value {value!r} of parameter {self.name} does not fit on one line")
        if self.default is not None and not any(
            self.default == value and isinstance(self.default, bool) == isinstance(value, bool) for value in self.values
        ):
            raise ValueError(f"the default {self.default!r} of parameter {self.name} is not among its values")
        return self

    @property
    def start(self) -> bool | int | float | str:
        """The default, or the first value where none is given."""
        # Of `values`, as 1.0 for 1 would be another macro.
        return self.values[0] if self.default is None else self.values[self.values.index(self.default)]

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are close: all are numbers, not flags."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def _equal(values: Sequence[Scalar]) -> tuple[Scalar, Scalar]:
    """The first two equal values, of which there are some."""
    return next((a, b) for at, b in enumerate(values) for a in values[:at] if a == b)


def assignments(config: Mapping[str, Any]) -> str:
    """A configuration, or other values by name, for people: NAME=VALUE in the order they have."""
    return ", ".join(f"{name}={value}" for name, value in config.items())


def described(template: str, config: Mapping[str, Any]) -> str:
    """A configuration of a template for people, also where it has no parameters, as a kernel that a model wrote."""
    return assignments(config) or f"{f'{template}, ' if template else ''}a kernel without parameters"


def config_key(config: Config) -> str:
    """A stable text for a configuration: equal configurations have equal keys, whatever their order."""
    return ",".join(f"{name}={config[name]!r}" for name in sorted(config))
