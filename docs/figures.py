"""The figures of a page, held against the result files that it names."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_NOT_MEASURED = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|\]\([^)]*\)|[\w-]+\.json", re.DOTALL)
_FIGURE = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(\s?%)?(?!\w)")


def unfounded(page: str) -> list[str]:
    """The decimal numbers and percentages of a page that are in none of the result files which their section names, as
    they stand there, as a share, an inverse, or in another unit of time; what no section names a file for is not looked
    at, nor code and quotations."""
    found = []
    for section in re.split(r"\n(?=#+ )", page):
        files = {RESULTS / name for name in re.findall(r"[\w-]+\.json", section)}
        known = [value for file in files if file.exists() for value in _numbers(json.loads(file.read_text("utf-8")))]
        for figure, percent in _FIGURE.findall(_NOT_MEASURED.sub(" ", section)) if known else ():
            shown, decimals = float(figure.replace(",", "")), len(figure.partition(".")[2])
            forms = (abs(form - shown) for value in known for form in _forms(value))
            if (decimals or percent) and not any(off <= 0.5001 * 10**-decimals for off in forms):
                found.append(figure + percent)
    return found


def _forms(value: float) -> Iterator[float]:
    yield from (value, 100 * value, 100 * abs(value - 1), 1e3 * value, 1e6 * value, 1e-3 * value)
    if value:
        yield 1 / value


def _numbers(data: Any) -> Iterator[float]:
    """All numbers of a result file, those in its texts too, and the lengths of its lists."""
    if isinstance(data, dict):
        data = [*data, *data.values()]
    if isinstance(data, list):
        yield len(data)
        for one in data:
            yield from _numbers(one)
    elif isinstance(data, str):
        yield from (float(text.replace(",", "")) for text, _ in _FIGURE.findall(data))
    elif data is not None:
        yield float(data)
