"""The processes that another has started, from /proc."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def _read(pid: int) -> tuple[bytes, list[str]]:
    """The command line and what /proc/PID/stat has after the name: state, parent, ...; nothing where it has ended."""
    try:
        process = Path(f"/proc/{pid}")
        return (process / "cmdline").read_bytes(), (process / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return b"", []


def _processes() -> dict[int, tuple[bytes, list[str]]]:
    return {int(entry.name): _read(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def below(pid: int) -> set[int]:
    """The processes started by `pid`, directly or not."""
    parents = {child: int(stat[1]) for child, (_, stat) in _processes().items() if stat}
    found, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def naming(text: str) -> set[int]:
    """Processes with `text` in their command line, whoever is their parent by now."""
    return {pid for pid, (command, _) in _processes().items() if text.encode() in command}


def alive(pids: Iterable[int]) -> set[int]:
    """Those that have not ended. Ray's own two agents notice the death of their node only a minute later."""
    found = {pid: _read(pid) for pid in pids}
    return {
        pid
        for pid, (command, stat) in found.items()
        if stat and stat[0] != "Z" and b"Agent" not in command.split(b"\0")[0]
    }
