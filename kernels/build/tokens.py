"""C's tokens, as far as rules about sources need them (C++17, [lex.phases])."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<char>'(?:[^'\\\n]|\\.)*')"
    r"|(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Fa-f]|[A-Za-z0-9_.])*)|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<stray>[\"']|/\*)|(?P<other>[^A-Za-z_$0-9\"'/.]+|[/.])",
    re.DOTALL,
)
"""The named group that matched is the kind of the token. `stray`: a quote or a comment that does not end; `other`:
white space and punctuation, of any length."""


def splice(source: str) -> str:
    """The text with one kind of line end and with continued lines joined."""
    return re.sub(r"\\[ \t\f\v]*\n", "", source.replace("\r\n", "\n").replace("\r", "\n"))
