"""Compiled kernels as values, the request to evaluate a configuration, and the cache of compiled kernels on disk.

A key of the cache consists of the source with its options, the compiler's version, the architecture, and our own code
that stands between a source and its artifact. An entry is one file that carries its own checksum. It is written beside
its place and renamed, so that any number of processes may share a folder; the least recently used entries go when the
folder outgrows its bound. Nothing that happens to the folder fails an evaluation: entries that cannot be read are
compiled again, and entries that cannot be written are not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from tunesmith.hw.errors import TunesmithError, named_path
from tunesmith.kernels.build.source import CodeKey, Specialised, code_key
from tunesmith.kernels.outcome import CompileFailed, Rejected, Resources
from tunesmith.kernels.spec.task import Geometry, Task, Workload
from tunesmith.kernels.spec.template import Config, Template, config_key


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """arguments: the types of the arguments that a launch passes, by their places among the task's; threads: of a
    block; shared_bytes: dynamic shared memory; cluster: blocks of a cluster; cooperative: all blocks are resident
    together; scratch_bytes: global memory for each block."""

    arguments: tuple[tuple[int, str], ...]
    threads: int
    shared_bytes: int
    cluster: int = 1
    cooperative: bool = False
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """Machine code for one architecture. code: cubin or OpenCL program binary; digest: of the source it came from;
    globals: variables that kernels can write and that outlast a launch; call: how a launch differs from the task's
    arguments and the template's geometry, where a compiler decides that (Triton); unfollowed: as of
    `tunesmith.kernels.build.machine_code.unfollowed`."""

    backend: str
    arch: str
    entry: str
    code: bytes = field(repr=False)
    digest: str
    resources: Resources = field(default_factory=Resources)
    globals: tuple[str, ...] = ()
    call: CompiledCall | None = None
    unfollowed: tuple[str, ...] = ()

    @property
    def code_digest(self) -> str:
        """Content hash of the machine code, and of how it is called: the same code may take other arguments."""
        called = b"" if self.call is None else repr(self.call).encode()
        return hashlib.sha256(self.code + called).hexdigest()[:16]

    def as_launched(self, shape: Geometry) -> Geometry:
        """`shape`, with the block that a launch really has where the compiler decides it."""
        return shape if self.call is None else replace(shape, block=(self.call.threads, 1, 1))


_ARTIFACT = TypeAdapter(Artifact)
TypesKey = tuple[tuple[str, str], ...]


def types_key(workload: Workload) -> TypesKey:
    """The part of a workload that decides the machine code."""
    return tuple(sorted(workload.types.items()))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of a template, compiled: an artifact for each combination of types it is to run with."""

    template: Template
    config: Config
    artifacts: Mapping[CodeKey, Artifact] = field(repr=False)

    @property
    def digests(self) -> tuple[str, ...]:
        """The content hashes of the machine code, of all combinations of types, in the order of their keys."""
        return tuple(self.artifacts[key].code_digest for key in sorted(self.artifacts))

    def for_workload(self, task: Task, workload: Workload) -> Candidate:
        """The same with the machine code for one workload alone, which another process receives sooner."""
        key = code_key(task, self.template, workload)
        return replace(self, artifacts={key: self.artifacts[key]})


def undeclared_state(template: Template, artifact: Artifact) -> Rejected | None:
    """Why a kernel may not run that keeps state which the template does not declare, or None."""
    if not (kept := [name for name in artifact.globals if name not in template.device_globals]):
        return None
    return Rejected(
        "device_state",
        "device globals",
        f"by {', '.join(kept)[:200]} the kernel can tell one launch from another: do without, pass it as an argument, "
        "put a constant table in __constant__ memory, or list it in the template's `device_globals`.",
    )


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """An evaluation to be made: `number` is the caller's, by which results are told apart."""

    number: int
    template: Template
    config: Config
    workloads: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Equal for requests of the same."""
        return self.template.id, config_key(self.config)


FORMAT = "tunesmith-artifact-3"
DEFAULT_MIB = 1024
EVICTION_TARGET = 0.8
"""Share of the bound that an eviction leaves."""
SCAN_EVERY = 0.05
"""Share of the bound that one process writes between two looks at the folder's size."""
ABANDONED_SECONDS = 3600
"""Age at which a file that was never renamed belongs to a process that is gone."""
_TRANSIENT = re.compile(
    r"catastrophic error|NVRTC_ERROR_|OUT_OF_(?:HOST_)?(?:MEMORY|RESOURCES)|out of memory|internal error"
)
"""Messages of compilers about failures that are not the source's. NVRTC's catastrophic errors have other causes too,
such as a missing header: such a source is compiled again each time."""
_DECIDING = (
    *("spec/template", "build/guard", "build/source", "build/python_source", "build/machine_code"),
    *("backends/nvrtc", "backends/opencl", "backends/triton/compiler"),
)
"""Modules that decide what a source becomes, and which sources count as one; a change of them empties the cache."""


class ArtifactCache:
    """Compiled artifacts by key in `folder`: at most about `max_bytes`."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MIB << 20) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.failure = ""
        """Why nothing is written any more, in a sentence; empty while all is well."""
        self._bytes_since_scan = max_bytes
        """Bytes written since the folder was last measured; the first write measures it."""

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def read(self, key: str) -> bytes | None:
        """The bytes that were written under `key`; None where there are none, or damaged ones, which are removed."""
        path = self.path(key)
        try:
            checksum, _, body = path.read_bytes().partition(b"\n")
            if checksum != _checksum(key, body):
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            # Missing, unreadable, or evicted meanwhile: the caller makes it anew.
            return None
        return body

    def write(self, key: str, body: bytes) -> bool:
        """Keeps `body` under `key`; False where that was not possible, which `failure` explains."""
        if self.failure:
            return False
        path, data = self.path(key), _checksum(key, body) + b"\n" + body
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside.write_bytes(data)
            beside.rename(path)
        except OSError as error:
            self.failure = (
                f"The cache in {self.folder} cannot be written ({error.strerror}): nothing new is kept in it; free "
                "some space, or set TUNESMITH_CACHE to another folder or to off."
            )
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
        self._bytes_since_scan += len(data)
        if self._bytes_since_scan >= SCAN_EVERY * self.max_bytes:
            self._bytes_since_scan = 0
            self.evict()
        return True

    def evict(self) -> int:
        """Removes files that dead processes left behind and, above the bound, the least recently used entries until
        `EVICTION_TARGET` of it is left; gives the bytes of all entries afterwards."""
        entries, now = [], time.time()
        for path in self.folder.glob("*/*"):
            with suppress(OSError):  # evicted meanwhile, or another user's
                status = path.stat()
                if path.suffix != ".tmp":
                    entries.append((status.st_mtime, status.st_size, path))
                elif now - status.st_mtime > ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in entries)
        goal = total if total <= self.max_bytes else EVICTION_TARGET * self.max_bytes
        for _, size, path in sorted(entries):
            if total <= goal:
                break
            with suppress(OSError):
                path.unlink(missing_ok=True)
            total -= size
        return total

    def get(self, key: str) -> Artifact | CompileFailed | None:
        """The entry of `key`; None where it is missing or cannot be trusted."""
        if (body := self.read(key)) is None:
            return None
        line, _, code = body.partition(b"\n")
        try:
            fields = json.loads(line)
            return _ARTIFACT.validate_python({**fields, "code": code}) if code else CompileFailed(**fields)
        except (ValueError, TypeError):
            # A whole entry, but of another program: its checksum is right and its contents are not ours.
            with suppress(OSError):
                self.path(key).unlink(missing_ok=True)
            return None

    def put(self, key: str, result: Artifact | CompileFailed) -> bool:
        """Keeps `result`; False when it would not come out the same again, as of a compiler that ran out of memory, or
        could not be written, which `failure` explains."""
        if isinstance(result, CompileFailed) and _TRANSIENT.search(f"{result.first_error}\n{result.log}"):
            return False
        fields = asdict(result)
        code: bytes = fields.pop("code", b"")
        return self.write(key, json.dumps(fields).encode() + b"\n" + code)


def _checksum(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).hexdigest().encode()


def open_cache(environment: Mapping[str, str] | None = None) -> ArtifactCache | None:
    """The cache of this user, or None when it is switched off.

    TUNESMITH_CACHE is a folder or `off`; left out it is `tunesmith` in XDG_CACHE_HOME, or in ~/.cache.
    TUNESMITH_CACHE_MIB bounds it (1024). Raises `TunesmithError` for a setting without a meaning.
    """
    environment = os.environ if environment is None else environment
    where, size = environment.get("TUNESMITH_CACHE", ""), environment.get("TUNESMITH_CACHE_MIB", str(DEFAULT_MIB))
    if where.lower() == "off":
        return None
    if not re.fullmatch(r"\d{1,12}(\.\d*)?", size) or float(size) == 0:
        raise TunesmithError(f"TUNESMITH_CACHE_MIB is '{size}': write a positive number of MiB, such as 1024.")
    if where:
        folder = named_path("TUNESMITH_CACHE", where)
    else:
        # The XDG base directory specification: a relative path counts as none.
        home = Path(environment.get("XDG_CACHE_HOME", ""))
        try:
            folder = (home if home.is_absolute() else Path.home() / ".cache") / "tunesmith"
        except RuntimeError:
            # A user without a home, as in some containers.
            return None
    return ArtifactCache(folder, int(float(size) * (1 << 20)))


def cache_key(source: Specialised, arch: str, version: str) -> str:
    """The content address of what `version` of a compiler makes of `source` for `arch`."""
    text = "\0".join((FORMAT, _harness(), version, arch, source.digest))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _harness() -> str:
    """A digest of the modules that decide the machine code of a source."""
    room, digest = Path(__file__).resolve().parents[1], hashlib.sha256()
    for name in _DECIDING:
        digest.update((room / f"{name}.py").read_bytes())
    return digest.hexdigest()
