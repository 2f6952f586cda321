"""What several processes do to one folder of compiled kernels. Apart from its tests, as each process imports it."""

from __future__ import annotations

from pathlib import Path

from tunesmith.kernels.build.artifact import Artifact, ArtifactCache
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import Resources

SOURCE = Specialised("cuda", "k", "source", 32, True)
ARTIFACT = Artifact("cuda", "sm_90", "k", bytes(range(256)) * 40, SOURCE.digest, Resources(24, 0, None, 8), ("table",))


def work(folder: Path, names: list[str], seed: int) -> None:
    cache = ArtifactCache(folder, max_bytes=10 * 11_000)
    for step in range(200):
        name = names[(step * 7 + seed) % len(names)]
        found = cache.get(name)
        assert found is None or found == ARTIFACT
        if found is None:
            assert cache.put(name, ARTIFACT)
