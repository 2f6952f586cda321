"""Live models: LangChain's ChatOpenAI over an HTTP client that journals each attempt of a question.

The HTTP client sees the retries, too, which OpenAI's client makes by itself: each must be allowed by the caps first.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import openai
from langchain_core.language_models import BaseChatModel
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import AzureChatOpenAI, ChatOpenAI
from pydantic import SecretStr, ValidationError

from tunesmith.graph.models.calls import FailureKind, completion_error
from tunesmith.graph.settings import ModelSettings

if TYPE_CHECKING:
    from tunesmith.graph.models.client import Question

CONNECT_SECONDS = 15.0
GRACE_SECONDS = 10.0
"""After the timeout, until a server that keeps a connection alive without answering is given up."""
MAX_TIMEOUTS = 2
"""Attempts of a question that may time out: each costs the whole timeout, and perhaps an answer that is paid and never
seen."""
MIN_SECRET_LENGTH = 8
"""Characters: a shorter key ("EMPTY", "ollama") is not a secret, and may be a word of the answer."""
NO_KEY = "not-needed"
"""Sent where there is no key: the client insists on one, servers without authentication ignore it."""


class NoFurtherAttempt(openai.OpenAIError):
    """The question has ended; OpenAI's client passes this error on without a retry."""


class LiveModels:
    """The models of an OpenAI-compatible server. fields: further fields of each request's body."""

    def __init__(self, settings: ModelSettings, base_url: str, key: str | None, fields: dict[str, Any]) -> None:
        self._settings, self._url, self._key, self._fields = settings, base_url, key or NO_KEY, fields
        self._limiter = None
        if settings.requests_per_minute is not None:
            rate = settings.requests_per_minute / 60.0
            self._limiter = InMemoryRateLimiter(requests_per_second=rate, check_every_n_seconds=min(0.1, 0.1 / rate))
            self._limiter.available_tokens = 1.0  # the first call need not wait
        self._http = _JournallingClient(urlsplit(base_url).netloc, self._key, settings.model_timeout)
        # For calls that block, of which there are none; LangChain would make one for each chat model.
        self._unused_http = openai.DefaultHttpxClient(follow_redirects=False)

    async def answer(self, question: Question) -> None:
        """Has the server answer a question."""
        _QUESTION.set(question)
        try:
            await question.ask(self._chat(question))
        except (openai.OpenAIError, ValidationError):
            # The question has ended: also with an answer that LangChain makes no message of.
            if question.under_way:
                raise

    def _chat(self, question: Question) -> BaseChatModel:
        timeout, parts = self._settings.model_timeout, urlsplit(self._url)
        common: dict[str, Any] = {
            "model": question.model,
            "api_key": SecretStr(self._key),
            "timeout": openai.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            "max_retries": question.retries,
            "rate_limiter": self._limiter,
            "use_responses_api": False,
            "cache": False,
            "extra_body": self._fields,
            "http_client": self._unused_http,
            "http_async_client": self._http,
        }
        if version := parse_qs(parts.query).get("api-version"):
            # Azure before its v1 endpoint: the model is a deployment, part of the path.
            endpoint = f"{parts.scheme}://{parts.netloc}"
            return AzureChatOpenAI(
                azure_endpoint=endpoint, azure_deployment=question.model, api_version=version[0], **common
            )
        return ChatOpenAI(base_url=self._url, **common)


_QUESTION: ContextVar[Question] = ContextVar("question")
"""The question of the running task, for the HTTP client that all questions share."""


class _JournallingClient(openai.DefaultAsyncHttpxClient):
    """host: named in failures; key: hidden in whatever the server says; timeout: seconds for one answer."""

    def __init__(self, host: str, key: str, timeout: float) -> None:
        # Prompts go to no other host than the one the user was told.
        super().__init__(follow_redirects=False)
        self._host, self._seconds = host, timeout
        self._key = key if len(key) >= MIN_SECRET_LENGTH else None

    async def send(self, request: Any, **options: Any) -> Any:
        """One attempt: journalled before; its completion, without the key, or its failure noted after."""
        question = _QUESTION.get()
        if not await question.begin(json.loads(request.content)):
            raise NoFurtherAttempt
        patience = self._seconds + GRACE_SECONDS
        try:
            async with asyncio.timeout(patience):
                response = await super().send(request, **options)
                await response.aread()
        except TimeoutError as error:
            detail = f"the server kept the connection open for {patience:g} s without an answer."
            question.fail("timeout", detail, served=True, transient=True)
            raise NoFurtherAttempt from error
        except Exception as error:  # of the HTTP library, which differs between versions of OpenAI's client
            self._note_no_answer(question, error)
            if question.timeouts >= MAX_TIMEOUTS:
                raise NoFurtherAttempt from error
            raise
        if response.status_code >= 300:
            self._note_refusal(question, response)
            return response
        try:
            completion = json.loads(self._redacted(response.text))
            problem = completion_error(completion)
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            detail = f"{self._host} answered with something that is not a chat completion ({problem[:300]})."
            question.fail("server_error", detail, served=True, transient=True)
            raise NoFurtherAttempt
        question.answer(completion)
        return response

    def _note_no_answer(self, question: Question, error: Exception) -> None:
        # By name, as the library's errors have no common class over its versions. Without a connection no server has
        # worked on the request.
        name = type(error).__name__
        if name in ("ReadTimeout", "WriteTimeout"):
            question.timeouts += 1
            detail = f"{self._host} gave no answer within {self._seconds:g} s."
            question.fail("timeout", detail, served=True, transient=True)
            return
        served = name not in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")
        event = "closed the connection without an answer" if served else "cannot be reached"
        cause = self._redacted(str(error))[:200]
        detail = f"{self._host} {event}{f' ({cause})' if cause else ''}."
        question.fail("unreachable", detail, served=served, transient=True)

    def _note_refusal(self, question: Question, response: Any) -> None:
        code, message, reason = response.status_code, response.text, ""
        with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):  # of another form
            about = response.json()["error"]
            reason = str(about.get("code") or about.get("type") or "")
            message = str(about["message"])
        message = self._redacted(message)[:500].rstrip(". \n")
        detail = f"{self._host} answered {code}: {message}."
        if code < 400:
            detail = f"{self._host} redirects elsewhere ({code}); give its final --base-url."
        elif code in (401, 403):
            detail = f"{detail} Check the key."
        kinds: dict[int, FailureKind] = {401: "unauthorised", 403: "unauthorised", 429: "rate_limited"}
        without_money = reason == "insufficient_quota"
        question.fail(
            kinds.get(code, "server_error"),
            detail,
            transient=(code in (408, 409, 429) or code >= 500) and not without_money,
            rejected=code in (400, 422) and reason not in ("context_length_exceeded", "model_not_found"),
        )
        if without_money:
            raise NoFurtherAttempt

    def _redacted(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "[key]")
