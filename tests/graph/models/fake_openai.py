"""A server on loopback that speaks OpenAI's chat completions, and misbehaves as it is told; also as a batch service.

Requests get the scripted behaviours (`next`) first, in their order, then the `answers` (by the schema's name: dict or
text; or a callable). An answer comes back in the way that was asked for: as content for json_schema and json_mode, as
the arguments of a tool call for function_calling. `accepts` names the methods that are not rejected with 400. A request
without the right key gets 401, whose text repeats the key that was sent: a client must not pass that on.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

METHODS = ("json_schema", "function_calling", "json_mode")


@dataclass(frozen=True)
class Seen:
    """One request as it arrived. at: on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def method(self) -> str:
        """By which of the three ways an answer of a schema was asked for."""
        form = self.body.get("response_format", {}).get("type")
        return "function_calling" if "tools" in self.body else {"json_object": "json_mode"}.get(form, form)

    @property
    def schema_name(self) -> str | None:
        """The schema's name, where the method sends it."""
        tools = [tool["function"] for tool in self.body.get("tools", ())]
        return [*tools, self.body.get("response_format", {}).get("json_schema", {})][0].get("name")

    @property
    def prompt(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass(frozen=True)
class Behaviour:
    """Of the server on one request. raw: the body of the response, in place of an answer with `value`; delay: seconds
    before the first byte; drop: the connection is closed without a response; drip: seconds in which the response comes,
    a space now and then, and does not end."""

    code: int = 200
    # Without a header the client would wait half a second and longer before it tries again.
    headers: Mapping[str, str] = field(default_factory=lambda: {"retry-after-ms": "10"})
    raw: bytes | None = None
    value: Any = None
    finish: str = "stop"
    refusal: str | None = None
    delay: float = 0.0
    drop: bool = False
    drip: float = 0.0

    def response(self, seen: Seen) -> bytes:
        """The raw body, or a chat completion that carries the answer."""
        if self.raw is not None:
            return self.raw
        text = self.value if isinstance(self.value, str) else json.dumps(self.value)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self.refusal is not None:
            message |= {"content": None, "refusal": self.refusal}
        elif seen.method == "function_calling":
            call = {"name": seen.schema_name, "arguments": text}
            message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": call}]}
        prompt, written = len(seen.prompt) // 4 + 1, len(text) // 4 + 1
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish}
        head = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 1, "model": seen.body["model"]}
        return json.dumps({**head, "choices": [choice], "usage": usage}).encode()


def answer(value: Any, **how: Any) -> Behaviour:
    """An answer, of the schema or not: dict, or text as it is."""
    return Behaviour(value=value, **how)


def status(code: int, message: str = "scripted", *, error_code: str | None = None, **how: Any) -> Behaviour:
    """An error of the protocol."""
    error = {"error": {"message": message, "type": "scripted", "code": error_code}}
    return Behaviour(code=code, raw=json.dumps(error).encode(), **how)


CLOSED = Behaviour(drop=True)
"""The connection is closed once the request has been read."""
HANG = Behaviour(delay=60, drop=True)
TRUNCATED = answer('{"name": "unro', finish="length")
REFUSED = Behaviour(refusal="I cannot help with that.")


class FakeOpenAI(ThreadingHTTPServer):
    """answers: by schema name, or one callable from `Seen` to an answer; what has no answer gets 500."""

    daemon_threads = True

    def __init__(self, key: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.key, self.accepts = key, METHODS
        self.answers: Mapping[str, Any] | Callable[[Seen], Any] = {}
        self.requests: list[Seen] = []
        self.most_at_once = self.at_once = 0
        self.over, self.lock = threading.Event(), threading.Lock()
        self._script: list[Behaviour] = []

    def next(self, *behaviours: Behaviour) -> None:
        """Scripts the next requests."""
        self._script.extend(behaviours)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def behave(self, seen: Seen) -> Behaviour:
        """What to do with a request."""
        with self.lock:
            self.requests.append(seen)
            sent = seen.headers.get("authorization", "no key").removeprefix("Bearer ")
            if sent != self.key:
                return status(401, f"Incorrect API key provided: {sent}.", error_code="invalid_api_key")
            if self._script:
                return self._script.pop(0)
        if seen.method not in self.accepts:
            return status(400, f"Unsupported parameter for {seen.method}.", error_code="unsupported_parameter")
        if callable(self.answers):
            found = self.answers(seen)
        else:
            found = self.answers.get(seen.schema_name or next(iter(self.answers)))
        if found is None:
            return status(500, f"The test has no answer to {seen.schema_name}.")
        return found if isinstance(found, Behaviour) else answer(found)


class Handler(BaseHTTPRequestHandler):
    server: FakeOpenAI
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.path, headers, body, time.monotonic())
        with self.server.lock:
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        self.close_connection = True
        with suppress(BrokenPipeError, ConnectionResetError):  # the client had waited long enough
            self._do(self.server.behave(seen), seen)
        with self.server.lock:
            self.server.at_once -= 1

    def _do(self, behaviour: Behaviour, seen: Seen) -> None:
        self.server.over.wait(behaviour.delay)
        if behaviour.drop:
            return
        content = behaviour.response(seen)
        self.send_response(behaviour.code)
        length = len(content) + 1000 * bool(behaviour.drip)
        for name, value in {"Content-Type": "application/json", **behaviour.headers, "Content-Length": length}.items():
            self.send_header(name, str(value))
        self.end_headers()
        until = time.monotonic() + behaviour.drip
        while time.monotonic() < until:
            self.wfile.write(b" ")
            self.server.over.wait(0.1)
        if not behaviour.drip:
            self.wfile.write(content)
            self.close_connection = False

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path, server: FakeOpenAI, *, style: str = "openai", append: bool = False) -> int:
    """Writes folder/answers.jsonl for folder/requests.jsonl, as OpenAI's batch API or `vllm run-batch` would, with what
    the server answers to each line; returns the number of requests."""
    lines = []
    for line in map(json.loads, (folder / "requests.jsonl").read_text().splitlines()):
        assert line["method"] == "POST"
        seen = Seen(line["url"], {"authorization": f"Bearer {server.key}"}, line["body"], time.monotonic())
        behaviour = server.behave(seen)
        body = json.loads(behaviour.response(seen))
        failed = style == "vllm" and behaviour.code != 200
        response = {"status_code": behaviour.code, "request_id": "req_1", "body": None if failed else body}
        error = body if failed else None
        lines.append({"id": "batch_req_1", "custom_id": line["custom_id"], "response": response, "error": error})
    with (folder / "answers.jsonl").open("a" if append else "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in reversed(lines))  # neither service keeps an order
    return len(lines)
