"""Joining a cluster, and waiting for what it does not have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest import mock

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


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", mock.Mock(side_effect=OSError(28, "No space left on device")))
    said = rf"^{name}: .* {tmp_path} cannot be used \(No space left .* 8 MiB free, or set {name} to another folder\.$"
    with pytest.raises(ClusterError, match=said), cluster():
        pass
