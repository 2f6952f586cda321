"""The results format T4 of Kernel Tuner, KTT and BAT, in and out: every configuration with what became of it.

Owns the file format (JSON, schema 1.0.0 of the TuningSchema project): `results` lists for each configuration its
values, `times` of compiling and of launches in milliseconds, `invalidity` with the kind of failure or "correct", and
`measurements`, among them the objective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunesmith.kernels.search.cachefile import CacheFileError, Record

VERSION = "1.0.0"
_INVALIDITIES = {
    "compile_failed": "compile",
    "rejected": "constraints",
    "timed_out": "timeout",
    "wrong_result": "correctness",
}
_FAILURES = {
    "compile": "compile_failed",
    "constraints": "rejected",
    "timeout": "timed_out",
    "correctness": "wrong_result",
    "runtime": "launch_failed",
}


def write_t4(path: Path, records: Iterable[Record]) -> int:
    """Writes `records` to `path`, and gives their number. A file that exists is replaced."""
    results = []
    for record in records:
        failed = record.failure is not None
        results.append(
            {
                "configuration": dict(record.config),
                "times": {
                    "compilation_time": record.compile_time,
                    "benchmark": record.benchmark_time,
                    "framework": 0.0,
                    "search_algorithm": 0.0,
                    "validation": 0.0,
                    "runtimes": list(record.times),
                },
                "invalidity": _INVALIDITIES.get(str(record.failure), "runtime") if failed else "correct",
                "correctness": 0.0 if record.failure == "wrong_result" else 1.0,
                "measurements": [] if failed else [{"name": "time", "value": record.time, "unit": "ms"}],
                "objectives": ["time"],
            }
        )
    data = {"results": results, "schema_version": VERSION, "metadata": {"timeunit": "milliseconds"}}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return len(results)


def is_t4(path: Path) -> bool:
    """Whether the file at `path` says that it is a results file; one that cannot be read is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "results" in data and "schema_version" in data


def read_t4(path: Path) -> list[Record]:
    """The results in the file at `path`, times in milliseconds. Raises `CacheFileError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        if str(data["schema_version"]).split(".")[0] != VERSION.split(".")[0]:
            raise CacheFileError(
                f"{path} has the schema version {data['schema_version']}; this version reads {VERSION}."
            )
        return [_record(path, number, one) for number, one in enumerate(data["results"], 1)]
    except OSError as error:
        raise CacheFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheFileError(f"{path} is not a results file in the format T4: {error!r}.") from error


def _record(path: Path, number: int, one: dict[str, Any]) -> Record:
    times, valid = one["times"], one["invalidity"] == "correct"
    objective = (one.get("objectives") or ["time"])[0]
    values = {item["name"]: item["value"] for item in one.get("measurements", [])}
    time = values.get(objective)
    if valid and not (isinstance(time, int | float) and math.isfinite(time) and time > 0):
        raise CacheFileError(f"{path}, result {number}: it is correct, but has no measurement of {objective}.")
    return Record(
        config=dict(one["configuration"]),
        time=float(time) if valid and time is not None else None,
        failure=None if valid else _FAILURES.get(one["invalidity"], "launch_failed"),
        times=tuple(map(float, times.get("runtimes", ()))),
        # The schema says compilation_time, Kernel Tuner writes compilation.
        compile_time=float(times.get("compilation_time", times.get("compilation", 0.0)) or 0.0),
        benchmark_time=float(times.get("benchmark", 0.0) or 0.0),
    )
