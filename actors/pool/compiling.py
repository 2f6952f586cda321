"""Sources on their way to machine code: those that wait for a compile worker, those that wait for another evaluation to
get the same code, and the cache on disk.

The cache is that of the driving process: artifacts pass through here, nodes come and go, and a second run finds all in
one place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tunesmith.actors.cluster.handle import Call, WorkerProcess
from tunesmith.actors.pool.job import Compilation, Job
from tunesmith.actors.process.packed import pack
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.artifact_cache import ArtifactCache, cache_key
from tunesmith.kernels.outcome import CompileFailed, Rejected

Made = Artifact | CompileFailed | Rejected


class Compiling:
    """For the architecture `arch`. seconds: the deadline of one compilation; say: gets a sentence when the cache cannot
    be written."""

    def __init__(self, arch: str, cache: ArtifactCache | None, seconds: float, say: Callable[[str], None]) -> None:
        self._arch, self._cache, self._seconds, self._say = arch, cache, seconds, say
        self._queue: deque[Compilation] = deque()
        self._same: dict[tuple[str, str], list[Compilation]] = {}
        """Others that wait for what is being compiled, by the digest of its source and the compiler's version."""
        self._to_keep: dict[str, Artifact | CompileFailed] = {}
        """What is not yet in the cache, by its key there."""

    def __len__(self) -> int:
        """Compilations that wait for a worker."""
        return len(self._queue)

    @property
    def waiting_for_code(self) -> int:
        """Compilations that wait for the same one of another evaluation."""
        return sum(len(others) for others in self._same.values())

    @property
    def next_alone(self) -> bool:
        """Whether the next one must have its worker for itself."""
        return bool(self._queue) and self._queue[0].alone

    def add(self, job: Job) -> None:
        self._queue.extend(Compilation(job, key) for key in job.sources)

    def again(self, compilation: Compilation) -> None:
        """Puts one that was lost in front."""
        self._queue.appendleft(compilation)

    def start(self, worker: WorkerProcess) -> Iterator[tuple[Compilation, Made]]:
        """Gives `worker` the next one that needs compiling, if there is any, and yields what is known on the way."""
        while self._queue:
            compilation = self._queue.popleft()
            if compilation.job.failed:
                continue
            compilation.making = compilation.source.digest, worker.version
            if (others := self._same.get(compilation.making)) is not None:
                others.append(compilation)
                continue
            if (found := self._known(compilation)) is not None:
                yield compilation, found
                continue
            compilation.job.cached = False
            reference = worker.actor.compile_packed.remote(pack(compilation.source))
            worker.begin(Call(reference, self._seconds, compilation))
            self._same[compilation.making] = []
            return

    def made(self, compilation: Compilation, result: Made) -> list[Compilation]:
        """Those that waited for the same."""
        if self._cache is not None and isinstance(result, Artifact | CompileFailed):
            self._to_keep[self._key(compilation)] = result
        return self._same.pop(compilation.making)

    def lost(self, compilation: Compilation) -> None:
        """Those that waited for a compilation that was lost are compiled by themselves."""
        self._queue.extendleft(reversed(self._same.pop(compilation.making)))

    def keep(self) -> None:
        """Writes to the cache what was compiled. It is called when workers have what there is for them: files take
        longer to write than anything else in this process, and compilers often end at the same time."""
        for key, result in self._to_keep.items():
            assert self._cache is not None
            before = self._cache.trouble
            self._cache.put(key, result)
            if self._cache.trouble != before:
                self._say(self._cache.trouble)
        self._to_keep.clear()

    def _known(self, compilation: Compilation) -> Artifact | CompileFailed | None:
        if self._cache is None:
            return None
        key = self._key(compilation)
        return self._to_keep.get(key) or self._cache.get(key)

    def _key(self, compilation: Compilation) -> str:
        return cache_key(compilation.source, self._arch, compilation.making[1])
