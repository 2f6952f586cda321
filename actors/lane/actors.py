"""The Ray actors: what runs in a worker process of the cluster, for `ray.remote`.

Their constructors only keep what they are given, so that an actor that has answered `node_id` has its place in the
cluster, and a mistake that is found while the worker is made is raised by `start` as what it is. Arguments and results
of the calls that there are hundreds of a second of are packed (`actors.process.packed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from tunesmith.actors.process.packed import pack, unpack


class CompileActor:
    """A `CompileWorker`, or what stands in for one: `make(*arguments)`."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._worker: Any = None

    def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def start(self) -> Any:
        self._worker = self._worker or self._make(*self._arguments)
        return self._worker.start()

    def compile(self, source: Any) -> Any:
        return self._worker.compile(source)

    def compile_packed(self, data: bytes) -> bytes:
        return pack(self._worker.compile(*unpack(data)))

    def probes(self) -> Any:
        return self._worker.probes()


class LaneActor:
    """A `LaneHost`, or what stands in for one: `make(*arguments)`.

    Its calls wait in its own process, so that one begins within microseconds of the end of the one before. Ray takes a
    few tenths of a millisecond between two calls of an actor, to send a result and to unpack the arguments of the next.
    Here it does both beside the call under way: calls arrive in an event loop, and one thread works on them in the
    order in which they came. That is the order in which they were made, except that a call whose arguments Ray has to
    fetch first (beyond 100 kB) may be overtaken: a visit, which then finds the device busy or its process lost, and is
    made again.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._make, self._arguments = make, arguments
        self._host: Any = None
        self._thread = ThreadPoolExecutor(1)

    async def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def waiting_for(self) -> str:
        """Who holds the device, as a clause, where a call waits for it; else empty. Answered beside that call."""
        ask = getattr(self._host, "waiting_for", None)
        return "" if ask is None else ask()

    async def start(self, *arguments: Any) -> Any:
        return await self._in_turn("start", *arguments)

    async def acquire(self) -> None:
        await self._in_turn("acquire")

    async def prepare(self, workloads: Any) -> Any:
        return await self._in_turn("prepare", workloads)

    async def visit_packed(self, data: bytes, seconds: float) -> bytes:
        packed: bytes = await self._in_turn("visit_packed", data, seconds)
        return packed

    async def compare(self, *arguments: Any) -> Any:
        return await self._in_turn("compare", *arguments)

    async def calibrate(self, probes: Any) -> Any:
        return await self._in_turn("calibrate", probes)

    async def examine(self, *arguments: Any) -> Any:
        return await self._in_turn("examine", *arguments)

    async def _in_turn(self, method: str, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._thread.submit(self._call, method, arguments))

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if self._host is None:
            self._host = self._make(*self._arguments)
        return getattr(self._host, method)(*arguments)
