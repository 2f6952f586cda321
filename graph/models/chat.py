"""Chat models of LangChain: they compose the requests, and read the answers into messages.

Importing this module imports langchain-openai (a second or more), so it is imported where models are opened. Chat
completions only, whatever the model's name: all OpenAI-compatible servers speak them, and batch files are made of them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langsmith import tracing_context
from openai.types.chat import ChatCompletion
from pydantic import Field, SecretStr

from tunesmith.graph.models.calls import Call, Message
from tunesmith.graph.models.transport import Completion
from tunesmith.graph.settings import Method

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
