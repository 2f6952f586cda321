"""From settings to the models of a run. Mistakes are found by `check_models` before anything is begun.

A model may be a program of the user's, such as a coding agent that is paid for already. It reads the prompt from its
standard input and writes the answer, with the JSON in it, to its standard output. It runs in an empty folder, in a
session of its own that is killed at the deadline, without the variables of this process that may hold keys.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tunesmith.graph.journal.events import ModelsUsage
from tunesmith.graph.journal.log import Journal
from tunesmith.graph.models.calls import ModelFailed, Models, Outcome, in_words
from tunesmith.graph.models.client import Ledger, ModelClient, Prices, Question, load_prices, price_of
from tunesmith.graph.models.recorded import BatchModels, ReplayModels
from tunesmith.graph.progress import Listener
from tunesmith.graph.settings import Settings
from tunesmith.hw.errors import TunesmithError, how_to_install

PREFIX = "command:"
"""Begins the name of a model that is a program, before its command line."""
MAX_ANSWER = 4 << 20
"""Bytes of an answer that are read."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""The names of variables that may hold keys."""
TRANSCRIPTS = "transcripts"
OPENAI_URL = "https://api.openai.com/v1"
_TAKEN_FIELDS = frozenset(
    {"model", "messages", "stream", "n", "response_format", "tools", "tool_choice"}
    | {"max_tokens", "max_completion_tokens", "n_predict"}  # llama.cpp prefers the last one to max_tokens
)


def check_models(settings: Settings) -> Prices:
    """Raises `TunesmithError` for settings that cannot work; the prices that go with them."""
    prices = load_prices(settings.prices)
    if (mistake := next(_mistakes(settings, prices), None)) is not None:
        raise TunesmithError(mistake)
    if settings.transport == "replay":
        ReplayModels(settings.folder, exact=settings.replay_exact)
    return prices


def _mistakes(settings: Settings, prices: Prices) -> Iterator[str]:
    if settings.transport == "none":
        if settings.model_for:
            yield "--model-for: other models for some roles need a --model for the rest."
        return
    live = settings.transport == "live"
    programs = [name for name in settings.names if live and name.startswith(PREFIX)]
    served = not live or len(programs) < len(settings.names)
    for name in programs:
        yield from _mistakes_of_program(name)
    if served and find_spec("langchain_openai") is None:
        yield f"--model: the package langchain-openai is not installed: {how_to_install('models')}."
    if taken := ", ".join(sorted(settings.model_option.keys() & _TAKEN_FIELDS)):
        # The upper bound of a call, for the caps, is computed from --answer-tokens.
        yield f"--model-option: {taken} cannot be set; the length of an answer is set by --answer-tokens."
    if live and served:
        yield from _mistakes_of_url(settings.base_url or OPENAI_URL)
        if not _key(settings) and (settings.base_url is None or settings.key_env != "OPENAI_API_KEY"):
            yield (
                f"--model: the environment variable {settings.key_env} has no key; set it, or name another with "
                "--key-env, or give --base-url for a server that needs none."
            )
    unknown = [name for name in settings.names if price_of(prices, name) is None]
    if settings.max_cost is not None and unknown and settings.transport != "replay":
        yield (
            f"--max-cost: no price is known for the model {unknown[0]!r}; name a file with --prices that has [models] "
            f'and "{unknown[0]}" = {{ input = ..., output = ... }} in US dollars for a million tokens.'
        )
    if settings.transport == "batch":
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            yield f"--model: the folder {settings.folder} cannot be created ({error.strerror})."


def _mistakes_of_program(name: str) -> Iterator[str]:
    try:
        program = shlex.split(name.removeprefix(PREFIX))
    except ValueError as error:
        yield f"--model: {name} cannot be split into words ({error}): close its quotation."
        return
    if not program or shutil.which(program[0]) is None:
        named = program[0] if program else "named"
        yield f"--model: there is no program {named}; give one after `command:`, as in --model 'command:agent -p'."
    elif os.sep in program[0] and not os.path.isabs(program[0]):
        yield f"--model: {program[0]} would be looked for in the empty folder in which it runs; give its absolute path."


def _mistakes_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        yield f"--base-url: '{url}' is not a URL; write it as http://localhost:8000/v1."
    if parts.username or parts.password:
        yield (
            "--base-url: a URL with a name or password would end up in the journal; put the key into the environment "
            "and name the variable with --key-env."
        )
    if parts.fragment or parts.query:
        yield "--base-url: nothing may follow the path; keys belong into the environment."


def open_models(
    settings: Settings, journal: Journal, folder: Path, listener: Listener, seconds_left: Callable[[], float]
) -> Models | None:
    """The models of the run in `folder`; None for "none". seconds_left: until the run's time limit."""
    prices = check_models(settings)
    if settings.transport == "none":
        return None
    # Imported here: it takes a second.
    from tunesmith.graph.models.chat import ChatModels

    files: BatchModels | ReplayModels | None = None
    if settings.transport == "batch":
        files = BatchModels(settings.folder, f"tunesmith resume {folder}")
    elif settings.transport == "replay":
        files = ReplayModels(settings.folder, exact=settings.replay_exact)
    url = settings.base_url or OPENAI_URL if files is None else OPENAI_URL
    chat = ChatModels(settings, url, _key(settings), files)

    async def source(question: Question) -> None:
        if question.model.startswith(PREFIX) and files is None:
            await answer_by_program(question, settings.model_timeout)
        else:
            await chat.answer(question)

    return ModelClient(settings, source, files, journal, prices, folder / TRANSCRIPTS, listener, seconds_left)


def destination(settings: Settings) -> str | None:
    """The place where sources are sent, in one sentence; None without a model."""
    facts = "kernel sources, compiler messages and measurements"
    if settings.transport == "none":
        return None
    if settings.transport == "batch":
        return f"{facts} are written to {settings.folder} for a model to read; nothing is sent"
    if settings.transport == "replay":
        return f"answers come from the recording in {settings.folder}; nothing is sent"
    programs = [name for name in settings.names if name.startswith(PREFIX)]
    given = f"{facts} are given to {' and '.join(programs)}"
    if len(programs) == len(settings.names):
        return given
    parts = urlsplit(settings.base_url or OPENAI_URL)
    key = f"with the key in {settings.key_env}" if _key(settings) else "without a key"
    private = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
    open_line = "" if private else "; the line is not encrypted"
    names = ", ".join(name for name in settings.names if name not in programs)
    return f"{facts} go to {parts.netloc} ({names}), {key}{open_line}" + (f"; {given}" if programs else "")


def models_summary(settings: Settings, journal: Journal) -> ModelsUsage | None:
    """The cost and the place of a run's models, for its summary; None without a model."""
    if settings.transport == "none":
        return None
    live = settings.transport == "live"
    server = urlsplit(settings.base_url or OPENAI_URL).netloc
    names = (name if name.startswith(PREFIX) else server for name in settings.names)
    where = ", ".join(dict.fromkeys(names)) if live else str(settings.folder)
    return Ledger(journal, live=live).summary(settings.transport, where)


def _key(settings: Settings) -> str | None:
    return os.environ.get(settings.key_env, "").strip() or None


async def answer_by_program(question: Question, seconds: float) -> None:
    """Has a question answered by the program that its model names, within `seconds`."""
    call = question.call
    prompt = "\n\n".join([*(each.content for each in call.messages), in_words(call.schema.model_json_schema())]) + "\n"
    messages = [{"role": "user", "content": prompt}]
    if await question.begin({"model": question.model, "messages": messages}):
        outcome = await _run(shlex.split(question.model.removeprefix(PREFIX)), prompt, seconds)
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
