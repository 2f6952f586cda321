"""The seam below the models: one request out; a completion, a failure, or nothing yet, back.

Every transport speaks OpenAI's chat completions: what is sent live, written to a batch file and recorded for a replay
is the same body, composed by LangChain (`chat`). A transport makes one attempt; retries, caps and journal are above.

Chat models of LangChain: they compose the requests, and read the answers into messages.
The live transport: one request to an OpenAI-compatible server, by the client of LangChain's chat model.
"""

from __future__ import annotations

import email.utils
import functools
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs, urlsplit

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langsmith import tracing_context
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, SecretStr, ValidationError

from tunesmith.graph.models.calls import Call, FailureKind, Message, Waiting
from tunesmith.graph.settings import Method


@dataclass(frozen=True, slots=True)
class Request:
    """custom_id: the call's, "@", its digest; body: a request body of chat completions."""

    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """body: a chat completion that `check_completion` accepts; note: what the user should know about its origin."""

    body: dict[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """transient: trying again may help; retry_after: seconds the server asks to wait; rejected: the server does not
    take a request of this form (400, 422), so that another form may help; served: the server may have worked on it,
    and may count it."""

    kind: FailureKind
    detail: str
    transient: bool = False
    retry_after: float | None = None
    rejected: bool = False
    served: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer comes later, from outside."""


class Transport(Protocol):
    kind: Literal["live", "batch", "replay"]

    async def send(self, request: Request) -> Completion | Failure | Pending:
        """One attempt; several may be under way at once where kind is "live"."""
        ...

    def hold(self, pending: Sequence[Request]) -> Waiting:
        """Writes down what is pending, and says what to do about it."""
        ...


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Function(_Part):
    name: str = ""
    arguments: str


class _ToolCall(_Part):
    function: _Function


class _Message(_Part):
    role: Literal["assistant"] = "assistant"
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(_Part):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Part):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None
    prompt_tokens_details: dict[str, NonNegativeInt | None] | None = None
    completion_tokens_details: dict[str, NonNegativeInt | None] | None = None


class _Completion(_Part):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
    model: str | None = None


def check_completion(body: object) -> str | None:
    """What keeps `body` from being a chat completion whose answer can be read; None if nothing does."""
    try:
        _Completion.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    return None


def identify(call_id: str, digest: str) -> str:
    """The custom_id of a request: an answer to another prompt can never pass for one to this."""
    return f"{call_id}@{digest}"


def call_id_of(custom_id: str) -> str:
    """The part of a request's custom_id that names the call."""
    return custom_id.rpartition("@")[0] or custom_id


CONNECT_SECONDS = 15.0
NO_KEY = "not-needed"
"""Sent where there is no key: the client insists on one, servers without authentication ignore it."""

Exchange = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""From the body of a request to a chat completion."""


class _Exchanging(BaseChatOpenAI):
    """A chat model whose requests go through an `Exchange`, which journals them and knows where answers come from."""

    exchange: Exchange | None = Field(default=None, exclude=True)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        assert self.exchange is not None
        payload = self._get_request_payload(messages, stop=stop, **kwargs)
        further = payload.pop("extra_body", None) or {}
        payload.pop("stream", None)
        completion = await self.exchange(payload | further)
        choices = [one | {"message": {"role": "assistant"} | one["message"]} for one in completion["choices"]]
        return self._create_chat_result(ChatCompletion.construct(**completion | {"choices": choices}))


class _Chat(_Exchanging, ChatOpenAI):
    pass


class _AzureChat(_Exchanging, AzureChatOpenAI):
    pass


class Chats:
    """The chat models of a run, by name. fields: further fields of each request's body."""

    def __init__(self, base_url: str, key: str | None, timeout: float, fields: Mapping[str, Any]) -> None:
        self._url, self._key, self._timeout, self._fields = base_url, key or NO_KEY, timeout, dict(fields)
        self._chats: dict[str, _Exchanging] = {}

    async def ask(self, call: Call, model: str, method: Method, exchange: Exchange) -> AIMessage:
        """Asks `model` for an answer of the call's schema, as a message."""
        schema = call.schema.model_json_schema()
        schema["title"] = re.sub(r"[^A-Za-z0-9_-]", "_", call.schema.__name__)[:64]
        strict = None if method == "json_mode" else is_strict(schema)
        messages = _with_schema(call.messages, schema) if method == "json_mode" else call.messages
        chat = self.of(model).model_copy(update={"exchange": exchange})
        asking = chat.with_structured_output(schema, method=method, strict=strict, include_raw=True)
        # Tracing, switched on by a variable of the environment, would send the prompt to one more host.
        with tracing_context(enabled=False):
            answer = await asking.ainvoke([{"role": one.role, "content": one.content} for one in messages])
        assert isinstance(answer, dict)
        message = answer["raw"]
        assert isinstance(message, AIMessage)
        return message

    async def read(self, completion: Completion) -> AIMessage:
        """The message of a chat completion that came earlier."""

        async def known(body: dict[str, Any]) -> dict[str, Any]:
            return completion.body

        chat = self.of("recorded").model_copy(update={"exchange": known})
        with tracing_context(enabled=False):
            return await chat.ainvoke([{"role": "user", "content": ""}])

    def of(self, model: str) -> BaseChatOpenAI:
        """The chat model of a name."""
        if model not in self._chats:
            self._chats[model] = self._make(model)
        return self._chats[model]

    def _make(self, model: str) -> _Exchanging:
        common: dict[str, Any] = {
            "api_key": SecretStr(self._key),
            "timeout": openai.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            # Retries are the asker's: each attempt is journalled and must be allowed by the caps first.
            "max_retries": 0,
            "use_responses_api": False,
            "cache": False,
            "extra_body": self._fields,
            "http_client": _unused_client(),
            "http_async_client": _client(),
        }
        parts = urlsplit(self._url)
        version = parse_qs(parts.query).get("api-version")
        if version:
            # Azure before its v1 endpoint: the model is a deployment, part of the path.
            endpoint = f"{parts.scheme}://{parts.netloc}"
            common |= {"azure_endpoint": endpoint, "azure_deployment": model, "api_version": version[0]}
            return _AzureChat(model=model, **common)
        return _Chat(model=model, base_url=self._url, **common)


@functools.cache
def _client() -> openai.DefaultAsyncHttpxClient:
    """The HTTP client of all chat models, whose requests run in one event loop (`asker`): each client reads the
    certificates of all authorities, which takes 50 ms."""
    # Prompts go to no other host than the one the user was told.
    return openai.DefaultAsyncHttpxClient(follow_redirects=False)


@functools.cache
def _unused_client() -> openai.DefaultHttpxClient:
    """For calls that block, of which there are none; LangChain would make one for each chat model."""
    return openai.DefaultHttpxClient(follow_redirects=False)


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI's strict mode takes a JSON schema as it is: every object closed, every property required, nothing
    free (https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas")."""
    if "$ref" in schema:
        return len(schema) == 1
    if schema.keys() & {"oneOf", "allOf", "not", "prefixItems", "patternProperties", "default"}:
        return False
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        return False
    parts = [*schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
        parts += properties.values()
    elif schema.get("type") == "array":
        parts.append(schema.get("items", {}))
    return all(is_strict(part) for part in parts)


def _with_schema(messages: tuple[Message, ...], schema: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages with the schema in words: json_mode sends it in no other way."""
    wanted = f"Answer with one JSON object, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"
    # After the system messages: some chat templates take these only at the beginning.
    place = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
    if place == 0:
        return (Message("system", wanted), *messages)
    last = Message("system", f"{messages[place - 1].content}\n\n{wanted}")
    return (*messages[: place - 1], last, *messages[place:])


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
