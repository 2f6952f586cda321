"""The last line of defence: an exception that nobody expected becomes one sentence and a file with the details.

Owns that sentence and that file. Mistakes of the user's are `TunesmithError`s with sentences of their own.

The command line: a thin layer over the Python API. Each command is in its own module, imported when it is called.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from tunesmith import __version__
from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_UNMEASURED, EXIT_WAITING, echo
from tunesmith.hw.errors import OutOfTime, TunesmithError

EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""

_REFUSED = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)


class InternalError(Exception):
    """Carries the folder of the run in which its cause was raised."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


def unusable(error: BaseException) -> str:
    """A sentence on a file or folder of the user's that the system refuses, as for a name that is too long; empty for
    any other error."""
    if not isinstance(error, OSError) or error.errno not in _REFUSED or error.filename is None:
        return ""
    return f"{error.filename!s:.200} cannot be used: {error.strerror}; name another."


def interrupted(error: BaseException) -> bool:
    """Whether an exception is what became of a Ctrl-C, as where it hits the import of an extension module."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def describe_bug(error: BaseException, arguments: Sequence[str], *, debug: bool) -> str:
    """One sentence about an unexpected exception, which is written to a file; with `debug` the traceback is printed."""
    folder: Path | None = None
    if isinstance(error, InternalError):
        folder, error = error.folder, error.__cause__ or error
    details = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(details)
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    # An error of another process has that process's traceback as its text, whose last line says what it was.
    what = lines[-1].strip() if lines else "no message"
    name = type(error).__name__
    summary = what if what.startswith(("Traceback", name)) or len(lines) > 1 else f"{name}: {what}"
    where = _write(folder, details, arguments)
    place = f"Details are in {where}; please report it with that file." if where else "--debug shows the details."
    return f"This is a bug in Tunesmith: {summary[:300].rstrip('.')}. {place}"


def _write(folder: Path | None, details: str, arguments: Sequence[str]) -> Path | None:
    """The file with the details; None where none can be written."""
    head = (
        f"Tunesmith {__version__}, Python {platform.python_version()} on {platform.platform()}, "
        f"{datetime.now().astimezone().isoformat(timespec='seconds')}\ncommand: {' '.join(arguments)}\n\n"
    )
    try:
        if folder is not None and folder.is_dir():
            path = folder / "crash.log"
        else:
            with tempfile.NamedTemporaryFile(prefix="tunesmith-crash-", suffix=".log", delete=False) as file:
                path = Path(file.name)
        with path.open("a", encoding="utf-8") as log:
            log.write(head + details + "\n")
    except OSError:
        return None
    return path


COMMANDS = {
    "devices": "List the devices that can be tuned on.",
    "tasks": "List the tasks that ship with Tunesmith.",
    "graph": "Print the state machine as a mermaid drawing.",
    "init": "Draft a task from a CUDA source or a T1 file.",
    "space": "Show a task's parameters and how many points are feasible.",
    "tune": "Tune a task on the device, and report what was found.",
    "resume": "Continue a run, or let it measure more.",
    "report": "Print what a run found.",
    "export": "Export what a run found for PyTorch, CuPy, C++ or other tuners.",
    "compare": "Put runs of one task beside each other.",
    "ablate": "Compare rewriting, templates, search and the whole tree.",
    "check": "Say whether a kernel is right, and if not why.",
    "bench": "Time one configuration against the baseline.",
    "prompts": "Print what a model would be asked, without asking it.",
    "simulate": "Replay a search on recorded tables.",
    "wisdom": "List, show, export or import what earlier runs found.",
    "exhaust": "Measure a whole space, in Kernel Tuner's format.",
}
"""By name; each is the function of that name in the module of that name in `tunesmith.cli.commands`."""
MODULES = {"tune": "run", "resume": "run"}
"""Of commands that share one."""
_LOOK: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class _Commands(TyperGroup):
    """The commands of `COMMANDS`: listed without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            function = getattr(import_module(f"tunesmith.cli.commands.{MODULES.get(cmd_name, cmd_name)}"), cmd_name)
            alone = typer.Typer(add_completion=False, **_LOOK)
            alone.command(cmd_name)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would end without a word.
            _end_interrupted()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


_DEBUG: list[bool] = []
"""Not empty once --debug was read."""

app = typer.Typer(
    name="tunesmith",
    help="Tunes GPU kernels: searches the parameters of kernel templates within the device's limits, checks and times "
    "each configuration.",
    cls=_Commands,
    **_LOOK,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tunesmith {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an internal error.")] = False,
) -> None:
    if debug:
        _DEBUG.append(True)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(EXIT_MISTAKE)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_as_from_the_keyboard() -> None:
    """Makes the end of a job (SIGTERM: Slurm, Kubernetes, `timeout`) and a lost terminal (SIGHUP) interruptions like
    Ctrl-C: workers end, and the user is told how to resume. What was ignored before (`nohup`) stays so."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def _open_closed_streams() -> None:
    """Standard streams that were closed (`tunesmith tasks >&-`) read and write nothing. Their numbers are taken, or the
    next file to be opened would be printed into."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


PHRASES = (
    ("Input should be a valid integer, unable to parse string as an integer", "give a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "give a number"),
    ("Input should be greater than or equal to", "give a number of at least"),
    ("Value error, ", ""),
    ("Input should be less than or equal to", "give a number of at most"),
)
"""What typer says of a value, and what this program says of it elsewhere."""


def _sentence(error: TyperException) -> str:
    """What is wrong with a command line, in the style of all other messages."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    option = getattr(error, "option_name", None)
    usage = f"`{context.command_path} --help` shows how it is used." if context is not None else ""
    if hasattr(error, "possibilities"):
        near = f"; did you mean {' or '.join(sorted(error.possibilities))}?" if error.possibilities else "."
        return f"{option}: there is no such option{near} {usage}".rstrip()
    if parameter is None and (named := re.fullmatch(r"No such command '(.*)'\.", error.message)):
        close = difflib.get_close_matches(named[1], COMMANDS, 1)
        return f"No such command '{named[1]}'{f'; did you mean {close[0]}?' if close else '.'} {usage}"
    if parameter is not None:
        long = max(parameter.opts, key=len)
        option = long if long.startswith("-") else str(parameter.name).upper()
        if not error.message:
            return f"{option}: it is required. {usage}".rstrip()
    problem = error.message.replace(f"Option '{option}' requires an argument", "it needs a value")
    for theirs, ours in PHRASES:
        problem = problem.replace(theirs, ours)
    message = problem if option is None else f"{option}: {problem}"
    return f"{message.rstrip('. ')}." if parameter is not None else f"{message.rstrip('. ')}. {usage}".rstrip()


def _fail(message: str, code: int) -> None:
    # Half a character that a file names cannot be written as it is.
    with contextlib.suppress(OSError):  # standard error may be full, too
        echo(f"tunesmith: {message.encode(errors='backslashreplace').decode()}", err=True)
    sys.exit(code)


def _end_interrupted() -> NoReturn:
    typer.echo("\nInterrupted.", err=True)
    sys.exit(EXIT_INTERRUPTED)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line with `arguments`, or this process's; ends with `SystemExit`."""
    _end_as_from_the_keyboard()
    _open_closed_streams()
    # What cannot be encoded, as in a path of bytes that are no text, is shown by its numbers.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        given = None if arguments is None else list(arguments)
        code = app(args=given, prog_name="tunesmith", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else EXIT_DONE)
    except TyperException as error:
        _fail(_sentence(error), EXIT_MISTAKE)
    except TunesmithError as error:
        from tunesmith.graph.models.calls import Waiting

        codes = ((Waiting, EXIT_WAITING), (OutOfTime, EXIT_UNMEASURED))
        _fail(str(error), next((code for kind, code in codes if isinstance(error, kind)), EXIT_MISTAKE))
    except (KeyboardInterrupt, Abort):
        _end_interrupted()
    except BrokenPipeError:
        # The reader of our output went away (`tunesmith tasks | head`); that is no failure of ours.
        _silence()
        sys.exit(EXIT_DONE)
    except Exception as error:  # noqa: BLE001 - nobody is shown a traceback that did not ask for it
        if interrupted(error):
            _end_interrupted()
        if said := unusable(error):
            _fail(said, EXIT_MISTAKE)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None:
            _silence()
            _fail(f"Standard output cannot be written: {error.strerror}.", EXIT_MISTAKE)
        _fail(describe_bug(error, sys.argv, debug=bool(_DEBUG)), EXIT_BUG)


def _silence() -> None:
    """Lets what is still to be written to standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
