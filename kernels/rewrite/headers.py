"""A source with the headers and macros of its own build: what its author's compiler sees, in one text.

Owns how includes of the author's own files are found and put in the place of their lines. CUDA's own headers stay
includes; what the text may contain in the end is for `tunesmith.kernels.build.guard`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS, STANDARD
from tunesmith.kernels.rewrite.device_code import BUILT_IN
from tunesmith.kernels.rewrite.source import SourceError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
MAX_SOURCE_LENGTH = 1 << 20
"""Characters of a source with all of its headers, at most."""


def whole_source(code: str, where: Path, folders: Sequence[Path] = (), defines: Mapping[str, str] | None = None) -> str:
    """`code` with the headers that are found beside it, beside one another or in `folders`, each where it is first
    included, and with macros ahead of it. Raises `SourceError` where one is not found, or the text becomes too long."""
    seen: set[Path] = set()

    def found(name: str, among: Sequence[Path]) -> Path | None:
        return next((path for folder in among if (path := folder / name).is_file()), None)

    def filled(text: str, file: Path) -> str:
        def put(match: re.Match[str]) -> str:
            name, quoted = match[1] or match[2], match[1] is not None
            path = found(name, (file.parent, *folders) if quoted else folders)
            if path is None:
                known = name in HEADERS or name in STANDARD or name in BUILT_IN or name.startswith(HEADER_FOLDERS)
                if quoted and not known:
                    raise SourceError(f"{file}: its header {name} was not found; name the folder that has it with -I.")
                return match[0]
            path = path.resolve()
            if path in seen:
                return ""
            seen.add(path)
            try:
                inner = path.read_text(encoding="utf-8-sig")
            except OSError as error:
                raise SourceError(f"{file}: its header {path} cannot be read: {error.strerror}.") from error
            except UnicodeDecodeError as error:
                raise SourceError(f"{file}: its header {path} is not UTF-8 text: save it as UTF-8.") from error
            return filled(_ONCE.sub("", inner), path)

        made = _INCLUDE.sub(put, text)
        if len(made) > MAX_SOURCE_LENGTH:
            raise SourceError(
                f"{where}: with its headers the source is longer than {MAX_SOURCE_LENGTH} characters; take less along."
            )
        return made

    lines = [f"#define {name} {value}".rstrip() for name, value in (defines or {}).items()]
    return "\n".join([*lines, filled(code, where)])
