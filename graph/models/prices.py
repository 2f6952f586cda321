"""What tokens cost: the packaged table, the user's before it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.hw.errors import TunesmithError

PACKAGED = Path(__file__).with_name("prices.toml")
MILLION = 1_000_000


class PricesError(TunesmithError):
    """A file of prices cannot be used."""


class Price(BaseModel):
    """US dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    cached_input: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    models: dict[str, Price]


@dataclass(frozen=True, slots=True)
class Prices:
    models: Mapping[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of a model; a dated version costs what its name without the date does."""
        undated = re.sub(r"-\d{4}-\d{2}-\d{2}$", "", model)
        return self.models.get(model) or self.models.get(undated)

    def cost(self, model: str, prompt: int, completion: int, cached: int = 0) -> float | None:
        """US dollars for tokens, `cached` of the prompt's being from the cache; None where no price is known."""
        price = self.of(model)
        if price is None:
            return None
        cheap = price.input if price.cached_input is None else price.cached_input
        cached = min(cached, prompt)
        return ((prompt - cached) * price.input + cached * cheap + completion * price.output) / MILLION


def user_file() -> Path:
    """Where a user keeps prices for all runs."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tunesmith" / "prices.toml"


def load_prices(path: str | None) -> Prices:
    """The packaged prices, under those of `path`, or, where that is None, of the user's own file."""
    models = dict(_read(PACKAGED))
    if path is not None:
        models |= _read(Path(path))
    elif user_file().is_file():
        models |= _read(user_file())
    return Prices(models)


def _read(path: Path) -> Mapping[str, Price]:
    try:
        return _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig"))).models
    except OSError as error:
        raise PricesError(f"--prices: {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise PricesError(f"{path} is not UTF-8 text: save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise PricesError(f"{path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PricesError(
            f"{path}: {place}: {first['msg']}; write it as [models] and a line such as "
            '"name" = { input = 1.0, output = 4.0 }.'
        ) from error
