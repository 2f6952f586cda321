"""What the user asked of the models of a run; part of the run's `Settings`. No key is ever among it: only the name of
the environment variable that holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

NO_MODEL = "none"
OPENAI_URL = "https://api.openai.com/v1"

Method = Literal["json_schema", "function_calling", "json_mode"]
METHODS: tuple[Method, ...] = ("json_schema", "function_calling", "json_mode")
"""The ways of asking for an answer of a schema, the most binding first."""


class ModelSettings(BaseModel):
    """model: "none", a model's name, "batch:DIR" or "replay:DIR"; base_url: of an OpenAI-compatible server; key_env:
    the environment variable with the key; model_for: other models by role; batch_model: the name in the request lines
    of batch:DIR; model_method: how answers of a schema are asked for; model_option: more fields of the request's body,
    such as temperature; answer_tokens: limit of one answer; model_timeout: seconds for one answer; model_retries: after
    a failure that may pass; max_calls, max_tokens, max_cost (US dollars): caps of the whole run; prices: a TOML file;
    replay_exact: the prompts must be those of the recording, too."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: Annotated[str, Field(min_length=1)] = NO_MODEL
    base_url: str | None = None
    key_env: Annotated[str, Field(min_length=1)] = "OPENAI_API_KEY"
    model_for: dict[str, Annotated[str, Field(min_length=1)]] = {}
    batch_model: Annotated[str, Field(min_length=1)] = "model"
    model_method: Literal["auto", "json_schema", "function_calling", "json_mode"] = "auto"
    model_option: dict[str, Any] = {}
    answer_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 16_384
    model_timeout: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    model_retries: Annotated[int, Field(ge=0, le=100)] = 4
    requests_per_minute: Annotated[float, Field(ge=0.01, le=1e6)] | None = None
    model_concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    max_calls: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    prices: str | None = None
    replay_exact: bool = False

    @field_validator("model")
    @classmethod
    def _absolute(cls, value: str) -> str:
        # A run may be resumed from another folder than the one it was begun in.
        kind, colon, folder = value.partition(":")
        if colon and kind in ("batch", "replay"):
            if not folder:
                raise ValueError(f"{kind}: needs a folder, as in {kind}:DIR")
            return f"{kind}:{Path(folder).expanduser().absolute()}"
        return value

    @field_validator("prices")
    @classmethod
    def _absolute_file(cls, value: str | None) -> str | None:
        return None if value is None else str(Path(value).expanduser().absolute())

    @property
    def transport(self) -> Literal["none", "live", "batch", "replay"]:
        """How answers come."""
        if self.model == NO_MODEL:
            return "none"
        if self.model.startswith("batch:"):
            return "batch"
        return "replay" if self.model.startswith("replay:") else "live"

    @property
    def folder(self) -> Path:
        """DIR of batch:DIR and replay:DIR."""
        return Path(self.model.partition(":")[2])

    def name_for(self, role: str) -> str:
        """The name of the model that a role asks."""
        default = {"batch": self.batch_model, "replay": "recorded"}.get(self.transport, self.model)
        return self.model_for.get(role, default)

    @property
    def names(self) -> tuple[str, ...]:
        """All models of the run, the general one first."""
        return tuple(dict.fromkeys([self.name_for(""), *self.model_for.values()]))
