"""The tuned kernels of a folder, for programs without Tunesmith: which kernel serves a shape, and how it is launched.

`Kernels` reads dispatch.json, and launch.json of each folder beside it, once. CUDA is called through ctypes alone: the
driver's library and, where the machine code is for another GPU, NVRTC. OpenCL needs pyopencl, and arrays of NumPy.
This file is copied as it is: beside the winners of a run (best/), whose dispatch.py and launch.py are programs over it,
and into each exported package.
"""
# ruff: noqa: B905 - packages are for Python 3.9 too, whose zip() has no `strict`

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import math
import os
import runpy
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1, "bool": 1}
ELEMENT_BYTES.update({f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)})
ARRAY_TYPES = {"float8_e4m3": "float8_e4m3fn"}  # by the names of PyTorch and ml_dtypes, where these differ
STORAGE_TYPES = {"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}  # where CuPy has none
FUNCTIONS: dict[str, Any] = {
    "__builtins__": {},
    **{name: name for name in ELEMENT_BYTES},
    **{"abs": abs, "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "max": max, "min": min},
    "ceil_div": lambda a, b: -(-a // b),
    "is_pow2": lambda a: a > 0 and a & (a - 1) == 0,
    "round_up": lambda a, b: -(-a // b) * b,
    "sizeof": ELEMENT_BYTES.__getitem__,
}
"""The names that expressions of the files know beside sizes, data types and parameters."""

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
C_TYPES: Mapping[str, Any] = {
    **{name: getattr(ctypes, f"c_{name}") for name in ELEMENT_BYTES if "int" in name or name == "bool"},
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "pointer": ctypes.c_void_p,
}
HEADER_FOLDERS = (".", "cccl", "crt", "cooperative_groups", "cooperative_groups/details")
"""Below the folders of CUDA's headers, which include each other by their bare names."""
Types = tuple[str, ...]
"""Data types, in the order of `Kernels.types`."""
Sizes = tuple[int, ...]
"""Sizes, in the order of `Kernels.sizes`, or the extents of an array."""
Given = Mapping[str, Any]
"""Arrays by the arguments' names, and numbers for scalars that are not to have the task's value."""


class KernelError(RuntimeError):
    """The CUDA driver refuses a call, machine code is damaged, or a source does not compile."""


class KernelChoice(NamedTuple):
    """The kernel for a shape: its folder; grid in blocks, block in threads, bytes of dynamic shared memory."""

    folder: str
    grid: Sizes
    block: Sizes
    shared_bytes: int


@cache
def _compiled(text: str) -> Any:
    return compile(text, text, "eval")


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of dispatch.json or launch.json, which is Python over `names` and FUNCTIONS."""
    return eval(_compiled(text), FUNCTIONS, names)


class Kernels:
    """The kernels of `folder`, which has a dispatch.json."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        about = json.loads((self.folder / "dispatch.json").read_text(encoding="utf-8"))
        self.about, self.name, self.backend = about, about["task"], about["backend"]
        signature = about["signature"]
        self.arguments: list[dict[str, Any]] = signature["arguments"]
        self.given = [one for one in self.arguments if one["role"] in ("in", "inout")]
        self._size_sources, self._type_sources = signature["sizes"], signature["types"]
        self.sizes, self.types = (tuple(one["name"] for one in signature[key]) for key in ("sizes", "types"))
        self.explicit = [one["name"] for one in self._size_sources if one["argument"] is None]
        files = sorted(self.folder.glob("*/launch.json"))
        self.launches = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in files}
        self._sources = {
            (folder, _ordered(source["types"], self.types)): source
            for folder, launch in self.launches.items()
            for source in launch["sources"]
        }
        self.combinations = [types for folder, types in self._sources if folder == "baseline"]
        self._rule = about["rule"]
        self._exact = {
            (_ordered(row["types"], self.types), _ordered(row["sizes"], self.sizes)): row["folder"]
            for row in about["shapes"]
        }
        self._functions: dict[Any, list[Any]] = {}
        self._programs: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def choose(self, types: Types, sizes: Sizes) -> KernelChoice:
        """The kernel for data types and sizes, and its launch.

        A measured shape has its own kernel, any other the kernel that the rule selects; where that cannot be launched,
        the baseline serves. Raises ValueError for types without a kernel, and for shapes that nothing serves.
        """
        self._require_types(types)
        names = self._names(types, sizes)
        rule = self._rule
        while "test" in rule:
            rule = rule["yes" if evaluate(rule["test"], names) else "no"]
        for folder in (self._exact.get((types, sizes), rule["folder"]), "baseline"):
            about = self.launches[folder]
            launch, known = about["launch"], {**about["config"], **names}
            if (folder, types) in self._sources and all(evaluate(text, known) for text in about["requires"]):
                texts = ((*launch[part], "1", "1")[:3] for part in ("grid", "block"))
                grid, block = (tuple(int(evaluate(text, known)) for text in axes) for axes in texts)
                return KernelChoice(folder, grid, block, int(evaluate(launch["shared_bytes"], known)))
        raise ValueError(f"{self.name}: no kernel can be launched for {_assignments(self.sizes, sizes)}.")

    def read(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[str],
        explicit: Sequence[int] = (),
        types: Types | None = None,
        storage: Mapping[str, str] = {},
    ) -> tuple[Sizes, Types]:
        """Sizes and data types of a call; raises ValueError with a sentence where shapes or types do not fit.

        shapes, dtypes: of the arrays that the kernel reads, in the order of its arguments; explicit: the sizes that
        these do not tell; types: the data types, left out where the arrays tell them; storage: the types of the arrays
        that hold certain data types.
        """
        arrays = {one["name"]: (tuple(shape), dtype) for one, shape, dtype in zip(self.given, shapes, dtypes)}
        for one, (shape, _) in zip(self.given, arrays.values()):
            if (rank := len(one["shape"])) != len(shape):
                many = f"{rank} dimension{'s' * (rank != 1)} ({', '.join(one['shape'])})"
                raise ValueError(f"{self.name}: {one['name']} has {many}, not {len(shape)}.")
        rest = iter(explicit)
        sizes = tuple(
            next(rest) if one["argument"] is None else arrays[one["argument"]][0][one["dimension"]] // one["factor"]
            for one in self._size_sources
        )
        found = tuple(arrays[one["argument"]][1] for one in self._type_sources) if types is None else types
        needed = {one["name"]: one for one in self.bind(found, sizes)}
        for one, (shape, dtype) in zip(self.given, arrays.values()):
            if shape != needed[one["name"]]["shape"]:
                wanted = f"({', '.join(one['shape'])}) with {_assignments(self.sizes, sizes)}"
                raise ValueError(f"{self.name}: {one['name']} must have the shape {wanted}, not {shape}.")
            wanted = needed[one["name"]]["dtype"]
            wanted = storage.get(wanted, wanted)
            if dtype != wanted:
                raise ValueError(f"{self.name}: {one['name']} must be of the type {wanted}, not {dtype}.")
        self._require_types(found)
        return sizes, found

    def bind(self, types: Types, sizes: Sizes, given: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The arguments of a call in their order, with a data type, a shape or a value for each expression. Raises
        ValueError where a name of `given` is not an argument's."""
        known = [one["name"] for one in self.arguments]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"{self.name} has no argument {unknown[0]}; it has {', '.join(known)}.")
        names, found = self._names(types, sizes), list[dict[str, Any]]()
        for one in self.arguments:
            bound = {**one, "dtype": names.get(one["dtype"], one["dtype"])}
            if one["role"] == "scalar":
                bound["value"] = evaluate(one["value"], names)
            else:
                bound["shape"] = tuple(evaluate(text, names) for text in one["shape"])
            found.append(bound)
        return found

    def outputs(self, types: Types, sizes: Sizes) -> list[tuple[Sizes, str]]:
        """Shape and data type of each array that a call returns."""
        return [(one["shape"], one["dtype"]) for one in self.bind(types, sizes) if one["role"] == "out"]

    def prepare(self, device: int, types: Types, sizes: Sizes) -> PreparedLaunch:
        """CUDA: the launch for a shape on a device, with the task's scalars; the arrays' addresses are still 0."""
        return PreparedLaunch(self, device, types, sizes, self.choose(types, sizes), {})

    def enqueue(self, queue: Any, types: Types, sizes: Sizes, given: Given, choice: KernelChoice | None = None) -> Any:
        """OpenCL: enqueues the kernel for a shape on a queue of pyopencl, and returns the event.

        given: buffers for the arrays; choice: another kernel than that of `choose`. Raises ValueError where there is no
        kernel for types or sizes, or a buffer is too small.
        """
        import pyopencl

        choice, passed = choice or self.choose(types, sizes), list[Any]()
        for one in self.bind(types, sizes, given):
            if one["role"] == "scalar":
                passed.append(numpy_type(one["dtype"]).type(given.get(one["name"], one["value"])))
                continue
            passed.append(given[one["name"]])
            needed = math.prod(one["shape"]) * ELEMENT_BYTES[one["dtype"]]
            if passed[-1].size < needed:
                wanted = f"the shape {one['shape']} of {one['dtype']} takes {needed}"
                raise ValueError(f"{self.name}: {one['name']} has {passed[-1].size} bytes, but {wanted}.")
        passed += [pyopencl.LocalMemory(choice.shared_bytes)] * (choice.shared_bytes > 0)
        key = queue.context.int_ptr, types, choice.folder
        if key not in self._programs:
            about = self._sources[choice.folder, types]
            options = ["-cl-std=CL1.2"] + ["-cl-fast-relaxed-math"] * about["fast_math"]
            program = pyopencl.Program(queue.context, self._text(choice.folder, about)).build(options=options)
            # The context is kept with it, so that another context cannot get its address.
            entry = self.launches[choice.folder]["entry"]
            self._programs[key] = queue.context, pyopencl.Kernel(program, entry)
        kernel = self._programs[key][1]
        kernel.set_args(*passed)
        work_items = tuple(many * size for many, size in zip(choice.grid, choice.block))
        return pyopencl.enqueue_nd_range_kernel(queue, kernel, work_items, choice.block)

    def run(
        self, types: Types, sizes: Sizes, given: Given, choice: KernelChoice | None = None, device: int = 0
    ) -> float:
        """Milliseconds of one launch, which changes the given arrays as the kernel does.

        given: contiguous arrays of NumPy; device: of CUDA, which needs CuPy; OpenCL takes the device that was tuned on,
        or the first.
        """
        import numpy

        names = [one["name"] for one in self.arguments if one["role"] != "scalar"]
        choice, data = choice or self.choose(types, sizes), {name: given[name].view(numpy.uint8) for name in names}
        if self.backend == "opencl":
            import pyopencl

            flags = pyopencl.mem_flags.READ_WRITE | pyopencl.mem_flags.COPY_HOST_PTR
            buffers = {name: pyopencl.Buffer(self._queue.context, flags, hostbuf=one) for name, one in data.items()}
            event = self.enqueue(self._queue, types, sizes, {**given, **buffers}, choice)
            for name, host in data.items():
                pyopencl.enqueue_copy(self._queue, host, buffers[name]).wait()
            return float((event.profile.end - event.profile.start) * 1e-6)
        import cupy

        with cupy.cuda.Device(device):
            held = {name: cupy.asarray(host) for name, host in data.items()}
            addresses = {name: array.data.ptr for name, array in held.items()}
            launch = PreparedLaunch(self, device, types, sizes, choice, {**given, **addresses})
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            launch.start(cupy.cuda.get_current_stream().ptr)
            end.record()
            end.synchronize()
            for name, host in data.items():
                held[name].get(out=host)
            return float(cupy.cuda.get_elapsed_time(start, end))

    @cached_property
    def _queue(self) -> Any:
        import pyopencl

        devices = [device for platform in pyopencl.get_platforms() for device in platform.get_devices()]
        device = next((one for one in devices if one.name.strip() == self.about["device"]), devices[0])
        try:
            # The embedded CPU driver needs help on processors newer than itself; other drivers do not.
            from tunesmith.kernels.backends.opencl import name_processor

            name_processor(device)
        except ImportError:
            pass
        profiling = pyopencl.command_queue_properties.PROFILING_ENABLE
        return pyopencl.CommandQueue(pyopencl.Context([device]), properties=profiling)

    def load(self, device: int) -> None:
        """CUDA: loads all kernels onto a device, as is needed before a CUDA graph is captured."""
        for folder, types in self._sources:
            self.function(device, types, folder, 0)

    def function(self, device: int, types: Types, folder: str, shared: int) -> Any:
        """CUDA: the handle of a kernel's function, ready for `shared` bytes of dynamic shared memory."""
        with self._lock:
            known = self._functions.get((device, types, folder))
            if known is None:
                code, entry = self.machine_code(folder, types, self.use(device)), self.launches[folder]["entry"]
                module = self.driver.get(ctypes.c_void_p, "cuModuleLoadData", code)
                function = self.driver.get(ctypes.c_void_p, "cuModuleGetFunction", module, entry.encode())
                known = self._functions[device, types, folder] = [function, 0]
            if shared > known[1]:
                self.driver.call("cuFuncSetAttribute", known[0], MAX_DYNAMIC_SHARED, ctypes.c_int(shared))
                known[1] = shared
            return known[0]

    @cached_property
    def driver(self) -> Library:
        """CUDA's driver, opened when it is first needed."""
        return Library("libcuda.so.1")

    def use(self, device: int) -> str:
        """CUDA: makes the device's primary context current on this thread; gives its architecture, such as "sm_90"."""
        get, number = self.driver.get, self.driver.get(ctypes.c_int, "cuDeviceGet", device)
        self.driver.call("cuCtxSetCurrent", get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", number))
        major, minor = (get(ctypes.c_int, "cuDeviceGetAttribute", which, number).value for which in (MAJOR, MINOR))
        return f"sm_{major}{minor}"

    def machine_code(self, folder: str, types: Types, arch: str) -> bytes:
        """The code that was measured, if it is for `arch` (such as "sm_90"), else the compiled source."""
        about = self._sources[folder, types]
        measured = about["machine_code"]
        if measured["file"] is not None and measured["architecture"] == arch:
            code: bytes = (self.folder / folder / measured["file"]).read_bytes()
            if hashlib.sha256(code).hexdigest() != measured["sha256"]:
                raise KernelError(f"{measured['file']} is not the file that was exported: its sha256 differs.")
            return code
        return compile_source(self._text(folder, about), arch, about["fast_math"], about["max_registers"] or 0)

    def _text(self, folder: str, source: Mapping[str, Any]) -> str:
        return Path(self.folder, folder, source["source"]).read_text(encoding="utf-8")

    def _names(self, types: Types, sizes: Sizes) -> dict[str, Any]:
        return {**dict(zip(self.sizes, sizes)), **dict(zip(self.types, types))}

    def _require_types(self, types: Types) -> None:
        if types not in self.combinations:
            known = "; ".join(_assignments(self.types, one) for one in self.combinations)
            wanted = _assignments(self.types, types)
            raise ValueError(f"{self.name}: there is no kernel for {wanted}; there are kernels for {known}.")


def _ordered(values: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(values[name] for name in names)


def _assignments(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in zip(names, values))


def numpy_type(name: str) -> Any:
    """The NumPy type of a data type, which comes from the package ml_dtypes where NumPy has none."""
    import numpy

    name = ARRAY_TYPES.get(name, name)
    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((f"{part}_{axis}", ctypes.c_uint) for part in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number_of_attributes", ctypes.c_uint),
    ]


class Library:
    """A library of CUDA, whose functions return a status. name: its file."""

    def __init__(self, name: str) -> None:
        self.name, self._library = name, ctypes.CDLL(name)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function; raises `KernelError` for any status but 0."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise KernelError(f"{name} fails with CUDA status {status}.")

    def get(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Calls a function whose first parameter is the address of its result, and returns that result."""
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result


class PreparedLaunch:
    """A CUDA launch: only addresses, and scalars that a caller chooses, are still to be set in `slots`.

    ctypes takes several times the launch itself to convert Python's numbers. So all is prepared, and the driver reads
    configuration and arguments where they lie. given: addresses of arrays, 0 where left out.
    """

    __slots__ = ("_config", "_device", "_kernels", "_launch", "slots")

    def __init__(
        self, kernels: Kernels, device: int, types: Types, sizes: Sizes, choice: KernelChoice, given: Given
    ) -> None:
        self.slots: list[Any] = []
        for one in kernels.bind(types, sizes, given):
            kind = one["dtype"] if one["role"] == "scalar" else "pointer"
            value = given.get(one["name"], one.get("value", 0))
            bits = None if kind in C_TYPES else numpy_type(kind).type(value).tobytes()
            self.slots.append(C_TYPES[kind](value) if bits is None else ctypes.create_string_buffer(bits))
        packed = (ctypes.c_void_p * len(self.slots))(*map(ctypes.addressof, self.slots))
        self._kernels, self._device = kernels, device
        self._config = LaunchConfig(*choice.grid, *choice.block, choice.shared_bytes)
        function = kernels.function(device, types, choice.folder, choice.shared_bytes)
        # The lock of the interpreter is kept during a launch, which returns at once.
        launch = ctypes.PyDLL(kernels.driver.name).cuLaunchKernelEx
        self._launch = partial(launch, ctypes.byref(self._config), function, ctypes.byref(packed), None)

    def start(self, stream: int) -> None:
        """Launches on a stream (its handle). Raises `KernelError`."""
        self._config.stream = stream
        status = self._launch()
        if status == INVALID_CONTEXT:
            # A thread that has not used the device before.
            self._kernels.use(self._device)
            status = self._launch()
        if status != 0:
            raise KernelError(f"The launch fails with CUDA status {status}.")


def compile_source(source: str, arch: str, fast_math: bool, max_registers: int) -> bytes:
    """The machine code of `source` for `arch`, such as "sm_90", by NVRTC with the options it was measured with.

    NVRTC comes with PyTorch, with CuPy's wheels (nvidia-cuda-nvrtc) or with a CUDA toolkit. fast_math: relaxed
    arithmetic; max_registers: cap per thread, 0 for none. Raises `KernelError`.
    """
    # From 9.0 on an "a" allows the instructions that only this architecture has.
    target = f"{arch}a" if int("".join(filter(str.isdigit, arch))) >= 90 else arch
    options = [f"--gpu-architecture={target}", "--std=c++17", "--no-source-include", "-default-device"]
    options += ["--use_fast_math"] * fast_math + [f"--maxrregcount={max_registers}"] * (max_registers > 0)
    options += [f"--include-path={folder}" for folder in _headers()]
    library = _nvrtc()

    def read(what: str) -> bytes:
        size = ctypes.c_size_t()
        library.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        library.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    program = library.get(ctypes.c_void_p, "nvrtcCreateProgram", source.encode(), b"kernel.cu", 0, None, None)
    try:
        texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        try:
            library.call("nvrtcCompileProgram", program, len(options), texts)
        except KernelError as error:
            log = read("ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise KernelError(f"The source does not compile ({options[0]}):\n{log}") from error
        return read("CUBIN")
    finally:
        library.call("nvrtcDestroyProgram", ctypes.byref(program))


def _nvrtc() -> Library:
    names = [str(path) for folder in _nvidia("lib") for path in folder.glob("libnvrtc.so.1?")]
    for name in (*names, "libnvrtc.so.13", "libnvrtc.so.12", ctypes.util.find_library("nvrtc") or "libnvrtc.so"):
        try:
            return Library(name)
        except OSError:
            continue
    raise KernelError(
        "NVRTC is not installed, and the machine code here is for another GPU: install nvidia-cuda-nvrtc."
    )


def _headers() -> Iterator[Path]:
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for folder in (*_nvidia("include"), *(root / "include" for root in (*roots, Path("/usr/local/cuda")))):
        if any((folder / name).exists() for name in ("cuda_fp16.h", "crt", "cccl")):
            yield from (folder / name for name in HEADER_FOLDERS if (folder / name).is_dir())


def _nvidia(kind: str) -> list[Path]:
    """Folders of NVIDIA's wheels, which are laid out by component before CUDA 13 and together from then on."""
    return [path for root in sys.path for path in sorted(Path(root).glob(f"nvidia/*/{kind}"))]


def show_choice(folder: Path, given: Sequence[str]) -> str:
    """The program dispatch.py, as in `python dispatch.py n=1000 T=float32`: a shape's kernel and its launch."""
    kernels = Kernels(folder)
    values, known = dict(item.partition("=")[::2] for item in given), (*kernels.sizes, *kernels.types)
    sizes = tuple(int(values[name]) for name in kernels.sizes if values.get(name, "").isdecimal())
    if values.keys() != set(known) or len(sizes) < len(kernels.sizes) or 0 in sizes:
        examples = " ".join(map("=".join, zip(known, (*("16" for _ in kernels.sizes), *kernels.combinations[0]))))
        wanted = f"Give {', '.join(known)}, with sizes as whole numbers of at least 1"
        sys.exit(f"{wanted}, not {' '.join(given) or 'nothing'}, as in: python dispatch.py {examples}")
    try:
        choice = kernels.choose(_ordered(values, kernels.types), sizes)
    except ValueError as error:
        sys.exit(str(error))
    return "{}: grid {}, block {}, {} bytes of dynamic shared memory".format(*choice)


def drawn(one: Mapping[str, Any], random: Any) -> Any:
    """Random elements for an array of launch.json, in the order and between the ends that its task declares."""
    kind, low, high = one.get("fill", ("normal", None, None))
    if kind == "permutation":
        return random.random(one["shape"]).argsort(axis=-1)
    if "float" in one["dtype"]:
        array = random.standard_normal(one["shape"]) if low is None else random.uniform(low, high, one["shape"])
    else:
        array = random.integers(round(low or 0), round(1 if high is None else high), one["shape"], endpoint=True)
    if kind in ("sorted", "offsets"):
        array.sort(axis=-1)
    if kind == "offsets":
        array[..., 0], array[..., -1] = 0, high
    return array


def run_workload(folder: Path, given: Sequence[str]) -> int:
    """The program launch.py: a launch of a folder's kernel on a measured shape, compared with the reference."""
    import numpy

    kernels = Kernels(folder.parent)
    about = kernels.launches[folder.name]
    name = given[0] if given else next(iter(about["workloads"]))
    if name not in about["workloads"]:
        sys.exit(f"There is no workload '{name}'; choose one of {', '.join(about['workloads'])}.")
    launch, random = about["workloads"][name], numpy.random.default_rng(0)
    passed, read = dict[str, Any](), dict[str, Any]()
    for one in launch["arguments"]:
        if one["role"] == "scalar":
            read[one["name"]] = passed[one["name"]] = one["value"]
            continue
        passed[one["name"]] = drawn(one, random).astype(numpy_type(one["dtype"]))
        if one["role"] != "out":
            read[one["name"]] = passed[one["name"]].astype(numpy.float64)
    expected = runpy.run_path(str(folder.parent / "reference.py"))[about["reference"]](**read)
    types, sizes = _ordered(launch["types"], kernels.types), _ordered(launch["sizes"], kernels.sizes)
    choice = KernelChoice(folder.name, tuple(launch["grid"]), tuple(launch["block"]), launch["shared_bytes"])
    try:
        milliseconds = kernels.run(types, sizes, passed, choice)
    except KernelError as error:
        sys.exit(str(error))
    right = True
    for one in launch["arguments"]:
        if one["role"] in ("out", "inout"):
            want = expected[one["name"]]
            got = passed[one["name"]].astype(numpy.float64).reshape(want.shape)
            right &= numpy.allclose(got, want, **one["tolerance"], equal_nan=True)
    print(f"{kernels.name} on {name}: {'right' if right else 'WRONG'}, first launch {milliseconds:.3f} ms")
    return 0 if right else 1
