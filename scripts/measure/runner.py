"""Shared by the measuring programs: the options, the record, and the modules of tests that they use.

    python scripts/measure/PROGRAM.py --out OUT [--commit COMMIT] ...       # without an installation: PYTHONPATH=.

OUT is a file that ends with .json, or a folder, which gets PROGRAM.json. The record has command, commit, device and
versions, and is written after each row, so that no measurement is lost when a later row fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tunesmith.graph.results.summary import versions
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scipy", "torch", "triton")
"""Further packages whose versions a record has."""


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The parser of a program whose docstring is `text`, with the options that all programs have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the record, or a folder for it")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", "unknown"), help="the measured commit")
    return parser


def add_shares(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=int, default=0, help="the number of this device, and of its share, from 0")
    parser.add_argument("--of", type=int, default=1, help="how many devices share the work")


class Record:
    """The record of a call with `options` on `device`."""

    def __init__(self, options: argparse.Namespace, device: DeviceInfo | None = None) -> None:
        if options.out is None:
            raise TunesmithError("--out is missing: name a file that ends with .json, or a folder.")
        program = Path(sys.argv[0]).stem
        self.path: Path = options.out if options.out.suffix == ".json" else options.out / f"{program}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._content: dict[str, Any] = {
            "command": "python " + shlex.join(sys.argv),
            "commit": options.commit,
            "device": None if device is None else device.to_json(),
            "cores": os.cpu_count(),
            "versions": {"python": sys.version.split()[0], **versions(*PACKAGES)},
        }

    def former(self, rows: str, key: str) -> dict[str, dict[str, Any]]:
        """The rows of an earlier call by their `key`; empty without a file."""
        if not self.path.exists():
            return {}
        return {row[key]: row for row in json.loads(self.path.read_text(encoding="utf-8"))[rows]}

    def write(self, **found: Any) -> None:
        """Replaces the entries of these names in the file."""
        self._content |= found
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self._content, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self.path)


def module_of_tests(folder: str, name: str) -> Any:
    """The module `name` in `folder` of tests, which processes that are started from here find too."""
    path = str(ROOT / "tests" / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
        os.environ["PYTHONPATH"] = os.pathsep.join([path, str(ROOT), os.environ.get("PYTHONPATH", "")])
    return import_module(name)


def execute(main: Callable[[], int]) -> NoReturn:
    """Ends the process as `main` says; a user's mistake is one sentence and exit code 2."""
    try:
        code = main()
    except TunesmithError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
