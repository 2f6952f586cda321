"""Questions answered by a program of the user's, such as a coding agent that is paid for already.

The program reads the prompt from its standard input and writes the answer, with the JSON in it, to its standard output.
It runs in an empty folder, in a session of its own that is killed at the deadline, without the variables of this
process that may hold keys.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
from contextlib import suppress

from tunesmith.graph.models.calls import ModelCall, ModelFailed, Outcome, in_words
from tunesmith.graph.models.client import Question

PREFIX = "command:"
"""Begins the name of a model that is a program, before its command line."""
MAX_ANSWER = 4 << 20
"""Bytes of an answer that are read."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""The names of variables that may hold keys."""


def program_of(model: str) -> list[str]:
    """The words of a program's command line, as a shell splits it. Raises `ValueError` for an open quotation."""
    return shlex.split(model.removeprefix(PREFIX))


def prompt_of(call: ModelCall) -> str:
    return "\n\n".join([*(each.content for each in call.messages), in_words(call.schema.model_json_schema())]) + "\n"


async def answer(question: Question, seconds: float) -> None:
    """Has a question answered by the program that its model names, within `seconds`."""
    messages = [{"role": "user", "content": prompt_of(question.call)}]
    if await question.begin({"model": question.model, "messages": messages}):
        outcome = await _run(program_of(question.model), messages[0]["content"], seconds)
        question.end(outcome, served=not isinstance(outcome, ModelFailed) or outcome.kind != "unreachable")


async def _run(program: list[str], prompt: str, seconds: float) -> Outcome:
    named = os.path.basename(program[0])
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder, tempfile.TemporaryFile() as output:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *program, stdin=pipe, stdout=output, stderr=pipe, cwd=folder, env=kept, start_new_session=True
            )
        except OSError as error:
            return ModelFailed("unreachable", f"{named} cannot be run ({error.strerror}).")
        try:
            async with asyncio.timeout(seconds):
                _, said = await process.communicate(prompt.encode("utf-8", "replace"))
        except TimeoutError:
            return ModelFailed("timeout", f"{named} gave no answer within {seconds:g} s.")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read(MAX_ANSWER).decode(errors="replace")
    if process.returncode:
        last = (said.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        return ModelFailed("server_error", f"{named} ended with code {process.returncode}: {last[:300]}")
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
