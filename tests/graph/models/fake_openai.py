"""A server on loopback that speaks OpenAI's chat completions, and misbehaves as it is told.

Requests get the scripted behaviours (`next`) first, in their order, then the `answers` (by the schema's name: dict or
text; or a callable). An answer comes back in the way that was asked for: as content for json_schema and json_mode, as
the arguments of a tool call for function_calling. `accepts` names the methods that are not rejected with 400. A request
without the right key gets 401, whose text repeats the key that was sent: a client must not pass that on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METHODS = ("json_schema", "function_calling", "json_mode")


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    """On the monotonic clock."""

    @property
    def method(self) -> str:
        """By which of the three ways an answer of a schema was asked for; "none" if by none."""
        if "tools" in self.body:
            return "function_calling"
        kind = self.body.get("response_format", {}).get("type")
        return {"json_schema": "json_schema", "json_object": "json_mode"}.get(kind, "none")

    @property
    def schema_name(self) -> str | None:
        """The schema's name, where the method sends it."""
        if self.method == "function_calling":
            return self.body["tools"][0]["function"]["name"]
        if self.method == "json_schema":
            return self.body["response_format"]["json_schema"]["name"]
        return None

    @property
    def prompt(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass(frozen=True)
class Behaviour:
    """Of the server on one request. raw: the body of the response, in place of an answer with `value`; delay: seconds
    before the first byte; drop: the connection is closed without a response; drip: seconds in which the response comes,
    a space now and then, and does not end."""

    code: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    value: Any = None
    finish: str = "stop"
    refusal: str | None = None
    delay: float = 0.0
    drop: bool = False
    drip: float = 0.0


def answer(value: Any, **how: Any) -> Behaviour:
    """An answer, of the schema or not: dict, or text as it is."""
    return Behaviour(value=value, **how)


def status(
    code: int, message: str = "scripted", *, error_code: str = "", headers: Mapping[str, str] | None = None
) -> Behaviour:
    """An error of the protocol."""
    error = {"error": {"message": message, "type": "scripted", "code": error_code or None}}
    # Without a header the client would wait half a second and longer before it tries again.
    return Behaviour(code=code, raw=json.dumps(error).encode(), headers=headers or {"retry-after-ms": "10"})


def hang(seconds: float) -> Behaviour:
    """Nothing for `seconds`, then the connection is closed."""
    return Behaviour(delay=seconds, drop=True)


def truncated(text: str) -> Behaviour:
    """An answer that ended at the token limit."""
    return Behaviour(value=text, finish="length")


def refusal() -> Behaviour:
    return Behaviour(refusal="I cannot help with that.")


def raw(body: bytes) -> Behaviour:
    """Bytes that are not a chat completion."""
    return Behaviour(raw=body)


CLOSED = Behaviour(drop=True)
"""The connection is closed once the request has been read."""


class FakeOpenAI:
    """answers: by schema name, or one callable from `Seen` to an answer; what has no answer gets 500."""

    def __init__(self, *, key: str | None = None, accepts: tuple[str, ...] = METHODS) -> None:
        self.key, self.accepts = key, accepts
        self.answers: Mapping[str, Any] | Callable[[Seen], Any] = {}
        self.requests: list[Seen] = []
        self.most_at_once = 0
        self._script: list[Behaviour] = []
        self._lock = threading.Lock()
        self._now = 0
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def next(self, *behaviours: Behaviour) -> None:
        """Scripts the next requests."""
        with self._lock:
            self._script.extend(behaviours)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def behave(self, seen: Seen) -> Behaviour:
        """What to do with a request; called by the handler."""
        with self._lock:
            self.requests.append(seen)
            sent = seen.headers.get("authorization", "no key").removeprefix("Bearer ")
            if self.key not in (None, sent, seen.headers.get("api-key")):
                return status(401, f"Incorrect API key provided: {sent}.", error_code="invalid_api_key")
            if self._script:
                return self._script.pop(0)
            if seen.method != "none" and seen.method not in self.accepts:
                return status(400, f"Unsupported parameter for {seen.method}.", error_code="unsupported_parameter")
        found = self.answers(seen) if callable(self.answers) else self._by_name(seen)
        if found is None:
            return status(500, f"The test has no answer to {seen.schema_name}.")
        return found if isinstance(found, Behaviour) else answer(found)

    def _by_name(self, seen: Seen) -> Any:
        assert not callable(self.answers)
        if seen.schema_name is None and len(self.answers) == 1:
            return next(iter(self.answers.values()))
        return self.answers.get(seen.schema_name or "")

    def wait(self, seconds: float) -> None:
        """Waits, but not longer than the server lives."""
        self._over.wait(seconds)

    def enter(self, step: int) -> None:
        """Counts requests that are being answered."""
        with self._lock:
            self._now += step
            self.most_at_once = max(self.most_at_once, self._now)


def completion(behaviour: Behaviour, seen: Seen) -> dict[str, Any]:
    """A chat completion that carries the answer."""
    value = behaviour.value
    text = value if isinstance(value, str) else json.dumps(value)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if behaviour.refusal is not None:
        message |= {"content": None, "refusal": behaviour.refusal}
    elif seen.method == "function_calling":
        call = {"name": seen.schema_name, "arguments": text}
        message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": call}]}
    prompt, written = len(seen.prompt) // 4 + 1, len(text) // 4 + 1
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1700000000,
        "model": seen.body["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": behaviour.finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


def _handler(server: FakeOpenAI) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.path, headers, body, time.monotonic())
            server.enter(1)
            try:
                self._do(server.behave(seen), seen)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client had waited long enough
            finally:
                server.enter(-1)

        def _do(self, behaviour: Behaviour, seen: Seen) -> None:
            if behaviour.delay:
                server.wait(behaviour.delay)
            if behaviour.drop:
                self.close_connection = True
                return
            if behaviour.drip:
                self._drip(behaviour.drip)
                return
            content = behaviour.raw if behaviour.raw is not None else json.dumps(completion(behaviour, seen)).encode()
            self.send_response(behaviour.code)
            for name, value in {"Content-Type": "application/json", **behaviour.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _drip(self, seconds: float) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self.wfile.write(b" ")
                self.wfile.flush()
                server.wait(0.1)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler
