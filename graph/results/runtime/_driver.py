"""Loads and launches machine code with the CUDA driver, through ctypes alone.

A launch through ctypes takes no longer than one through the bindings, and needs no package, if ctypes has nothing to
convert: to make the eleven parameters of cuLaunchKernel of Python's numbers costs several times the call itself. So all
is prepared, and a launch reads configuration and arguments where they lie.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from ._nvrtc import compile_source

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
INVALID_CONTEXT = 201
GEOMETRY = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")
C_TYPES: Mapping[str, Any] = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "pointer": ctypes.c_void_p,
}


class DriverError(RuntimeError):
    """The CUDA driver refuses; the message names its status."""


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in GEOMETRY),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number_of_attributes", ctypes.c_uint),
    ]


class Driver:
    """The CUDA driver's library. name: its file."""

    def __init__(self, name: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(name)
        # The lock of the interpreter is kept during a launch, which returns at once.
        self._launching = ctypes.PyDLL(name)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise DriverError(f"{name} fails with CUDA status {status}.")

    def arch(self, device: int) -> str:
        """Such as "sm_90"."""
        number, values = ctypes.c_int(), list[int]()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        for attribute in (MAJOR, MINOR):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, number)
            values.append(value.value)
        return f"sm_{values[0]}{values[1]}"

    def use(self, device: int) -> None:
        """Makes the context that PyTorch works in (the primary one) current on this thread."""
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.call("cuCtxSetCurrent", context)

    def load(self, code: bytes, entry: str) -> Any:
        """The handle of the function `entry` in machine code."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function.value

    def allow_shared(self, function: Any, size: int) -> None:
        """Lets a function have `size` bytes of dynamic shared memory."""
        self.call("cuFuncSetAttribute", ctypes.c_void_p(function), MAX_DYNAMIC_SHARED, ctypes.c_int(size))

    def prepare(self, config: Config, function: int, arguments: Any) -> Any:
        """A call without arguments that launches `function` with the array `arguments` of addresses of its arguments,
        as config says at that time, and returns the status."""
        handle, packed = ctypes.c_void_p(function), ctypes.byref(arguments)
        try:
            launch = self._launching.cuLaunchKernelEx
        except AttributeError:
            # Drivers before CUDA 11.8 have only the form that takes every value by itself.
            geometry = [getattr(config, name) for name in GEOMETRY]
            stream = ctypes.c_void_p.from_buffer(config, Config.stream.offset)
            return partial(self._launching.cuLaunchKernel, handle, *geometry, stream, packed, None)
        return partial(launch, ctypes.byref(config), handle, packed, None)


class Kernels:
    """The functions of an export, each loaded once for a device. folder: where the files lie; table: by types and
    number the source, machine code and options; package: its name."""

    def __init__(self, folder: str, table: Mapping[Any, Any], package: str, driver: Driver | None = None) -> None:
        self._folder, self._table, self._package = folder, table, package
        self._driver = driver
        self._functions: dict[Any, list[Any]] = {}
        self._lock = threading.Lock()

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        return self._driver

    def function(self, device: int, types: tuple[str, ...], number: int, shared: int) -> Any:
        """The handle of a kernel's function, ready for `shared` bytes of dynamic shared memory."""
        with self._lock:
            known = self._functions.get((device, types, number))
            if known is None:
                self.driver.use(device)
                about = self._table[types][number]
                function = self.driver.load(self._code(about, self.driver.arch(device)), about["entry"])
                known = self._functions[device, types, number] = [function, 0]
            if shared > known[1]:
                self.driver.allow_shared(known[0], shared)
                known[1] = shared
            return known[0]

    def _code(self, about: Mapping[str, Any], arch: str) -> bytes:
        if about["cubin"] is not None and about["arch"] == arch:
            with open(os.path.join(self._folder, about["cubin"]), "rb") as file:
                code = file.read()
            if hashlib.sha256(code).hexdigest() != about["sha256"]:
                raise DriverError(f"{about['cubin']} is not the file that was exported: its sha256 differs.")
            return code
        with open(os.path.join(self._folder, about["source"]), encoding="utf-8") as file:
            source = file.read()
        return compile_source(source, arch, about["fast_math"], about["max_registers"], self._package)


class Launch:
    """One launch, prepared: only pointers, and scalars that a caller chooses, are still to be set.

    arguments: in the kernel's order, pairs of type ("pointer", or that of a scalar) and value.
    """

    __slots__ = ("_config", "_device", "_driver", "_launch", "slots")

    def __init__(
        self,
        kernels: Kernels,
        device: int,
        types: tuple[str, ...],
        number: int,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int,
        arguments: list[tuple[str, Any]],
    ) -> None:
        self.slots: list[Any] = [C_TYPES[kind](value) for kind, value in arguments]
        packed = (ctypes.c_void_p * len(self.slots))(*map(ctypes.addressof, self.slots))
        self._driver, self._device = kernels.driver, device
        self._config = Config(*grid, *block, shared)
        function = kernels.function(device, types, number, shared)
        self._launch = self._driver.prepare(self._config, function, packed)

    def start(self, stream: int) -> None:
        """Launches on a stream (its handle). Raises `DriverError`."""
        self._config.stream = stream
        status = self._launch()
        if status == INVALID_CONTEXT:
            # A thread that has not used the device before.
            self._driver.use(self._device)
            status = self._launch()
        if status != 0:
            raise DriverError(f"The launch fails with CUDA status {status}.")
