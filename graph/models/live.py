"""The live transport: one request to an OpenAI-compatible server, by the client of LangChain's chat model.

What the client raises becomes a `Failure`; anything else is a bug and is raised.
"""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import openai

from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.models.chat import Chats
from tunesmith.graph.models.transport import Completion, Failure, Request, check_completion

SHORTEST_SECRET = 8
"""A key shorter than this ("EMPTY", "ollama") is no secret, and may be a word of the answer."""


class LiveTransport:
    """timeout: seconds for one answer; key: hidden in whatever the server says."""

    kind: Literal["live", "batch", "replay"] = "live"

    def __init__(self, chats: Chats, base_url: str, key: str | None, timeout: float) -> None:
        self._chats, self._host, self._timeout = chats, urlsplit(base_url).netloc, timeout
        self._key = key if key is not None and len(key) >= SHORTEST_SECRET else None

    async def send(self, request: Request) -> Completion | Failure:
        client: openai.AsyncOpenAI = self._chats.of(request.body["model"]).root_async_client
        try:
            answer = await client.post("/chat/completions", body=request.body, cast_to=object)
        except openai.APITimeoutError as error:
            if _never_connected(error):
                return self._unreachable(error)
            detail = f"{self._host} gave no answer within {self._timeout:g} s."
            return Failure("timeout", detail, transient=True, served=True)
        except openai.APIConnectionError as error:
            return self._unreachable(error)
        except openai.APIStatusError as error:
            return self._refusal(error)
        except (openai.OpenAIError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._nonsense(f"{type(error).__name__}: {error}")
        wrong = check_completion(answer)
        return self._nonsense(wrong) if wrong is not None else Completion(self._redacted(answer))

    def hold(self, pending: Sequence[Request]) -> Waiting:
        raise AssertionError("a live server answers or fails")

    def _nonsense(self, why: str) -> Failure:
        detail = f"{self._host} answered with something that is not a chat completion ({self._hidden(why)[:300]})."
        return Failure("server_error", detail, transient=True, served=True)

    def _unreachable(self, error: openai.APIConnectionError) -> Failure:
        served = not _never_connected(error)
        what = "closed the connection without an answer" if served else "cannot be reached"
        cause = self._hidden(str(error.__cause__.__cause__ if error.__cause__ else "") or "")[:200]
        detail = f"{self._host} {what}{f' ({cause})' if cause else ''}."
        return Failure("unreachable", detail, transient=True, served=served)

    def _refusal(self, error: openai.APIStatusError) -> Failure:
        code = error.status_code
        about = error.body if isinstance(error.body, dict) else {}
        reason = str(about.get("code") or about.get("type") or "")
        message = self._hidden(str(about.get("message") or error.message))[:500].rstrip(". \n")
        detail = f"{self._host} answered {code}: {message}."
        if code in (401, 403):
            return Failure("unauthorised", f"{detail} Check the key.")
        if code == 429:
            # Without money no waiting helps.
            return Failure("rate_limited", detail, reason != "insufficient_quota", _retry_after(error))
        if code in (408, 409) or code >= 500:
            return Failure("server_error", detail, True, _retry_after(error))
        if 300 <= code < 400:
            return Failure("server_error", f"{self._host} redirects elsewhere ({code}); give its final --base-url.")
        form = code in (400, 422, 501) and reason not in ("context_length_exceeded", "model_not_found")
        return Failure("server_error", detail, rejected=form)

    def _hidden(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "[key]")

    def _redacted(self, body: Any) -> dict[str, Any]:
        text = json.dumps(body)
        hidden = self._hidden(text)
        found: dict[str, Any] = body if hidden == text else json.loads(hidden)
        return found


def _never_connected(error: BaseException | None) -> bool:
    """Whether the request never left: then no server has worked on it. By name, as the client's HTTP library differs
    between its versions."""
    while error is not None:
        if type(error).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds the server asks to wait, from a number or a date (RFC 9110, 10.2.3)."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
