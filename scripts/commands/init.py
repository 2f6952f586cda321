"""`tunesmith init`: a draft of a task, written into a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from tunesmith.cli.app import echo
from tunesmith.graph.settings import require_new_folder
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.reader.draft import draft
from tunesmith.kernels.rewrite.template import left_alone
from tunesmith.kernels.spec.foreign import read_definition, read_t1
from tunesmith.kernels.spec.taskfile import MARK, read_source, read_task
from tunesmith.kernels.triton.draft import draft_triton


def init(
    source: Annotated[
        Path,
        typer.Argument(
            help="A CUDA or OpenCL source, a Triton kernel (model.py or model.py:kernel), a T1 file (.json), or a "
            "definition of FlashInfer-Bench (.json)."
        ),
    ],
    entry: Annotated[str | None, typer.Option(help="The kernel's name, where the source has several.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="What the kernel of a T1 file computes, on flat arrays."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A new or empty folder for the task (default: the kernel's name).", show_default=False),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(
            "-I", "--include", file_okay=False, exists=True, help="A folder of your headers; may be repeated."
        ),
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option("-D", "--define", metavar="NAME[=VALUE]", help="A macro of your build; may be repeated."),
    ] = None,
) -> None:
    """Draft a task from a kernel, a T1 file or a definition; a mark stands where your answer is needed."""
    file, colon, kernel = str(source).rpartition(":")
    if colon and file.endswith(".py"):
        if entry is not None:
            raise TunesmithError(f"--entry: {source} names the kernel already; leave one of them out.")
        source, entry = Path(file), kernel
    if not source.is_file():
        raise TunesmithError(f"SOURCE: there is no file {source}.")
    drafted = None
    if source.suffix == ".json":
        if include or define or entry is not None:
            raise TunesmithError("-I, -D and --entry: they go with a kernel's source; leave them out for a JSON file.")
        if (drafted := read_definition(source)) is None:
            drafted, reference = read_t1(source, reference), None
    if reference is not None:
        raise TunesmithError("--reference: it goes with a T1 file (.json); a draft from a source has one to fill in.")
    if source.suffix == ".toml":
        raise TunesmithError(f"SOURCE: {source} is not a source: give a .cu, .cl or .py file or a T1 file (.json).")
    if source.suffix == ".py" and (include or define):
        raise TunesmithError("-I, -D: they go with CUDA and OpenCL sources; leave them out for a Triton kernel.")
    if drafted is None:
        text, macros = read_source(source, "SOURCE"), dict(map(_macro, define or ()))
        is_triton = source.suffix == ".py"
        drafted = draft_triton(source, entry) if is_triton else draft(text, entry, str(source), include or (), macros)
    name, files = drafted
    folder = _write(Path(name) if out is None else out, files)
    asked = [
        f"  {folder / file}, line {number}: {line.split(f' {MARK} ')[1]}"
        for file, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if not file.startswith("baseline.") and f" {MARK} " in line
    ]
    if not asked:
        read_task(folder / "task.toml")
    lines = f"a draft of the task {name}, with {len(asked)} line(s) to fill in:" if asked else f"the task {name}."
    echo("\n".join([f"{folder}: {lines}", *asked]))
    for why in left_alone(files, name) if source.suffix not in (".py", ".json") else ():
        echo(f"The rules leave this kernel as it is: {why}.")
    echo(f"Then: tunesmith tune {quote(str(folder))}")


def _macro(text: str) -> tuple[str, str]:
    """Name and value of a macro as compilers take it: NAME stands for 1."""
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\n" in value:
        raise TunesmithError(f"-D: {text!r} is not of the form NAME or NAME=VALUE.")
    return name, value if equals else "1"


def _write(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes the files into a new or empty folder, or leaves it as it was."""
    require_new_folder(folder, "--out")
    there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        with suppress(OSError):
            for name in files:
                (folder / name).unlink(missing_ok=True)
            if not there:
                folder.rmdir()
        raise TunesmithError(f"--out: {folder} cannot be written ({error.strerror}); choose another folder.") from error
    return folder
