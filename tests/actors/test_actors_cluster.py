"""Joining a cluster, and what keeps one from being started."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tunesmith.actors.ray_cluster import cluster
from tunesmith.hw.errors import TunesmithError


def test_a_cluster_of_this_process_is_joined_and_left_running(ray_cluster: Any) -> None:
    with cluster() as offer:
        assert offer.attached and (offer.cpus, offer.gpus) == (2, 3)
    assert ray_cluster.is_initialized()


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", mock.Mock(side_effect=OSError(28, "No space left on device")))
    said = rf"^{name}: .* {tmp_path} cannot be used \(No space left .* 8 MiB free, or set {name} to another folder\.$"
    with pytest.raises(TunesmithError, match=said), cluster():
        pass
