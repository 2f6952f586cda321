"""The data types of arrays and scalars: one record each, of all that the other modules need to know of a type.

A further type is one record in `DTYPES`. Owns names, storage, ranges, default tolerances and conversion; what is done
with the values is the business of `tunesmith.kernels.launch` and `tunesmith.kernels.check`. `C_TYPES` has the types by
the names that C, CUDA C++ and OpenCL C have for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunesmith.hw.errors import TunesmithError

_HEADERLESS_FLOAT = """
DEVICE float small_to_float(unsigned int bits) {{
    const unsigned int fraction = bits & {fraction_mask}u, exponent = (bits >> {fraction_bits}) & {exponent_mask}u;
    const unsigned int sign = (bits >> {sign_bit}) << 31;
    if ({is_special}) return AS_FLOAT(sign | 0x7f800000u | fraction << {shift});
    if (exponent == 0u) return (sign ? -1.0f : 1.0f) * (float)fraction * {smallest}f;
    return AS_FLOAT(sign | (exponent + {bias}u) << 23 | fraction << {shift});
}}
#define VALUE(x) ((double)small_to_float(x))
"""


def _small_float(exponent_bits: int, fraction_bits: int, *, infinity: bool = True) -> str:
    """C that reads a float of fewer bits by its bits, so that the check needs neither headers nor extensions.

    IEEE 754-2019, section 3.4; without `infinity` only all ones are a NaN (OCP 8-bit floating point, e4m3).
    """
    exponent_mask, fraction_mask = (1 << exponent_bits) - 1, (1 << fraction_bits) - 1
    bias = exponent_mask >> 1
    special = f"exponent == {exponent_mask}u" + ("" if infinity else f" && fraction == {fraction_mask}u")
    return _HEADERLESS_FLOAT.format(
        fraction_mask=fraction_mask,
        fraction_bits=fraction_bits,
        exponent_mask=exponent_mask,
        sign_bit=exponent_bits + fraction_bits,
        is_special=special,
        shift=23 - fraction_bits,
        smallest=repr(2.0 ** (1 - bias - fraction_bits)),
        bias=127 - bias,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """One data type.

    name: in task files and expressions. size: bytes of one element. c_names: by backend, the type that stands for it in
    a kernel's source; a backend that is missing has no such type. cuda_header: the header that declares it.
    numpy_name: its type in NumPy, or in ml_dtypes where NumPy has none. rtol, atol: the tolerance of a task that gives
    none. largest: the largest finite value (infinite where results never leave the range); fraction_bits: stored bits
    of a significand. saturates: whether stores clamp to `largest` instead of giving infinity. poison:
    bytes that fill outputs before a launch, in turn: for floats a NaN, and not the one that computing gives. load: C
    that defines VALUE(x), the value as a double of an element read as unsigned bits, with the macros DEVICE and
    AS_FLOAT of `tunesmith.kernels.check.compare`; empty for what C converts by itself.
    """

    name: str
    size: int
    c_names: Mapping[str, str]
    is_float: bool = False
    cuda_header: str = ""
    numpy_name: str = ""
    rtol: float = 0.0
    atol: float = 0.0
    largest: float = math.inf
    fraction_bits: int = 0
    saturates: bool = False
    poison: tuple[int, ...] = (0xF5, 0xFF)
    load: str = ""

    def c_name(self, backend: str) -> str:
        """The type's name in a kernel's source; raises `TunesmithError` where the backend has none."""
        if backend not in self.c_names:
            raise TunesmithError(self.unavailable(backend))
        return self.c_names[backend]

    def unavailable(self, backend: str) -> str:
        """Why a task that uses this type cannot have sources for `backend`."""
        others = ", ".join(one.name for one in DTYPES.values() if one.is_float and backend in one.c_names)
        return (
            f"the dtype {self.name} is not available on the backend {backend}, only on {', '.join(self.c_names)}: use "
            f"another type ({others}) or leave out [backends.{backend}]."
        )

    def element(self, backend: str) -> str:
        """The C type as which the check reads an element."""
        if self.load or self.name == "bool":
            return {1: "unsigned char", 2: "unsigned short"}[self.size]
        return self.c_name(backend)

    @property
    def storage(self) -> np.dtype[Any]:
        """The type in NumPy arrays on the host; that of ml_dtypes where NumPy has none."""
        name = self.numpy_name or self.name
        if hasattr(np, name):
            return np.dtype(name)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found

    @property
    def array(self) -> np.dtype[Any]:
        """The type in arrays on a device: `storage`, or its bits as an unsigned integer where CuPy has no such type."""
        storage = self.storage
        return storage if storage.isbuiltin == 1 else np.dtype(f"u{self.size}")

    @property
    def span(self) -> tuple[float, float]:
        """The least and the largest finite value of a scalar."""
        if self.is_float:
            return -self.largest, self.largest
        if self.name == "bool":
            return 0, 1
        bounds = np.iinfo(self.storage)
        return int(bounds.min), int(bounds.max)

    @property
    def overflow(self) -> float:
        """Magnitude from which round-to-nearest leaves the finite values: the largest and half a unit in its last place
        (IEEE 754-2019, section 4.3.1). Infinite where results never leave the range."""
        if math.isinf(self.largest):
            return math.inf
        return self.largest + math.ldexp(1.0, math.frexp(self.largest)[1] - 2 - self.fraction_bits)

    def from_float(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values in `storage`, as a kernel stores them: integers are rounded, what saturates is clamped."""
        if not self.is_float:
            values = np.rint(values)
        elif self.saturates:
            values = np.clip(values, -self.largest, self.largest)
        with np.errstate(over="ignore", invalid="ignore"):
            stored: NDArray[Any] = values.astype(self.storage)
        return stored

    def rounded(self, value: float) -> float:
        """`value` as the type holds it, as a number of Python."""
        if not self.is_float or not math.isfinite(value):
            return value
        return float(self.from_float(np.array([value])).astype(np.float64)[0])

    def scalar(self, value: float) -> np.generic:
        """`value` as a kernel's argument: a NumPy scalar of the type `array`."""
        stored = self.from_float(np.array([value])) if self.is_float else np.array([value], self.storage)
        scalar: np.generic = stored.view(self.array)[0]
        return scalar

    def to_float64(self, xp: Any, raw: Any) -> Any:
        """An array of `xp` (NumPy or CuPy) of the type `array` as float64."""
        if self.array == self.storage:
            return raw.astype(xp.float64)
        return xp.asarray(_values(self.storage, self.array))[raw]

    def limited(self, xp: Any, values: Any, rtol: float) -> Any:
        """Float64 `values` as far as the type can hold them: magnitudes beyond its range by more than the relative
        tolerance become infinities, or the largest finite value where stores saturate."""
        if math.isinf(self.largest):
            return values
        if self.saturates:
            return xp.clip(values, -self.largest, self.largest)
        return xp.where(xp.abs(values) >= self.overflow * (1 + rtol), xp.copysign(xp.inf, values), values)


@lru_cache
def _values(storage: np.dtype[Any], bits: np.dtype[Any]) -> NDArray[np.float64]:
    """The value of every pattern of bits of a type of one or two bytes."""
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 8 * bits.itemsize, dtype=bits).view(storage).astype(np.float64)


def _integer(name: str, size: int, cuda: str, opencl: str) -> DataType:
    return DataType(name=name, size=size, c_names={"cuda": cuda, "opencl": opencl})


def _float(
    name: str,
    bits: tuple[int, int],
    c_names: Mapping[str, str],
    rtol: float,
    atol: float,
    header: str = "",
    **more: Any,
) -> DataType:
    """bits: of the exponent and of the fraction, as IEEE 754 has them."""
    exponent, fraction = bits
    largest = (2 - 2.0**-fraction) * 2.0 ** ((1 << exponent - 1) - 1)
    fields = {"size": (1 + exponent + fraction) // 8, "largest": largest, "fraction_bits": fraction, **more}
    return DataType(name=name, c_names=c_names, is_float=True, cuda_header=header, rtol=rtol, atol=atol, **fields)


_UPPER_HALF = "#define VALUE(x) ((double)AS_FLOAT((unsigned int)(x) << 16))\n"
_TYPES = (
    _float("float64", (11, 52), {"cuda": "double", "opencl": "double"}, 1e-12, 1e-12, largest=math.inf),
    _float("float32", (8, 23), {"cuda": "float", "opencl": "float"}, 1e-5, 1e-5),
    # Half arithmetic is an OpenCL extension many devices lack, so there 16-bit floats are storage: half is read with
    # vload_half, bfloat16 is the upper half of a float kept in a ushort. The tolerances of both are two units in the
    # last place, for results that are rounded once after float arithmetic.
    _float(
        "float16", (5, 10), {"cuda": "__half", "opencl": "half"}, 2e-3, 2e-3, "cuda_fp16.h", load=_small_float(5, 10)
    ),
    _float(
        "bfloat16",
        (8, 7),
        {"cuda": "__nv_bfloat16", "opencl": "ushort"},
        1.6e-2,
        1.6e-2,
        "cuda_bf16.h",
        load=_UPPER_HALF,
    ),
    # Open Compute Project, 8-bit floating point specification (OFP8). CUDA's conversions clamp to the largest finite
    # value (PTX: cvt.satfinite). e4m3 has no infinity, and two NaNs only, which differ in their sign; computing gives
    # the positive one on a GPU. The tolerance is one unit in the last place.
    _float(
        "float8_e4m3",
        (4, 3),
        {"cuda": "__nv_fp8_e4m3"},
        rtol=0.125,
        atol=2.0**-6,
        header="cuda_fp8.h",
        numpy_name="float8_e4m3fn",
        largest=448.0,
        saturates=True,
        poison=(0xFF,),
        load=_small_float(4, 3, infinity=False),
    ),
    _float(
        "float8_e5m2",
        (5, 2),
        {"cuda": "__nv_fp8_e5m2"},
        rtol=0.25,
        atol=2.0**-6,
        header="cuda_fp8.h",
        saturates=True,
        poison=(0xFD,),
        load=_small_float(5, 2),
    ),
    _integer("int64", 8, "long long", "long"),
    _integer("uint64", 8, "unsigned long long", "ulong"),
    _integer("int32", 4, "int", "int"),
    _integer("uint32", 4, "unsigned int", "uint"),
    _integer("int16", 2, "short", "short"),
    _integer("uint16", 2, "unsigned short", "ushort"),
    _integer("int8", 1, "signed char", "char"),
    _integer("uint8", 1, "unsigned char", "uchar"),
    _integer("bool", 1, "bool", "uchar"),
)
DTYPES: Mapping[str, DataType] = {one.name: one for one in _TYPES}
"""Every data type Tunesmith knows, by name."""
_OTHER_NAMES = {
    "float64": "double fp64 f64",
    "float32": "float single fp32 f32",
    "float16": "half fp16 f16",
    "bfloat16": "bf16",
    "float8_e4m3": "fp8 e4m3",
    "float8_e5m2": "e5m2",
    "int64": "long",
    "int32": "int",
    "uint32": "unsigned",
    "int16": "short",
    "int8": "char",
    "uint8": "byte",
}
ALIASES = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
"""Names that other tools have for some of them, for messages alone."""
_C_NAMES = {
    "float32": "float",
    "float64": "double",
    "float16": "half, __half, nv_half",
    "bfloat16": "__nv_bfloat16, nv_bfloat16",
    "float8_e4m3": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
    "int8": "char, signed char, int8_t",
    "uint8": "unsigned char, uint8_t, uchar",
    "bool": "bool",
    "int16": "short, int16_t",
    "uint16": "unsigned short, uint16_t, ushort",
    "int32": "int, int32_t",
    "uint32": "unsigned, unsigned int, uint32_t, uint",
    "int64": "long, long long, int64_t, long int",
    "uint64": "unsigned long, unsigned long long, uint64_t, ulong, size_t",
}
C_TYPES = {c_name: name for name, c_names in _C_NAMES.items() for c_name in c_names.split(", ")}
"""Data types by their names in C, on a platform with 64-bit longs."""
