"""Joining a cluster, and waiting for what it does not have."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.ray_cluster import WAIT_SECONDS, ClusterError, cluster, wait_for


def test_a_cluster_of_this_process_is_joined_and_left_running(ray_cluster: Any) -> None:
    with cluster() as offer:
        assert offer.attached and offer.cpus == 2
    assert ray_cluster.is_initialized()


def test_what_is_there_is_not_waited_for(ray_cluster: Any) -> None:
    started = time.monotonic()
    wait_for("CPU", 2)
    assert time.monotonic() - started < WAIT_SECONDS


def test_what_never_comes_is_a_sentence_after_the_deadline(ray_cluster: Any) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterError, match=r"has 3 GPU, 4 are needed.*\.$"):
        wait_for("GPU", 4, deadline_seconds=0.6)
    assert time.monotonic() - started < WAIT_SECONDS


def test_a_folder_for_temporary_files_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/proc/sys")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with (
        pytest.raises(ClusterError, match=r"^TMPDIR: the folder .*/proc/sys cannot be written .*; set TMPDIR to"),
        cluster(),
    ):
        pass


def test_a_folder_for_temporary_files_that_is_full_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    with (
        pytest.raises(ClusterError, match=r"^RAY_TMPDIR: .* has no room .*No space left.*; make room there, or"),
        cluster(),
    ):
        pass
