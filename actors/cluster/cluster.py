"""The Ray cluster: attach to the one there is, or start one on this machine, and say what it offers.

Never stops Ray processes that it did not start.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from tunesmith.hw.errors import TunesmithError

CONNECT_SECONDS = 10.0
WAIT_SECONDS = 60.0
"""How long a cluster may take to offer the GPUs it should have."""


class ClusterError(TunesmithError):
    """The cluster cannot be reached, or lacks what is needed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the whole cluster has: CPU cores and GPUs. `attached`: it was there before us."""

    cpus: int
    gpus: int
    attached: bool


@contextmanager
def cluster(*, gpus: int | None = None) -> Iterator[Offer]:
    """Joins the cluster of RAY_ADDRESS (as `ray job submit` sets it), or starts one here for as long as it is needed.

    gpus: how many GPUs a local cluster should manage; None lets Ray find them. Raises `ClusterError`.
    """
    address = os.environ.get("RAY_ADDRESS")
    already = ray.is_initialized()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    # Ray's own progress lines and usage notice are not for our users; failures come to us as exceptions.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        if not already:
            if address:
                _require_reachable(address)
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            else:
                ray.init(
                    address="local",
                    num_gpus=gpus,
                    include_dashboard=False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        raise ClusterError(f"No Ray cluster could be used {where}: {error}.") from error
    # Ray puts handlers of its own in place, which print a stack and end the process at once. Whoever has one keeps it.
    if callable(on_sigterm) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield Offer(int(_total("CPU")), int(_total("GPU")), attached=bool(address) or already)
    finally:
        if not already:
            ray.shutdown()


def _require_reachable(address: str) -> None:
    """Raises `ConnectionError` when nothing listens at a host:port. Ray would try for minutes, then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers there ({error})") from error


def wait_for(resource: str, amount: float, deadline_seconds: float = WAIT_SECONDS) -> None:
    """Waits until the cluster has `amount` of `resource` in all; raises `ClusterError` after the deadline.

    An actor that asks for more than there is would wait for ever without a word.
    """
    deadline = time.monotonic() + deadline_seconds
    while (have := _total(resource)) < amount:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The Ray cluster has {have:g} {resource}, {amount:g} are needed: add nodes, or start it with more "
                f"(`ray start --num-{resource.lower()}s`)."
            )
        time.sleep(0.5)


def cpu_share(lanes: int, compilers: int, *, gpu: bool) -> float:
    """CPUs that each worker takes in Ray's accounts: a whole one, which it does keep busy, or an equal part of what
    there is where the cluster has fewer cores than workers.

    gpu: lanes hold GPUs, and a node's share has to do for as many lanes as it has GPUs.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    shares = [1.0, sum(node.get("CPU", 0.0) for node in nodes) / (lanes + compilers)]
    if gpu:
        shares += [node.get("CPU", 0.0) / node["GPU"] for node in nodes if node.get("GPU", 0.0) > 0]
    # Ray counts in ten thousandths.
    return int(min(shares) * 10_000) / 10_000


def _total(resource: str) -> float:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get(resource, 0.0)
