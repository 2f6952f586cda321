"""The command line: its commands by name, and the sentence and exit code of each way to fail.

The modules of commands are imported when one of theirs is called. A user's mistake is a `TunesmithError` with a
sentence; any other exception becomes one sentence here, and a file with the details.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import platform
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from tunesmith import __version__
from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_UNMEASURED, EXIT_WAITING, echo
from tunesmith.hw.errors import OutOfTime, TunesmithError

EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""

COMMANDS = {
    "devices": ("listing", "List the devices that can be tuned on."),
    "tasks": ("listing", "List the tasks that ship with Tunesmith."),
    "graph": ("listing", "Print the state machine as a mermaid drawing."),
    "init": ("init", "Draft a task from a kernel."),
    "space": ("preview", "Show a task's parameters and how many points are feasible."),
    "tune": ("tune", "Tune a task on the device, and report the result."),
    "resume": ("tune", "Continue a run, or let it measure more."),
    "report": ("results", "Print the results of a run."),
    "export": ("results", "Export the results of a run for PyTorch, CuPy, C++, Triton or other tuners."),
    "compare": ("results", "Compare runs of one task."),
    "ablate": ("studies", "Compare rewriting, templates, search and the whole tree."),
    "check": ("check", "Say whether a kernel or a task is right, and why not."),
    "bench": ("timing", "Time one configuration against the baseline."),
    "recheck": ("timing", "Time a run's best few configurations again, and say what changed."),
    "prompts": ("preview", "Print the prompts for a model, without asking it."),
    "simulate": ("studies", "Replay a search on recorded tables."),
    "wisdom": ("results", "List, show, export or import the results of earlier runs."),
    "exhaust": ("studies", "Measure a whole space, in Kernel Tuner's format."),
}
"""The commands: each is a function of its name in a module of `tunesmith.cli.commands`, with its line in the help."""
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
            module = import_module(f"tunesmith.cli.commands.{COMMANDS[cmd_name][0]}")
            alone = typer.Typer(add_completion=False, **_LOOK)
            alone.command(cmd_name)(getattr(module, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer would end without a message.
            _end_interrupted()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


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
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(EXIT_MISTAKE)


def _interrupt_on_signals() -> None:
    """Makes SIGTERM (Slurm, Kubernetes, `timeout`) and SIGHUP (a lost terminal) interruptions like Ctrl-C: workers end,
    and the user is told how to resume. A signal that was ignored (`nohup`) stays ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


def _open_closed_streams() -> None:
    """Opens standard streams that were closed (`tunesmith tasks >&-`) on /dev/null, before another file gets their
    number and is printed into."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process lives


def _sentence(error: TyperException) -> str:
    """The mistake in a command line, and the way to its help."""
    context = getattr(error, "ctx", None)
    usage = "" if context is None else f"; `{context.command_path} --help` shows how it is used"
    return f"{error.format_message().replace('Value error, ', '').rstrip('.')}{usage}."


def _refusal(error: BaseException) -> str:
    """A sentence on a file or folder that the system refuses, as for a name that is too long, or on a full standard
    output; empty for any other error."""
    refusals = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EIO)
    if not isinstance(error, OSError) or error.errno not in refusals:
        return ""
    place = "Standard output" if error.filename is None else f"{error.filename!s:.200}"
    return f"{place} cannot be used: {error.strerror}; name another."


def _interrupted(error: BaseException | None) -> bool:
    """Whether a Ctrl-C caused an exception, as where it hits the import of an extension module."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _describe_bug(error: BaseException, *, debug: bool) -> str:
    """One sentence about an unexpected exception, which is written to a temporary file; `debug` prints the traceback,
    too."""
    details = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(details)
    # The text of an error of another process is its traceback, whose last line names the error.
    summary = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    head = f"Tunesmith {__version__}, Python {platform.python_version()} on {platform.platform()}\n"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="tunesmith-crash-", suffix=".log", delete=False) as log:
            log.write(f"{head}command: {' '.join(sys.argv)}\n\n{details}\n")
        place = f"Details are in {log.name}; please report it with that file."
    except OSError:
        place = "--debug shows the details."
    return f"This is a bug in Tunesmith: {summary[:300].rstrip('.')}. {place}"


def _fail(message: str, code: int) -> NoReturn:
    # A file's name may have bytes that cannot be printed.
    with contextlib.suppress(OSError):  # standard error may be full, too
        echo(f"tunesmith: {message.encode(errors='backslashreplace').decode()}", err=True)
    sys.exit(code)


def _end_interrupted() -> NoReturn:
    typer.echo("\nInterrupted.", err=True)
    sys.exit(EXIT_INTERRUPTED)


def _discard_output() -> None:
    """Sends the rest of standard output nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line with `arguments`, or this process's; ends with `SystemExit`."""
    _interrupt_on_signals()
    _open_closed_streams()
    # Characters that cannot be encoded, as in a path of arbitrary bytes, are shown by their numbers.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
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
        # The reader of our output went away (`tunesmith tasks | head`), which is not a failure.
        _discard_output()
        sys.exit(EXIT_DONE)
    except Exception as error:  # noqa: BLE001 - a traceback is shown only with --debug
        if _interrupted(error):
            _end_interrupted()
        if sentence := _refusal(error):
            if getattr(error, "filename", None) is None:
                _discard_output()
            _fail(sentence, EXIT_MISTAKE)
        _fail(_describe_bug(error, debug="--debug" in given), EXIT_BUG)


if __name__ == "__main__":
    main()
