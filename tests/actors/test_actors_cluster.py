"""Joining a cluster, and waiting for what it does not have."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tunesmith.actors.cluster.cluster import WAIT_SECONDS, ClusterError, cluster, wait_for


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
