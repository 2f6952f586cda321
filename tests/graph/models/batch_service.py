"""Answers a file of requests, as OpenAI's batch API or `vllm run-batch` would, by asking a server for each line."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def serve(folder: Path, base_url: str, *, key: str | None = None, style: str = "openai", append: bool = False) -> int:
    """Writes folder/answers.jsonl for folder/requests.jsonl; returns the number of requests."""
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    lines = [_answer(line, base_url, key, style) for line in requests]
    with (folder / "answers.jsonl").open("a" if append else "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in reversed(lines))  # neither service keeps an order
    return len(requests)


def _answer(line: dict[str, Any], base_url: str, key: str | None, style: str) -> dict[str, Any]:
    assert line["method"] == "POST" and line["url"] == "/v1/chat/completions"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    url = base_url.removesuffix("/v1") + line["url"]
    request = urllib.request.Request(url, json.dumps(line["body"]).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            code, body = response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            code, body = error.code, json.load(error)
    about = {"status_code": code, "request_id": "req_1"}
    if style == "vllm":
        failed = code != 200
        response = about | {"body": None if failed else body}
        return {"id": "vllm-1", "custom_id": line["custom_id"], "response": response, "error": body if failed else None}
    return {"id": "batch_req_1", "custom_id": line["custom_id"], "response": about | {"body": body}, "error": None}
