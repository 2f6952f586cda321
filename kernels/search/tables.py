"""Files of measured configurations, in and out: Kernel Tuner's cache files, and T4 of Kernel Tuner, KTT and BAT.

A cache file is JSON, plain or gzip, also cut short by a killed run. `tune_params` maps a name to its values, `cache`
the values of a configuration, joined by commas, to its record with `time`, `times`, `compile_time` and `benchmark_time`
in milliseconds; `time` is a text such as "RuntimeFailedConfig" where the configuration failed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.space import Domain, Space
from tunesmith.kernels.spec.taskfile import explain
from tunesmith.kernels.spec.template import Config, Parameter

_FAILED_VALUE = 1e19
"""Old files write 1e20 for a failure; no kernel runs for so many milliseconds."""
_FAILURE_OF_ERROR = {
    "CompilationFailedConfig": "compile_failed",
    "RuntimeFailedConfig": "launch_failed",
    "InvalidConfig": "rejected",
}
_ERROR_OF_FAILURE = {failure: error for error, failure in _FAILURE_OF_ERROR.items()}
MAX_REPAIRS = 64
"""Ends of records that are tried as the end of a file that was cut short."""


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """The outcome of one configuration. Times in milliseconds; `time` is None where it failed, for `failure`."""

    config: Config
    time: float | None
    failure: str | None = None
    times: tuple[float, ...] = ()
    compile_time: float = 0.0
    benchmark_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """A cache file: the space of exactly its configurations, and the result of each point."""

    name: str
    space: Space
    results: Mapping[int, ConfigResult]

    @property
    def optimum(self) -> float:
        """The smallest time, in milliseconds."""
        return min(one.time for one in self.results.values() if one.time is not None)


def read_cache(path: Path) -> Table:
    """Reads the cache file at `path`; one cut short gives the records that are complete.

    Raises `TunesmithError` when it is not such a file or holds no configuration that was measured.
    """
    data, rows, results, at = _parse(path), [], [], "tune_params"
    try:
        listed = data["tune_params"]
        names = data.get("tune_params_keys") or list(listed)
        if sorted(names) != sorted(listed):
            raise TunesmithError(
                f"{path}: tune_params_keys must name each of tune_params once; it names {', '.join(map(repr, names))}."
            )
        parameters = tuple(Parameter(name=name, values=tuple(listed[name])) for name in names)
        domain = Domain(parameters)
        for key, record in data["cache"].items():
            at = f"the configuration {key}"
            row = domain.encode({name: record[name] for name in names if name in record})
            if isinstance(row, Rejected):
                raise TunesmithError(f"{path}: {at} does not fit tune_params: {row.detail}")
            time, failure = record["time"], None
            if isinstance(time, str | bool) or not 0 < time < _FAILED_VALUE:
                time, failure = None, record.get("failure") or _FAILURE_OF_ERROR.get(str(time), "launch_failed")
            costs = (float(record.get(cost) or 0.0) for cost in ("compile_time", "benchmark_time"))
            rows.append(row)
            results.append(ConfigResult(domain.config(row), time, failure, (), *costs))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = explain(error, data) if isinstance(error, ValidationError) else repr(error)
        raise TunesmithError(f"{path} is not a Kernel Tuner cache file: {at}: {why}.") from error
    if all(one.failure is not None for one in results):
        raise TunesmithError(f"{path} holds no configuration that was measured; record it again.")
    name, codes = path.name.removesuffix(".gz").removesuffix(".json"), np.array(rows, dtype=np.uint16)
    space = Space.from_codes(parameters, codes, f"The table {name}")
    points = space.points_of(codes)
    return Table(name, space, {point: one for point, one in zip(points, results, strict=True) if point is not None})


def write_cache(
    path: Path,
    parameters: Sequence[Parameter],
    records: Iterable[ConfigResult],
    *,
    device: str,
    kernel: str,
    problem_size: str | int | Sequence[int] = "",
) -> int:
    """Writes `records` to `path` (gzip when it ends in .gz) for Kernel Tuner and `read_cache`; gives their number.

    The kind of failure is kept beside Kernel Tuner's coarser name for it. A file that exists is replaced.
    """
    names = [parameter.name for parameter in parameters]
    cache: dict[str, Any] = {}
    for record in records:
        time: Any = {"time": record.time}
        if record.failure is not None:
            error = _ERROR_OF_FAILURE.get(record.failure, "RuntimeFailedConfig")
            time = {"time": error, "failure": record.failure}
        cache[",".join(str(record.config[name]) for name in names)] = {
            **{name: record.config[name] for name in names},
            **time,
            "times": list(record.times),
            "compile_time": record.compile_time,
            "verification_time": 0,
            "benchmark_time": record.benchmark_time,
        }
    data = {
        "device_name": device,
        "kernel_name": kernel,
        "problem_size": problem_size,
        "tune_params_keys": names,
        "tune_params": {parameter.name: list(parameter.values) for parameter in parameters},
        "objective": "time",
        "cache": cache,
    }
    # Kernel Tuner looks for one record a line and the closing braces on lines of their own.
    head = json.dumps({**data, "cache": {}}, indent=0)
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in cache.items())
    text = head[: head.rindex("{}")] + "{\n" + body + "}\n}"
    raw = text.encode()
    # A fixed time stamp: the same records give the same bytes.
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return len(cache)


def _parse(path: Path) -> dict[str, Any]:
    """The file's object; that of a file that was cut short ends after its last complete record."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            # Not gzip.decompress: this gives the readable part of a file that ends too early.
            raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw)
    except OSError as error:
        raise TunesmithError(f"The file {path} cannot be read: {error.strerror}.") from error
    except zlib.error as error:
        raise TunesmithError(f"The file {path} is damaged ({error}); copy it again.") from error
    text, ending = raw.decode("utf-8-sig", errors="replace"), ""
    for _ in range(1 + MAX_REPAIRS):
        try:
            data = json.loads(text + ending)
        except json.JSONDecodeError:
            # Up to the closing brace before the brace that was tried last.
            text, ending = text[: text.rfind("}", 0, len(text) - len(ending[:1])) + 1], "}}"
        else:
            return data if isinstance(data, dict) else {}
    raise TunesmithError(f"{path} is not a Kernel Tuner cache file: it holds no JSON object that can be completed.")


T4_VERSION = "1.0.0"
_INVALIDITIES = {
    "compile_failed": "compile",
    "rejected": "constraints",
    "timed_out": "timeout",
    "wrong_result": "correctness",
}
_FAILURES = {invalidity: failure for failure, invalidity in _INVALIDITIES.items()}


def write_t4(path: Path, records: Iterable[ConfigResult]) -> int:
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
    data = {"results": results, "schema_version": T4_VERSION, "metadata": {"timeunit": "milliseconds"}}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return len(results)


def read_t4(path: Path) -> list[ConfigResult]:
    """The results in the file at `path`, times in milliseconds. Raises `TunesmithError`."""
    data = _parse(path)
    try:
        if str(data["schema_version"]).split(".")[0] != T4_VERSION.split(".")[0]:
            raise TunesmithError(
                f"{path} has the schema version {data['schema_version']}; this version reads {T4_VERSION}."
            )
        return [_record(path, number, one) for number, one in enumerate(data["results"], 1)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TunesmithError(f"{path} is not a results file in the format T4: {error!r}.") from error


def read_results(path: Path) -> tuple[list[ConfigResult], str]:
    """The results, and the name, of a file in either format. Raises `TunesmithError`."""
    if "schema_version" in _parse(path):
        return read_t4(path), path.stem
    table = read_cache(path)
    return list(table.results.values()), table.name


def _record(path: Path, number: int, one: dict[str, Any]) -> ConfigResult:
    times, valid = one["times"], one["invalidity"] == "correct"
    objective = (one.get("objectives") or ["time"])[0]
    values = {item["name"]: item["value"] for item in one.get("measurements", [])}
    time = values.get(objective)
    if valid and not (isinstance(time, int | float) and math.isfinite(time) and time > 0):
        raise TunesmithError(f"{path}, result {number}: it is correct, but has no measurement of {objective}.")
    return ConfigResult(
        config=dict(one["configuration"]),
        time=float(time) if valid and time is not None else None,
        failure=None if valid else _FAILURES.get(one["invalidity"], "launch_failed"),
        times=tuple(map(float, times.get("runtimes", ()))),
        # The schema says compilation_time, Kernel Tuner writes compilation.
        compile_time=float(times.get("compilation_time", times.get("compilation", 0.0)) or 0.0),
        benchmark_time=float(times.get("benchmark", 0.0) or 0.0),
    )
