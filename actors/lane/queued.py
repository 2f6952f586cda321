"""An actor whose calls wait in its own process, so that one begins within microseconds of the end of the one before.

Ray takes a few tenths of a millisecond between two calls of an actor, to send a result and to unpack the arguments of
the next. Here it does both beside the call under way: calls arrive in an event loop, and one thread works on them in
the order in which they came. That is the order in which they were made, except that a call whose arguments Ray has to
fetch first (beyond 100 kB) may be overtaken: of a lane, a visit, which then finds the device busy or its process lost,
and is made again.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def queued(kind: type) -> type:
    """A class for `ray.remote` with the public methods of `kind`. Calls may be under way together; what they do is done
    by an object of `kind` in one thread, one after the other."""

    def make(self: Any, *arguments: Any) -> None:
        self._one = kind(*arguments)
        self._thread = ThreadPoolExecutor(1)

    methods = {
        name: _in_thread(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    return type(kind.__name__, (), {"__init__": make, "__doc__": kind.__doc__, **methods})


def _in_thread(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: Any, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._thread.submit(method, self._one, *arguments))

    return call
