"""Which GPUs a cluster has: one look at every node that offers some, whoever uses them at the moment.

The process that drives a tuning often stands on a node without a GPU, so its own probe says nothing of where kernels
will run.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunesmith.hw.probe import Device, Inventory, probe_cuda

SECONDS = 60.0
"""For all nodes together to answer."""


def look() -> Inventory:
    """The CUDA devices of the node this runs on; asks the driver for attributes, and takes no device."""
    # Ray hides all GPUs from a task that asks for none. The process that this is changed in ends with the task.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return probe_cuda()


def survey(looker: Any = look) -> Inventory:
    """The CUDA devices of all nodes that offer GPUs to the cluster, node by node. Notes say what a node answered that
    shows none, or that it did not answer."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) > 0]  # type: ignore[no-untyped-call]
    task: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(looker)
    asked = {}
    for node in nodes:
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[task.options(scheduling_strategy=here).remote()] = node
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS) if asked else ([], [])
    devices: list[Device] = []
    notes: list[str] = []
    for reference, node in asked.items():
        where = node["NodeManagerHostname"]
        if reference not in answered:
            notes.append(f"The node {where} did not say within {SECONDS:g} s which GPUs it has.")
            continue
        try:
            found: Inventory = ray.get(reference)
        except RayError as error:
            notes.append(f"The node {where} did not say which GPUs it has ({type(error).__name__}).")
            continue
        devices += found.devices
        if not found.devices:
            notes += [f"On {where}: {note}" for note in found.notes]
    return Inventory(tuple(devices), tuple(notes))
