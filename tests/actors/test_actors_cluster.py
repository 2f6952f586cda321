"""Joining a cluster, and waiting for what it does not have."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tunesmith.actors.ray_cluster import WAIT_SECONDS, ClusterError, cluster, wait_for


def test_a_cluster_of_this_process_is_joined_and_left_running(ray_cluster: Any) -> None:
    """Resources that are there are not waited for; those that never come are a sentence after the deadline."""
    started = time.monotonic()
    with cluster() as offer:
        assert offer.attached and offer.cpus == 2
        wait_for("CPU", 2)
        with pytest.raises(ClusterError, match=r"has 3 GPU, 4 are needed.*\.$"):
            wait_for("GPU", 4, deadline_seconds=0.6)
    assert ray_cluster.is_initialized()
    assert time.monotonic() - started < WAIT_SECONDS


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("TMPDIR", errno.EACCES, r"cannot be written \(.*\); set TMPDIR to another"),
        ("RAY_TMPDIR", errno.ENOSPC, r"has no room .*No space left.*; make room there, or set RAY_TMPDIR to another"),
    ],
)
def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, error: int, said: str
) -> None:
    def fail(**_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", fail)
    with pytest.raises(ClusterError, match=f"^{name}: the folder for temporary files {tmp_path} {said}"), cluster():
        pass
