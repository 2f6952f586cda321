"""The Ray cluster: joins the present one, or starts one on this machine, and lists its GPUs.

Never stops Ray processes that it did not start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo, Inventory, probe_cuda

CONNECT_SECONDS = 10.0
SURVEY_SECONDS = 60.0
"""Deadline of all nodes together for the list of their GPUs."""
MIN_FREE_BYTES = 8 << 20
"""Disk space that a cluster here needs for its sockets and logs. It writes a quarter of a megabyte in a short run."""


@contextlib.contextmanager
def cluster() -> Iterator[bool]:
    """Joins the cluster of RAY_ADDRESS (as `ray job submit` sets it), or starts one here for as long as it is needed.
    Gives whether it was there before. Raises `TunesmithError` where it cannot be used."""
    address = os.environ.get("RAY_ADDRESS")
    already = ray.is_initialized()
    # Ray's own progress lines and usage notice are not for our users; failures come to us as exceptions.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with contextlib.ExitStack() as at_end:
        try:
            if not already:
                if address:
                    _require_reachable(address)
                else:
                    _require_room()
                    _keep_token()
                # Interrupted in this thread, Ray's start would end half-way, by Ray's own handler of SIGTERM. The other
                # thread ends after Ray, whose processes die with the thread that started them.
                thread = at_end.enter_context(ThreadPoolExecutor(1))
                at_end.callback(thread.submit, ray.shutdown)
                thread.submit(
                    ray.init,
                    address=address or "local",
                    include_dashboard=None if address else False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                ).result()
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at RAY_ADDRESS={address}" if address else "on this machine"
            raise TunesmithError(f"No Ray cluster could be used {where}: {error}.") from error
        yield bool(address) or already


def _require_room() -> None:
    """Raises `TunesmithError` where Ray's folder, among the temporary files, cannot be written or is full: Ray would
    fail of it half a minute later, and not say why."""
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    folder = os.environ.get(name, "/tmp")
    try:
        with tempfile.NamedTemporaryFile(prefix="tunesmith-", dir=folder) as file:
            file.write(bytes(MIN_FREE_BYTES))
            file.flush()
    except OSError as error:
        raise TunesmithError(
            f"{name}: the folder for temporary files {folder} cannot be used ({error.strerror}): let it be writable, "
            f"with {MIN_FREE_BYTES >> 20} MiB free, or set {name} to another folder."
        ) from error


def _keep_token() -> None:
    """Gives Ray, in this process and its children, the token that it would keep in the user's home, where none is there
    and none can be written."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    with contextlib.suppress(OSError, RuntimeError):
        kept = Path.home() / ".ray" / "auth_token"
        if kept.is_file():
            return
        kept.parent.mkdir(parents=True, exist_ok=True)
        if os.access(kept.parent, os.W_OK):
            return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _require_reachable(address: str) -> None:
    """Raises `ConnectionError` when nothing listens at a host:port. Ray would try for minutes, then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nothing answers there ({error})") from error


def cpu_share(lanes: int, compilers: int, *, gpu: bool) -> float:
    """CPUs that each worker takes in Ray's accounts: a whole one, which it does keep busy, or an equal part where the
    cluster has fewer cores than workers. gpu: lanes hold GPUs, and a node's share has to do for as many lanes as it has
    GPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    shares = [1.0, sum(node.get("CPU", 0.0) for node in nodes) / (lanes + compilers)]
    if gpu:
        shares += [node.get("CPU", 0.0) / node["GPU"] for node in nodes if node.get("GPU", 0.0) > 0]
    # Ray counts in ten thousandths.
    return int(min(shares) * 10_000) / 10_000


def total(resource: str) -> float:
    """The amount of a resource, such as CPU or GPU, that all nodes of the cluster have together."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get(resource, 0.0)


def list_gpus() -> Inventory:
    """The CUDA devices of the node this runs on; asks the driver for attributes, and takes no device."""
    # Ray hides all GPUs from a task that asks for none. The process that this is changed in ends with the task.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return probe_cuda()


def survey(task: Any = list_gpus) -> Inventory:
    """The CUDA devices of all nodes that offer GPUs to the cluster, node by node. Notes name nodes that list none, with
    the reason, or did not answer. task: lists the GPUs of the node it runs on."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) > 0]  # type: ignore[no-untyped-call]
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(task)
    asked = {}
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[remote.options(scheduling_strategy=here).remote()] = node
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=SURVEY_SECONDS) if asked else ([], [])
    devices, notes = list[DeviceInfo](), list[str]()
    for reference, node in asked.items():
        where = node["NodeManagerHostname"]
        if reference not in answered:
            notes.append(f"The node {where} did not say within {SURVEY_SECONDS:g} s which GPUs it has.")
            continue
        try:
            inventory: Inventory = ray.get(reference)
        except RayError as error:
            notes.append(f"The node {where} did not say which GPUs it has ({type(error).__name__}).")
            continue
        devices += inventory.devices
        if not inventory.devices:
            notes += [f"On {where}: {note}" for note in inventory.notes]
    return Inventory(tuple(devices), tuple(notes))


# A worker that dies is an outcome to us. Ray would print a paragraph about each on standard output, where results go;
# it reads this when it is first imported. https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
