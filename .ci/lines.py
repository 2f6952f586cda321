"""Counts what `[tool.tunesmith.lines]` in pyproject.toml bounds, and fails above a bound: lines of Python by folder,
Python files and classes outside tests. Long functions, long parameter lists and templates are listed without a bound.

    python .ci/lines.py [FOLDER]    # the project's, which is the current one if left out
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

LONG_FUNCTION = 60
"""Lines, with decorators and docstring."""
MANY_PARAMETERS = 8
"""Without `self` and `cls`."""


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def remarks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    length, arguments = (function.end_lineno or first) - first + 1, function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    parameters = sum(one is not None and one.arg not in ("self", "cls") for one in given)
    found = [f"{length} lines"] if length > LONG_FUNCTION else []
    return found + ([f"{parameters} parameters"] if parameters > MANY_PARAMETERS else [])


def main(root: Path) -> int:
    budget = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["tunesmith"]["lines"]
    files = {room: sorted((root / room).rglob("*.py")) for room in budget["rooms"]}
    counted = {room: sum(map(lines, paths)) for room, paths in files.items()}
    product = [path for room, paths in files.items() if room != "tests" for path in paths]
    classes = 0
    for path in product:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            classes += isinstance(node, ast.ClassDef)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (found := remarks(node)):
                print(f"{path.relative_to(root)}:{node.lineno}: {node.name} has {' and '.join(found)}")
    templates = {path for room in files if room != "tests" for path in (root / room).rglob("*.j2")}
    print(f"templates (.j2): {sum(map(lines, templates))} lines, {len(templates)} files")
    bounds = budget["rooms"] | {"files": budget["files"], "classes": budget["classes"]}
    counted |= {"files": len(product), "classes": classes}
    for name, bound in bounds.items():
        print(f"{name:10}{counted[name]:8,} of {bound:,}{'   OVER BUDGET' if counted[name] > bound else ''}")
    return int(any(counted[name] > bound for name, bound in bounds.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
