"""Lines of a drafted task that are still to be filled in: each carries a comment that begins with `# FILL:`.

Owns the mark and the sentence; who writes such lines is `tunesmith.kernels.rewrite.draft`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tunesmith.kernels.spec.task import TaskError

MARK = "# FILL:"
_MARKED = re.compile(rf"{MARK}[ \t]*(.*)")


def require_filled(files: Mapping[Path, str]) -> None:
    """Raises `TaskError` for the first line of `files`, texts by their paths, that is still to be filled in."""
    lines = [(path, at, line) for path, text in files.items() for at, line in enumerate(text.splitlines(), 1)]
    marked = [(path, number, _MARKED.search(line)) for path, number, line in lines]
    left = [(path, number, found.group(1).rstrip(". ")) for path, number, found in marked if found is not None]
    if left:
        (path, number, what), more = left[0], len(left) - 1
        others = f" ({more} more line{'s' if more > 1 else ''} after it)" if more else ""
        raise TaskError(
            f"{path}, line {number}, is still to be filled in: {what}; then delete its comment `{MARK} ...`{others}."
        )
