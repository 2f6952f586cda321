"""The machine code of a kernel that was compared with the baseline, to be handed to the user as it is.

A source compiled by another program is not the same machine code: CuPy's RawModule adds -ftz=true, which changes times
by several per cent (docs/trust.md). The journal keeps the digest of what was timed. Here the bytes with that digest are
found: in what an earlier export left, in the cache of compiled kernels, or by compiling once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.actors.process.isolated import Isolated
from tunesmith.actors.process.workers import CompilerReady, CompileWorker
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Compared, ShapeCompared
from tunesmith.graph.journal.records import FinalistResult
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.artifact_cache import cache_key, open_cache
from tunesmith.kernels.build.candidate import TypesKey, types_key
from tunesmith.kernels.build.specialise import Specialised, specialise
from tunesmith.kernels.spec.parameter import Config, config_key
from tunesmith.kernels.spec.task import Workload
from tunesmith.kernels.spec.template import Template

SECONDS = 120.0
"""For one compilation."""


@dataclass(frozen=True, slots=True)
class FoundCode:
    """`code` for `arch`. measured: it is, byte for byte, what was compared with the baseline; note: how that is known,
    or why it is not, in a sentence."""

    code: bytes
    arch: str
    compiler: str
    measured: bool
    note: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.code).hexdigest()


class MachineCodes:
    """The machine code of a run's kernels. folder: an earlier export, which is read now and may be removed later."""

    def __init__(self, context: Context, folder: Path) -> None:
        self._context = context
        self._exported = {_digest(code): code for code in (path.read_bytes() for path in folder.glob("*/*.cubin"))}
        self._compiler: tuple[Isolated, str] | None = None
        self._measured: dict[tuple[str, str, TypesKey], tuple[str, str]] = {}
        """By template, configuration and types: the digest of what was timed last, and its compiler."""
        baseline = context.sources.baseline.template
        for shape in context.log.events(ShapeCompared):
            self._keep(shape.entries, types_key(shape.workload), shape.compiler)
        for event in context.log.events(Compared):
            types = types_key(context.task.workload(event.workload))
            self._keep(event.entries, types, event.compiler)
            if event.baseline_code:
                key = (baseline.id, config_key(baseline.default_config), types)
                self._measured[key] = event.baseline_code, event.compiler

    def _keep(self, entries: Sequence[FinalistResult], types: TypesKey, compiler: str) -> None:
        for one in entries:
            if one.code:
                self._measured[one.template, config_key(one.config), types] = one.code, compiler

    @contextmanager
    def open(self) -> Iterator[MachineCodes]:
        """Ends the compiler's process, if one was needed, with the block."""
        try:
            yield self
        finally:
            if self._compiler is not None:
                self._compiler[0].end()
                self._compiler = None

    def find(self, template: Template, config: Config, workload: Workload) -> FoundCode | str:
        """The machine code for the workload's types, or a sentence that says why there is none."""
        arch = self._context.device.limits.arch
        source = specialise(template, config, workload.types)
        key = (template.id, config_key(config), types_key(workload))
        wanted, compiler = self._measured.get(key, ("", ""))
        if wanted:
            code = self._exported.get(wanted) or self._cached(source, arch, compiler)
            if code is not None and _digest(code) == wanted:
                return FoundCode(code, arch, compiler, True, "It is the machine code that was measured.")
        made = self._compile(source)
        if isinstance(made, str):
            return f"The machine code is not at hand, and the source was not compiled here: {made}."
        artifact, compiler = made
        if not wanted:
            note = "It was compiled for this export; the journal does not say which machine code was measured."
        elif artifact.code_digest == wanted:
            note = "It was compiled again, and is byte for byte the machine code that was measured."
        else:
            note = (
                f"It was compiled again and is not the machine code that was measured (sha256 {wanted}...): times may "
                "differ."
            )
        return FoundCode(artifact.code, arch, compiler, artifact.code_digest == wanted, note)

    def _cached(self, source: Specialised, arch: str, compiler: str) -> bytes | None:
        cache = open_cache()
        found = None if cache is None else cache.get(cache_key(source, arch, compiler))
        return found.code if isinstance(found, Artifact) else None

    def _compile(self, source: Specialised) -> tuple[Artifact, str] | str:
        """The artifact and the compiler's version, or why there is none, as a clause."""
        device = self._context.device
        try:
            if self._compiler is None:
                process = Isolated("compile", CompileWorker, device.limits, device.index)
                ready: Any = process.call("start", SECONDS)
                self._compiler = process, ready.version if isinstance(ready, CompilerReady) else "an unknown compiler"
            process, version = self._compiler
            made: Any = process.call("compile", SECONDS, source)
        except TunesmithError as error:
            # The compiler may be on other nodes of a cluster only.
            return str(error).rstrip(".")
        return (made, version) if isinstance(made, Artifact) else f"the compiler answers {made}"


def _digest(code: bytes) -> str:
    """As `Artifact.code_digest`."""
    return hashlib.sha256(code).hexdigest()[:16]
