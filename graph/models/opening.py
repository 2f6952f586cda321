"""From settings to the models of a run. Mistakes are found by `check_models` before anything is begun."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tunesmith.graph.journal.records import ModelsUsage
from tunesmith.graph.journal.store import Journal
from tunesmith.graph.models.calls import Models
from tunesmith.graph.models.client import CallLog, ModelClient, Prices, load_prices, read_usage
from tunesmith.graph.models.recorded import BatchModels, ReplayModels
from tunesmith.graph.progress import Listener
from tunesmith.graph.settings import ModelSettings, SettingsError

TRANSCRIPTS = "transcripts"
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOSTS = ("openai.com", "openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com")
_TAKEN_FIELDS = frozenset(
    {"model", "messages", "stream", "n", "response_format", "tools", "tool_choice"}
    | {"max_tokens", "max_completion_tokens", "n_predict"}  # llama.cpp prefers the last one to max_tokens
)


def check_models(settings: ModelSettings) -> Prices:
    """Raises `SettingsError` for settings that cannot work; the prices that go with them."""
    prices = load_prices(settings.prices)
    if settings.transport == "none":
        if settings.model_for:
            raise SettingsError("--model-for: other models for some roles need a --model for the rest.")
        return prices
    if find_spec("langchain_openai") is None:
        raise SettingsError("--model: the package langchain-openai is not installed: pip install 'tunesmith[models]'.")
    if taken := ", ".join(sorted(settings.model_option.keys() & _TAKEN_FIELDS)):
        # What a call may take at most, by which caps are kept, is reckoned with --answer-tokens.
        raise SettingsError(
            f"--model-option: {taken} cannot be set; the length of an answer is said with --answer-tokens."
        )
    if settings.transport == "live":
        _check_url(settings.base_url)
        _key(settings)
    unknown = [name for name in settings.names if prices.of(name) is None]
    if settings.max_cost is not None and unknown and settings.transport != "replay":
        name = unknown[0]
        raise SettingsError(
            f"--max-cost: no price is known for the model {name!r}; name a file with --prices that has "
            f'[models] and "{name}" = {{ input = ..., output = ... }} in US dollars for a million '
            "tokens."
        )
    if settings.transport == "replay":
        ReplayModels(settings.folder, exact=settings.replay_exact, fields={})
    if settings.transport == "batch":
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"--model: the folder {settings.folder} cannot be created ({error.strerror})."
            ) from error
    return prices


def open_models(
    settings: ModelSettings,
    journal: Journal,
    folder: Path,
    listener: Listener,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Models | None:
    """The models of the run in `folder`; None for "none". seconds_left: until the run's time limit."""
    prices = check_models(settings)
    if settings.transport == "none":
        return None
    url = settings.base_url or OPENAI_URL
    live = settings.transport == "live"
    fields = {limit_field(url if live else None): settings.answer_tokens, **settings.model_option}
    log = CallLog(journal, prices, folder / TRANSCRIPTS, settings)
    if live:
        # Imported here: it takes a second, and the other sources do without the package.
        from tunesmith.graph.models.chat import LiveModels

        server = LiveModels(settings, url, _key(settings), fields)
        return ModelClient(settings, server.answer, log, listener, seconds_left=seconds_left)
    if settings.transport == "batch":
        batch = BatchModels(settings.folder, f"tunesmith resume {folder}", fields)
        return ModelClient(settings, batch.answer, log, listener, hold=batch.hold)
    replay = ReplayModels(settings.folder, exact=settings.replay_exact, fields=fields)
    return ModelClient(settings, replay.answer, log, listener, model_of=replay.model_of)


def limit_field(base_url: str | None) -> Literal["max_tokens", "max_completion_tokens"]:
    """The name of the field that limits an answer: OpenAI's reasoning models take only the new one, many other
    servers know only the old one (Ollama, older llama.cpp) or reject the new (Mistral)."""
    if base_url is None:
        return "max_completion_tokens"
    host = urlsplit(base_url).hostname or ""
    newer = any(host == known or host.endswith(f".{known}") for known in OPENAI_HOSTS)
    return "max_completion_tokens" if newer else "max_tokens"


def destination(settings: ModelSettings) -> str | None:
    """Where sources go, in one sentence; None for no model."""
    if settings.transport == "none":
        return None
    if settings.transport == "batch":
        return (
            f"kernel sources, compiler messages and measurements are written to {settings.folder} for a model to "
            "read; nothing is sent"
        )
    if settings.transport == "replay":
        return f"answers come from the recording in {settings.folder}; nothing is sent"
    parts = urlsplit(settings.base_url or OPENAI_URL)
    key = f"with the key in {settings.key_env}" if _key(settings) else "without a key"
    open_line = "" if parts.scheme == "https" or _is_loopback(parts.hostname or "") else "; the line is not encrypted"
    return (
        f"kernel sources, compiler messages and measurements go to {parts.netloc} "
        f"({', '.join(settings.names)}), {key}{open_line}"
    )


def models_summary(settings: ModelSettings, journal: Journal) -> ModelsUsage | None:
    """What the models of a run cost and where they were, for its summary; None for no model."""
    if settings.transport == "none":
        return None
    where = urlsplit(settings.base_url or OPENAI_URL).netloc if settings.transport == "live" else str(settings.folder)
    return read_usage(journal, live=settings.transport == "live").summary(settings.transport, where)


def _key(settings: ModelSettings) -> str | None:
    key = os.environ.get(settings.key_env, "").strip()
    if key:
        return key
    if settings.base_url is None or settings.key_env != "OPENAI_API_KEY":
        raise SettingsError(
            f"--model: the environment variable {settings.key_env} has no key; set it, or name "
            "another with --key-env, or give --base-url for a server that needs none."
        )
    return None


def _check_url(url: str | None) -> None:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise SettingsError(f"--base-url: '{url}' is not a URL; write it as http://localhost:8000/v1.")
    if parts.username or parts.password:
        raise SettingsError(
            "--base-url: a URL with a name or password would end up in the journal; put the key into "
            "the environment and name the variable with --key-env."
        )
    if parts.fragment or parse_qs(parts.query, keep_blank_values=True).keys() - {"api-version"}:
        raise SettingsError(
            "--base-url: nothing may follow the path but Azure's ?api-version=...; a key belongs into the environment."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
