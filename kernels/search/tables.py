"""Files of measured configurations, in and out: Kernel Tuner's cache files, and T4 of Kernel Tuner, KTT and BAT.

Owns the formats (a cache file is JSON, plain or gzip, also cut short by a killed run) and `Table`, a cache file as
arrays. What a search would have done on a table is in `tunesmith.kernels.search.simulate`.

A cache file: `tune_params` maps a name to its values, `tune_params_keys` gives their order, and `cache` maps the values
of a configuration, joined by commas, to its record with `time`, `times`, `compile_time` and `benchmark_time` in
milliseconds; `time` is a text such as "RuntimeFailedConfig" where the configuration failed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import Rejected
from tunesmith.kernels.space import Codes, Domain, Space
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


class CacheFileError(TunesmithError):
    """A file is not a Kernel Tuner cache file, or nothing in it can be used."""


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """What became of one configuration. Times in milliseconds; `time` is None where it failed, for `failure`."""

    config: Config
    time: float | None
    failure: str | None = None
    times: tuple[float, ...] = ()
    compile_time: float = 0.0
    benchmark_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """A cache file as arrays, one element a configuration, in the order of the file.

    codes: positions of the values, shape (configurations, parameters). times: milliseconds, NaN where it failed.
    failures: kind of failure or None. costs: milliseconds of compiling and measuring.
    """

    name: str
    parameters: tuple[Parameter, ...]
    codes: Codes
    times: NDArray[np.float64]
    failures: tuple[str | None, ...]
    costs: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def optimum(self) -> float:
        """The smallest time, in milliseconds."""
        return float(np.nanmin(self.times))

    def space(self) -> Space:
        """The space of exactly the configurations in the table."""
        return Space.from_codes(self.parameters, self.codes, f"The table {self.name}")


Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class _CacheEntry(BaseModel):
    """A record: the fields read here, and in `model_extra` the values of its configuration, among other fields."""

    model_config = ConfigDict(extra="allow")

    time: bool | int | float | str | None = None
    failure: str | None = None
    compile_time: Milliseconds = None
    benchmark_time: Milliseconds = None


class _CacheFile(BaseModel):
    """The object that a cache file holds, as far as it is read here."""

    tune_params: dict[str, list[bool | int | float | str]]
    tune_params_keys: list[str] | None = None
    cache: dict[str, _CacheEntry]


def read_cache(path: Path) -> Table:
    """Reads the cache file at `path`; one cut short gives the records that are complete.

    Raises `CacheFileError` when it is not such a file or holds no configuration that was measured.
    """
    data = _parse(path)
    try:
        file = _CacheFile.model_validate(data)
    except ValidationError as error:
        raise CacheFileError(f"{path} is not a Kernel Tuner cache file: {explain(error, data)}.") from error
    names = file.tune_params_keys or list(file.tune_params)
    if missing := sorted(set(names) - set(file.tune_params)) or sorted({n for n in names if names.count(n) > 1}):
        raise CacheFileError(
            f"{path} is not a Kernel Tuner cache file: tune_params_keys must name each of tune_params once, and "
            f"'{missing[0]}' does not."
        )
    try:
        parameters = tuple(Parameter(name=name, values=tuple(file.tune_params[name])) for name in names)
    except ValidationError as error:
        why = explain(error, data)
        raise CacheFileError(f"{path}: tune_params cannot be the parameters of a search: {why}.") from error
    domain = Domain(parameters)
    rows, times, failures, costs = [], [], [], []
    for key, record in file.cache.items():
        values = {name: value for name, value in (record.model_extra or {}).items() if name in names}
        if odd := [name for name, value in values.items() if not isinstance(value, bool | int | float | str)]:
            raise CacheFileError(f"{path}: the configuration {key} has no number or text for {odd[0]}.")
        row = domain.encode(values)
        if isinstance(row, Rejected):
            raise CacheFileError(f"{path}: the configuration {key} does not fit tune_params: {row.detail}")
        time, failure = _outcome(path, key, record)
        rows.append(row)
        times.append(time)
        failures.append(failure)
        costs.append((record.compile_time or 0.0) + (record.benchmark_time or 0.0))
    if all(failure is not None for failure in failures):
        raise CacheFileError(f"{path} holds no configuration that was measured; record it again.")
    return Table(
        name=path.name.removesuffix(".gz").removesuffix(".json"),
        parameters=parameters,
        codes=np.array(rows, dtype=np.uint16),
        times=np.array(times, dtype=np.float64),
        failures=tuple(failures),
        costs=np.array(costs, dtype=np.float64),
    )


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


def _outcome(path: Path, key: str, record: _CacheEntry) -> tuple[float, str | None]:
    time = record.time
    if isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < _FAILED_VALUE:
        return float(time), None
    if time is not None:
        return float("nan"), record.failure or _FAILURE_OF_ERROR.get(str(time), "launch_failed")
    raise CacheFileError(f"{path}: the configuration {key} has no time; remove it or record it again.")


def _parse(path: Path) -> dict[str, Any]:
    """The file's object; that of a file that was cut short ends after its last complete record."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            # Not gzip.decompress: this gives the readable part of a file that ends too early.
            raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw)
    except OSError as error:
        raise CacheFileError(f"The cache file {path} cannot be read: {error.strerror}.") from error
    except zlib.error as error:
        raise CacheFileError(f"The cache file {path} is damaged ({error}); copy it again.") from error
    text, ending = raw.decode("utf-8", errors="replace"), ""
    for _ in range(1 + MAX_REPAIRS):
        try:
            data = json.loads(text + ending)
        except json.JSONDecodeError:
            # Up to the closing brace before the last one that was tried.
            text, ending = text[: text.rfind("}", 0, len(text) - len(ending[:1])) + 1], "}}"
            continue
        if isinstance(data, dict):
            return data
        break
    raise CacheFileError(f"{path} is not a Kernel Tuner cache file: it holds no JSON object that can be completed.")


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


def is_t4(path: Path) -> bool:
    """Whether the file at `path` can be read and says that it is a results file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "results" in data and "schema_version" in data


def read_t4(path: Path) -> list[ConfigResult]:
    """The results in the file at `path`, times in milliseconds. Raises `CacheFileError`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        if str(data["schema_version"]).split(".")[0] != T4_VERSION.split(".")[0]:
            raise CacheFileError(
                f"{path} has the schema version {data['schema_version']}; this version reads {T4_VERSION}."
            )
        return [_record(path, number, one) for number, one in enumerate(data["results"], 1)]
    except OSError as error:
        raise CacheFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheFileError(f"{path} is not a results file in the format T4: {error!r}.") from error


def _record(path: Path, number: int, one: dict[str, Any]) -> ConfigResult:
    times, valid = one["times"], one["invalidity"] == "correct"
    objective = (one.get("objectives") or ["time"])[0]
    values = {item["name"]: item["value"] for item in one.get("measurements", [])}
    time = values.get(objective)
    if valid and not (isinstance(time, int | float) and math.isfinite(time) and time > 0):
        raise CacheFileError(f"{path}, result {number}: it is correct, but has no measurement of {objective}.")
    return ConfigResult(
        config=dict(one["configuration"]),
        time=float(time) if valid and time is not None else None,
        failure=None if valid else _FAILURES.get(one["invalidity"], "launch_failed"),
        times=tuple(map(float, times.get("runtimes", ()))),
        # The schema says compilation_time, Kernel Tuner writes compilation.
        compile_time=float(times.get("compilation_time", times.get("compilation", 0.0)) or 0.0),
        benchmark_time=float(times.get("benchmark", 0.0) or 0.0),
    )
