"""Small spaces and a made-up objective for the tests of the search."""

from tunesmith.kernels.search import Observation
from tunesmith.kernels.space import Space, SpaceRule
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import Config, Parameter

PARAMETERS = [
    Parameter(name="BLOCK", values=(32, 64, 96, 128, 192, 256)),
    Parameter(name="TILE", values=(1, 2, 4, 8)),
    Parameter(name="MODE", values=("row", "column", "both")),
    Parameter(name="STAGED", values=(True, False)),
    Parameter(name="FIXED", values=(7,)),
]
RULES = [SpaceRule(parse(text)) for text in ("BLOCK * TILE <= 768", "TILE < 8 or STAGED")]


def listed_space() -> Space:
    return Space.build(PARAMETERS, RULES)


def observe(config: Config) -> Observation:
    """A fixed result for each configuration: some fail, one is dropped early, the rest have an interval."""
    block, tile = int(config["BLOCK"]), int(config["TILE"])
    if block == 256 and config["MODE"] == "both":
        return Observation(None, failure="launch_failed")
    value = 1.0 + abs(block - 128) / 64 + abs(tile - 4) / 3 + (0.5 if config["MODE"] == "row" else 0.2)
    value += 0.3 if config["STAGED"] else 0.0
    return Observation(value, (value * 0.99, value * 1.02), dropped=value > 4.0)
