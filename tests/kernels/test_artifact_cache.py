"""The cache of compiled kernels: entries come back whole or not at all, whatever happens to the folder."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import Artifact, ArtifactCache, cache_key, open_cache
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Resources

SOURCE = Specialised("cuda", "k", "source", 32, True)
ARTIFACT = Artifact("cuda", "sm_90", "k", bytes(range(256)) * 40, SOURCE.digest, Resources(24, 0, None, 8), ("table",))
KEY = cache_key(SOURCE, "sm_90", "nvrtc 13.0")


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*"))


def keys(count: int) -> list[str]:
    return [cache_key(SOURCE, "sm_90", f"compiler {number}") for number in range(count)]


OF_THE_COMPILER = (
    CompileFailed("a.cu(7): catastrophic error: out of memory", ""),
    CompileFailed("the compiler gave no message", "nvcc error: internal error: assertion failed"),
)


def test_what_was_put_is_got_and_other_bytes_and_failures_that_are_not_the_sources_are_not(tmp_path: Path) -> None:
    cache, body = ArtifactCache(tmp_path), bytes(range(256)) * 100
    for failed in OF_THE_COMPILER:
        assert not cache.put(KEY, failed) and not cache.failure
        assert cache.get(KEY) is None and entries(tmp_path) == []
    for result in (ARTIFACT, CompileFailed("a.cu(3): error", "the log\n\0 of it")):
        assert ArtifactCache(tmp_path).put(KEY, result)
        assert ArtifactCache(tmp_path).get(KEY) == result
    assert cache.write(KEY, body) and ArtifactCache(tmp_path).read(KEY) == body
    assert cache.get(KEY) is None and entries(tmp_path) == [] and cache.read(KEY) is None


def test_whatever_decides_the_machine_code_decides_the_key() -> None:
    others = [cache_key(SOURCE, "sm_80", "nvrtc 13.0"), cache_key(SOURCE, "sm_90", "nvrtc 13.1")]
    for change in ({"source": "source "}, {"max_registers": 33}, {"fast_math": False}):
        others.append(cache_key(replace(SOURCE, **change), "sm_90", "nvrtc 13.0"))
    assert len({KEY, *others}) == 6
    assert cache_key(SOURCE, "sm_90", "nvrtc 13.0") == KEY


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_entry_is_a_miss_and_goes(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, cut: bool
) -> None:
    cache = ArtifactCache(tmp_path_factory.mktemp("cache"))
    cache.put(KEY, ARTIFACT)
    (path,) = entries(cache.folder)
    data = bytearray(path.read_bytes())
    place %= len(data)
    same = data[place] == byte and not cut
    data[place] = byte
    path.write_bytes(data[:place] if cut else data)
    assert cache.get(KEY) == (ARTIFACT if same else None)
    assert path.exists() == same
    assert cache.put(KEY, ARTIFACT) and cache.get(KEY) == ARTIFACT


def test_an_entry_under_another_key_is_not_taken_for_it(tmp_path: Path) -> None:
    cache, (one, other) = ArtifactCache(tmp_path), keys(2)
    cache.put(one, ARTIFACT)
    (path,) = entries(tmp_path)
    (tmp_path / other[:2]).mkdir(exist_ok=True)
    path.rename(tmp_path / other[:2] / other)
    assert cache.get(other) is None


def test_the_least_recently_used_go_first_and_the_bound_holds(tmp_path: Path) -> None:
    names = keys(40)
    cache = ArtifactCache(tmp_path, max_bytes=20 * 11_000)
    for age, name in enumerate(names):
        cache.put(name, ARTIFACT)
        path = tmp_path / name[:2] / name
        if path.exists():
            os.utime(path, (time.time() - 1000 + age,) * 2)
        if age == 10:
            assert cache.get(names[0]) == ARTIFACT, "used again, it is the newest"
    total = cache.evict()
    assert total <= cache.max_bytes and total == sum(path.stat().st_size for path in entries(tmp_path))
    assert cache.get(names[0]) == ARTIFACT and cache.get(names[-1]) == ARTIFACT
    assert cache.get(names[1]) is None


def test_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    cache.put(KEY, ARTIFACT)
    (path,) = entries(tmp_path)
    old, new = path.with_name(".old.tmp"), path.with_name(".new.tmp")
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.evict()
    assert not old.exists() and new.exists() and path.exists()


def work(folder: Path, names: list[str], seed: int) -> None:
    """What one of several processes does to a folder."""
    cache = ArtifactCache(folder, max_bytes=10 * 11_000)
    for step in range(200):
        name = names[(step * 7 + seed) % len(names)]
        found = cache.get(name)
        assert found is None or found == ARTIFACT
        if found is None:
            assert cache.put(name, ARTIFACT)


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(tmp_path, keys(30), seed)) for seed in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not list(tmp_path.glob("*/.*.tmp"))
    assert ArtifactCache(tmp_path, max_bytes=10 * 11_000).evict() <= 10 * 11_000


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: a write beyond `size` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_cannot_be_written_is_a_sentence_and_no_failure(tmp_path: Path) -> None:
    """On a full disk, and where the folder cannot be made."""
    cache = ArtifactCache(tmp_path)
    with files_of_at_most(1000):
        assert not cache.put(KEY, ARTIFACT)
    assert "cannot be written (File too large)" in cache.failure and cache.failure.endswith(".")
    assert entries(tmp_path) == [] and cache.get(KEY) is None
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file" / "cache")
    assert cache.get(KEY) is None and not cache.put(KEY, ARTIFACT) and cache.failure


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = open_cache({"TUNESMITH_CACHE": str(tmp_path / "mine"), "TUNESMITH_CACHE_MIB": "3"})
    assert (mine.folder, mine.max_bytes) == (tmp_path / "mine", 3 << 20)
    assert open_cache({"TUNESMITH_CACHE": "off"}) is None
    at_home = tmp_path / ".cache" / "tunesmith"
    for named, folder in (({}, at_home), ({"XDG_CACHE_HOME": "/somewhere"}, Path("/somewhere/tunesmith"))):
        assert open_cache(named).folder == folder
    assert open_cache({"XDG_CACHE_HOME": "somewhere"}).folder == at_home


@pytest.mark.parametrize(
    "given",
    [{"TUNESMITH_CACHE": "~nobody-here/cache"}, *({"TUNESMITH_CACHE_MIB": size} for size in ("big", "0", "nan"))],
)
def test_a_setting_without_meaning_is_a_sentence(given: dict[str, str]) -> None:
    with pytest.raises(TunesmithError, match=r"^TUNESMITH_CACHE.*\.$"):
        open_cache(given)
