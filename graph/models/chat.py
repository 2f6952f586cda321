"""Questions asked by LangChain's ChatOpenAI, over an HTTP client that journals each attempt.

The HTTP client sees the retries, too, which OpenAI's client makes by itself: each must be allowed by the caps first.
Where the answers are in files, requests come as far as this client, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import openai
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI
from langsmith import tracing_context
from pydantic import SecretStr, ValidationError

from tunesmith.graph.models.calls import FailureKind, ModelFailed, completion_error, completion_of, in_words
from tunesmith.graph.models.client import Question
from tunesmith.graph.models.recorded import BatchModels, ReplayModels
from tunesmith.graph.settings import Settings

_QUESTION: ContextVar[Question] = ContextVar("question")
"""The question of the running task, for the HTTP client that all questions share."""
OPENAI_HOSTS = ("openai.com", "openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com")
CONNECT_SECONDS = 15.0
GRACE_SECONDS = 10.0
"""Seconds after the timeout for a server that keeps a connection open without answering."""
MAX_TIMEOUTS = 2
"""Attempts of a question that may time out: each takes the whole timeout, and may have to be paid."""
MIN_SECRET_LENGTH = 8
"""Characters: a shorter key ("EMPTY", "ollama") is not a secret, and may be a word of the answer."""
NO_KEY = "none"
"""Sent without a key: the client requires one, and servers without authentication ignore it."""


class ChatModels(openai.DefaultAsyncHttpxClient):
    """The models of an OpenAI-compatible server, or of files, and their HTTP client. key: hidden in server messages."""

    def __init__(self, settings: Settings, url: str, key: str | None, files: BatchModels | ReplayModels | None) -> None:
        # Prompts go only to the host that the user was told. Where nothing is sent, no certificates are read.
        super().__init__(follow_redirects=False, verify=files is None, trust_env=files is None)
        self._settings, self._url, self._key, self._files = settings, url, key or NO_KEY, files
        self._limiter, self._host, self._seconds = None, urlsplit(url).netloc, settings.model_timeout
        self._responses = settings.model_api == "responses" and files is None
        # Of chat completions OpenAI's reasoning models take only the new name of the limit, many other servers know
        # only the old one (Ollama, older llama.cpp) or reject the new (Mistral).
        newer = any(f".{urlsplit(url).hostname}".endswith(f".{known}") for known in OPENAI_HOSTS)
        of_chat = "max_completion_tokens" if newer else "max_tokens"
        self._limit_field = "max_output_tokens" if self._responses else of_chat
        if settings.requests_per_minute is not None and files is None:
            rate = settings.requests_per_minute / 60.0
            self._limiter = InMemoryRateLimiter(requests_per_second=rate, check_every_n_seconds=min(0.1, 0.1 / rate))
            self._limiter.available_tokens = 1.0  # the first call need not wait
        # For blocking calls, which are never made; LangChain would make a client for each chat model.
        self._unused_http = openai.DefaultHttpxClient(verify=False, trust_env=False)

    async def answer(self, question: Question) -> None:
        """Has a question answered, by as many attempts as it takes."""
        _QUESTION.set(question)
        model, method = question.call.schema, question.method
        # OpenAI's strict mode takes closed objects whose properties are all required.
        strict = model.model_config.get("extra") == "forbid"
        strict = strict and all(field.is_required() for field in model.model_fields.values())
        schema = model.model_json_schema()
        messages = [{"role": each.role, "content": each.content} for each in question.call.messages]
        if method == "json_mode":
            # The request does not carry the schema: it stands in words behind the system's message.
            said = in_words(schema)
            if messages[0]["role"] == "system":
                said = f"{messages.pop(0)['content']}\n\n{said}"
            messages.insert(0, {"role": "system", "content": said})
        chat = ChatOpenAI(
            model=question.model,
            base_url=self._url,
            api_key=SecretStr(self._key),
            timeout=openai.Timeout(self._seconds, connect=min(CONNECT_SECONDS, self._seconds)),
            max_retries=question.retries,
            rate_limiter=self._limiter,
            use_responses_api=self._responses,
            cache=False,
            extra_body={self._limit_field: self._settings.answer_tokens, **self._settings.model_option},
            http_client=self._unused_http,
            http_async_client=self,
            openai_proxy=None,  # OPENAI_PROXY would be refused beside a client, which knows HTTPS_PROXY
        )
        how: dict[str, Any] = {"method": method, "strict": None if method == "json_mode" else strict}
        structured = chat.with_structured_output(schema, include_raw=True, **how)
        # Tracing, which an environment variable switches on, would send the prompt to another host.
        with tracing_context(enabled=False):
            try:
                await structured.ainvoke(messages)
            except (openai.OpenAIError, ValidationError):
                # The question has ended, perhaps with an answer that LangChain cannot read, or files have the answer.
                if question.under_way and self._files is None:
                    raise
        if self._files is not None and question.under_way and (found := self._files.find(question)) is not None:
            question.end(found)

    async def send(self, request: Any, **options: Any) -> Any:
        """An attempt, journalled before it and after it. An `OpenAIError` keeps OpenAI's client from making another."""
        question = _QUESTION.get()
        if not await question.begin(json.loads(request.content)) or self._files is not None:
            raise openai.OpenAIError
        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                response = await super().send(request, **options)
                await response.aread()
        except Exception as error:  # of the HTTP library, which differs between versions of OpenAI's client
            self._note_no_answer(question, error)
            if isinstance(error, TimeoutError) or question.timeouts >= MAX_TIMEOUTS:
                raise openai.OpenAIError from error
            raise
        if response.status_code >= 300:
            self._note_refusal(question, response)
            return response
        try:
            completion = completion_of(json.loads(self._redacted(response.text)))
            problem = completion_error(completion)
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            detail = f"{self._host} answered with something that is not a chat completion ({problem[:300]})."
            question.end(ModelFailed("server_error", detail), served=True)
            raise openai.OpenAIError
        question.end(completion)
        return response

    def _note_no_answer(self, question: Question, error: Exception) -> None:
        # By name, as the classes of errors differ between versions of the library.
        name = type(error).__name__
        if name in ("ReadTimeout", "WriteTimeout", "TimeoutError"):
            question.timeouts += 1
            detail = f"{self._host} gave no answer within {self._seconds:g} s."
            question.end(ModelFailed("timeout", detail), served=True)
            return
        # Without a connection no server has worked on the request.
        served = name not in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")
        event = "closed the connection without an answer" if served else "cannot be reached"
        cause = self._redacted(str(error))[:200]
        detail = f"{self._host} {event}{f' ({cause})' if cause else ''}."
        question.end(ModelFailed("unreachable", detail), served=served)

    def _note_refusal(self, question: Question, response: Any) -> None:
        code, message, reason = response.status_code, response.text, ""
        with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):  # of another form
            about = response.json()["error"]
            reason = str(about.get("code") or about.get("type") or "")
            message = str(about["message"])
        message = self._redacted(message)[:500].rstrip(". \n")
        detail = f"{self._host} answered {code}: {message}."
        kind: FailureKind = "rate_limited" if code == 429 else "server_error"
        if code < 400:
            detail = f"{self._host} redirects elsewhere ({code}); give its final --base-url."
        elif code in (401, 403):
            kind, detail = "unauthorised", f"{detail} Check the key."
        rejected = code in (400, 422) and reason not in ("context_length_exceeded", "model_not_found")
        question.end(ModelFailed(kind, detail), rejected=rejected)
        if reason == "insufficient_quota":
            raise openai.OpenAIError

    def _redacted(self, text: str) -> str:
        return text if len(self._key) < MIN_SECRET_LENGTH else text.replace(self._key, "[key]")
