"""The live transport: one request to an OpenAI-compatible server through langchain-openai's ChatOpenAI.

Chat completions only, whatever the model's name: that is what all such servers speak, and what batch files hold. The
client's own retries are off, as every attempt must be in the journal first, and it follows no redirection, as prompts
go to no other host than the one the user was told.
"""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

from tunesmith.graph.models.calls import Waiting
from tunesmith.graph.models.transport import Completion, Failure, Request

if TYPE_CHECKING:
    import openai
    from langchain_core.messages import AIMessage
    from langchain_openai.chat_models.base import BaseChatOpenAI

CONNECT_SECONDS = 15.0
NO_KEY = "not-needed"
"""Sent where there is no key: the client insists on one, servers without authentication ignore it."""
SHORTEST_SECRET = 8
"""A key shorter than this ("EMPTY", "ollama") is no secret, and may be a word of the answer."""
OPENAI_HOSTS = ("openai.com", "openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com")


class LiveTransport:
    kind: Literal["live", "batch", "replay"] = "live"

    def __init__(self, base_url: str, key: str | None, timeout: float) -> None:
        # A second's work, here so that it does not count as the server's time.
        import_module("langchain_openai")
        self._url, self._key, self._timeout = base_url, key or NO_KEY, timeout
        self._clients: dict[str, BaseChatOpenAI] = {}
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        return urlsplit(self._url).netloc

    def send(self, request: Request) -> Completion | Failure:
        import openai
        from langsmith import tracing_context

        client = self._client(request.body["model"])
        rest = {key: value for key, value in request.body.items() if key not in ("model", "messages")}
        try:
            # Tracing, switched on by a variable of the environment, would send the prompt to one more host.
            with tracing_context(enabled=False):
                message = client.invoke(request.body["messages"], extra_body=rest)
            return Completion(self._redacted(_completion(message, request)))
        except openai.APITimeoutError as error:
            if _never_connected(error):
                return self._unreachable(error)
            said = f"{self.host} gave no answer within {self._timeout:g} s."
            return Failure("timeout", said, transient=True, served=True)
        except openai.APIConnectionError as error:
            return self._unreachable(error)
        except openai.APIStatusError as error:
            return self._refusal(error)
        except (openai.OpenAIError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            # The client and LangChain have no one type for a response that is no chat completion.
            said = self._hidden(f"{type(error).__name__}: {error}")[:300]
            detail = f"{self.host} answered with something that is no chat completion ({said})."
            return Failure("server_error", detail, transient=True, served=True)

    def hold(self, pending: Sequence[Request]) -> Waiting:
        raise AssertionError("a live server answers or fails")

    def _client(self, model: str) -> BaseChatOpenAI:
        with self._lock:
            if model not in self._clients:
                self._clients[model] = self._make(model)
            return self._clients[model]

    def _make(self, model: str) -> BaseChatOpenAI:
        import openai
        from langchain_openai import AzureChatOpenAI, ChatOpenAI
        from pydantic import SecretStr

        common: dict[str, Any] = {
            "api_key": SecretStr(self._key),
            "timeout": openai.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            "max_retries": 0,
            "use_responses_api": False,
            "cache": False,
            "http_client": openai.DefaultHttpxClient(follow_redirects=False),
        }
        parts = urlsplit(self._url)
        version = parse_qs(parts.query).get("api-version")
        if version:
            # Azure before its v1 endpoint: the model is a deployment, part of the path.
            endpoint = f"{parts.scheme}://{parts.netloc}"
            return AzureChatOpenAI(azure_endpoint=endpoint, azure_deployment=model, api_version=version[0], **common)
        return ChatOpenAI(model=model, base_url=self._url, **common)

    def _unreachable(self, error: openai.APIConnectionError) -> Failure:
        served = not _never_connected(error)
        what = "closed the connection without an answer" if served else "cannot be reached"
        cause = self._hidden(str(error.__cause__.__cause__ if error.__cause__ else "") or "")[:200]
        return Failure(
            "unreachable", f"{self.host} {what}{f' ({cause})' if cause else ''}.", transient=True, served=served
        )

    def _refusal(self, error: openai.APIStatusError) -> Failure:
        code = error.status_code
        about = error.body if isinstance(error.body, dict) else {}
        reason = str(about.get("code") or about.get("type") or "")
        said = self._hidden(str(about.get("message") or error.message))[:500].rstrip(". \n")
        detail = f"{self.host} answered {code}: {said}."
        if code in (401, 403):
            return Failure("unauthorised", f"{detail} Check the key.")
        if code == 429:
            # Without money no waiting helps.
            return Failure("rate_limited", detail, reason != "insufficient_quota", _retry_after(error))
        if code in (408, 409) or code >= 500:
            return Failure("server_error", detail, True, _retry_after(error))
        if 300 <= code < 400:
            return Failure("server_error", f"{self.host} redirects elsewhere ({code}); give its final --base-url.")
        form = code in (400, 422, 501) and reason not in ("context_length_exceeded", "model_not_found")
        return Failure("server_error", detail, rejected=form)

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= SHORTEST_SECRET else text

    def _redacted(self, body: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(body)
        hidden = self._hidden(text)
        found: dict[str, Any] = body if hidden == text else json.loads(hidden)
        return found


def limit_field(base_url: str | None) -> Literal["max_tokens", "max_completion_tokens"]:
    """The name of the field that limits an answer: OpenAI's reasoning models take only the new one, many other
    servers know only the old one (Ollama, older llama.cpp) or reject the new (Mistral)."""
    if base_url is None:
        return "max_completion_tokens"
    host = urlsplit(base_url).hostname or ""
    newer = any(host == known or host.endswith(f".{known}") for known in OPENAI_HOSTS)
    return "max_completion_tokens" if newer else "max_tokens"


def _completion(message: AIMessage, request: Request) -> dict[str, Any]:
    """The chat completion that LangChain's message was made of."""
    about = message.response_metadata
    content: dict[str, Any] = {
        "role": "assistant",
        "content": message.content,
        "refusal": message.additional_kwargs.get("refusal"),
    }
    calls = [(call["name"], json.dumps(call["args"])) for call in message.tool_calls]
    calls += [(call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    if calls:
        content["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    usage = about.get("token_usage") or None
    return {
        "id": str(about.get("id") or ""),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(about.get("model_name") or request.body["model"]),
        "choices": [{"index": 0, "message": content, "finish_reason": about.get("finish_reason") or "stop"}],
        **({"usage": usage} if usage else {}),
    }


def _never_connected(error: BaseException | None) -> bool:
    """Whether the request never left: then nobody has worked on it. By name, as the client's HTTP library differs
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
