"""From settings to the models of a run. Mistakes are found by `check_models` before anything is begun."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tunesmith.graph.journal.store import Store
from tunesmith.graph.models.account import Account
from tunesmith.graph.models.asker import Asker
from tunesmith.graph.models.batch import BatchTransport
from tunesmith.graph.models.calls import Call, Models
from tunesmith.graph.models.live import LiveTransport, limit_field
from tunesmith.graph.models.prices import Prices, load_prices
from tunesmith.graph.models.recording import Recording
from tunesmith.graph.models.replay import ReplayTransport
from tunesmith.graph.models.settings import OPENAI_URL, ModelSettings
from tunesmith.graph.models.transport import Transport, identify
from tunesmith.graph.progress import Listener
from tunesmith.graph.settings import SettingsError

TRANSCRIPTS = "transcripts"
_ONLY_OURS = frozenset({"model", "messages", "stream", "n", "response_format", "tools", "tool_choice"})


def check_models(settings: ModelSettings) -> Prices:
    """Raises `SettingsError` for settings that cannot work; the prices that go with them."""
    prices = load_prices(settings.prices)
    if settings.transport == "none":
        if settings.model_for:
            raise SettingsError("--model-for: other models for some roles need a --model for the rest.")
        return prices
    if ours := settings.model_option.keys() & _ONLY_OURS:
        raise SettingsError(f"--model-option: {', '.join(sorted(ours))} cannot be set.")
    if settings.transport == "live":
        _check_url(settings.base_url)
        _key(settings)
    unknown = [name for name in settings.names if prices.of(name) is None]
    if settings.max_cost is not None and unknown and settings.transport != "replay":
        name = unknown[0]
        raise SettingsError(
            f"--max-cost: no price is known for the model '{name}'; name a file with --prices that has "
            f'[models] and "{name}" = {{ input = ..., output = ... }} in US dollars for a million '
            "tokens."
        )
    if settings.transport == "replay":
        ReplayTransport(settings.folder, exact=settings.replay_exact)
    if settings.transport == "batch":
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--model: the folder {settings.folder} cannot be made ({error.strerror}).") from error
    return prices


def open_models(settings: ModelSettings, journal: Store, folder: Path, listener: Listener) -> Models | None:
    """The models of the run in `folder`; None for "none"."""
    prices = check_models(settings)
    if settings.transport == "none":
        return None
    recording = Recording(folder / TRANSCRIPTS, journal)
    transport: Transport
    model_for = None
    field = limit_field(None)
    if settings.transport == "live":
        url = settings.base_url or OPENAI_URL
        transport, field = LiveTransport(url, _key(settings), settings.model_timeout), limit_field(url)
    elif settings.transport == "batch":
        transport = BatchTransport(settings.folder, f"tunesmith resume {folder}")
    else:
        replay = transport = ReplayTransport(settings.folder, exact=settings.replay_exact)

        def model_for(call: Call) -> str:
            return replay.model_of(identify(call.custom_id, call.digest)) or settings.name_for(call.role)

    return Asker(settings, transport, prices, journal, recording, listener, limit_field=field, model_for=model_for)


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


def models_summary(settings: ModelSettings, journal: Store) -> dict[str, Any] | None:
    """What the models of a run cost and where they were, for its summary; None for no model."""
    if settings.transport == "none":
        return None
    where = urlsplit(settings.base_url or OPENAI_URL).netloc if settings.transport == "live" else str(settings.folder)
    account = Account(journal, live=settings.transport == "live")
    return {"transport": settings.transport, "where": where} | account.to_json()


def _key(settings: ModelSettings) -> str | None:
    key = os.environ.get(settings.key_env, "").strip()
    if key:
        return key
    if settings.base_url is None or settings.key_env != "OPENAI_API_KEY":
        raise SettingsError(
            f"--model: the environment variable {settings.key_env} holds no key; set it, or name "
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
        raise SettingsError(f"--base-url: '{url}' is no URL; write it as http://localhost:8000/v1.")
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
