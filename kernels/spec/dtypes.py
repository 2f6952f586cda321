"""The data types of arrays and scalars: one record each, of all that the other modules need to know of a type.

A further type is one record in `DTYPES`. Owns names, storage, ranges, default tolerances and conversion; work with
the values is the business of `tunesmith.kernels.launch` and `tunesmith.kernels.check`. `C_TYPES` has the types by
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


def _small_float(exponent_bits: int, fraction_bits: int, *, infinity: bool = True) -> str:
    """C that reads a float of fewer bits by its bits, so that the check needs neither headers nor extensions.

    IEEE 754-2019, section 3.4; without `infinity` only all ones are a NaN (OCP 8-bit floating point, e4m3).
    """
    exponent_mask, fraction_mask, shift = (1 << exponent_bits) - 1, (1 << fraction_bits) - 1, 23 - fraction_bits
    bias = exponent_mask >> 1
    smallest = 2.0 ** (1 - bias - fraction_bits)
    special = f"exponent == {exponent_mask}u" + ("" if infinity else f" && fraction == {fraction_mask}u")
    return f"""
DEVICE float small_to_float(unsigned int bits) {{
    const unsigned int fraction = bits & {fraction_mask}u, exponent = (bits >> {fraction_bits}) & {exponent_mask}u;
    const unsigned int sign = (bits >> {exponent_bits + fraction_bits}) << 31;
    if ({special}) return AS_FLOAT(sign | 0x7f800000u | fraction << {shift});
    if (exponent == 0u) return (sign ? -1.0f : 1.0f) * (float)fraction * {smallest!r}f;
    return AS_FLOAT(sign | (exponent + {127 - bias}u) << 23 | fraction << {shift});
}}
#define VALUE(x) ((double)small_to_float(x))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """One data type.

    name: in task files and expressions. size: bytes of one element. c_names: by backend, the type that stands for it in
    a kernel's source; a backend that is missing has no such type. others: further names in C, CUDA C++ and OpenCL C,
    beside the one in CUDA. cuda_header: the header that declares it.
    numpy_name: its type in NumPy, or in ml_dtypes where NumPy has none. rtol, atol: the tolerance of a task that gives
    none. largest: the largest finite value (infinite where results never leave the range); fraction_bits: stored bits
    of a significand. saturates: whether stores clamp to `largest` instead of giving infinity. poison:
    bytes that fill outputs before a launch, in turn: for floats a NaN other than computing gives. load: C
    that defines VALUE(x), the value as a double of an element read as unsigned bits, with the macros DEVICE and
    AS_FLOAT of `tunesmith.kernels.check.compare`; empty for what C converts by itself.
    """

    name: str
    size: int
    c_names: Mapping[str, str]
    others: str = ""
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

    def element(self, backend: str) -> str:
        """The C type as which the check reads an element."""
        if self.load or self.name == "bool":
            return {1: "unsigned char", 2: "unsigned short"}[self.size]
        return self.c_names[backend]

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
    def finite(self) -> tuple[float, float]:
        """The least normal and the largest finite number of a float's storage."""
        import ml_dtypes

        found = ml_dtypes.finfo(self.storage)
        return float(found.smallest_normal), float(found.max)

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
        beyond = xp.abs(values) >= self.overflow * (1 + rtol)
        return xp.where(beyond, xp.copysign(xp.inf, values), values) if beyond.any() else values


@lru_cache
def _values(storage: np.dtype[Any], bits: np.dtype[Any]) -> NDArray[np.float64]:
    """The value of every pattern of bits of a type of one or two bytes."""
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 8 * bits.itemsize, dtype=bits).view(storage).astype(np.float64)


def _integer(name: str, size: int, cuda: str, opencl: str, others: str = "") -> DataType:
    triton = f"{'u' if name.startswith('u') else 'i'}{1 if name == 'bool' else 8 * size}"
    return DataType(name=name, size=size, c_names={"cuda": cuda, "opencl": opencl, "triton": triton}, others=others)


def _float(name: str, bits: tuple[int, int], c_names: tuple[str, ...], tolerance: float, **more: Any) -> DataType:
    """bits: of the exponent and of the fraction (IEEE 754). tolerance: relative, and absolute where `more` has none."""
    exponent, fraction = bits
    largest = (2 - 2.0**-fraction) * 2.0 ** ((1 << exponent - 1) - 1)
    fields = {"size": (1 + exponent + fraction) // 8, "largest": largest, "fraction_bits": fraction, "atol": tolerance}
    names = {backend: name for backend, name in zip(("cuda", "opencl", "triton"), c_names, strict=True) if name}
    return DataType(name=name, c_names=names, is_float=True, rtol=tolerance, **{**fields, **more})


_UPPER_HALF = "#define VALUE(x) ((double)AS_FLOAT((unsigned int)(x) << 16))\n"
_FP16 = {"cuda_header": "cuda_fp16.h", "others": "half, nv_half", "load": _small_float(5, 10)}
_BF16 = {"cuda_header": "cuda_bf16.h", "others": "nv_bfloat16", "load": _UPPER_HALF}
_FP8 = {"cuda_header": "cuda_fp8.h", "atol": 2.0**-6, "saturates": True}
_E4M3 = _FP8 | {"numpy_name": "float8_e4m3fn", "largest": 448.0, "load": _small_float(4, 3, infinity=False)}
_E5M2 = _FP8 | {"load": _small_float(5, 2)}
_TYPES = (
    _float("float64", (11, 52), ("double", "double", "fp64"), 1e-12, largest=math.inf),
    _float("float32", (8, 23), ("float", "float", "fp32"), 1e-5),
    # Half arithmetic is an OpenCL extension many devices lack, so there 16-bit floats are storage: half is read with
    # vload_half, bfloat16 is the upper half of a float kept in a ushort. The tolerances of both are two units in the
    # last place, for results that are rounded once after float arithmetic.
    _float("float16", (5, 10), ("__half", "half", "fp16"), 2e-3, **_FP16),
    _float("bfloat16", (8, 7), ("__nv_bfloat16", "ushort", "bf16"), 1.6e-2, **_BF16),
    # Open Compute Project, 8-bit floating point specification (OFP8). CUDA's conversions clamp to the largest finite
    # value (PTX: cvt.satfinite). e4m3 has no infinity, and two NaNs only, which differ in their sign; computing gives
    # the positive one on a GPU. The tolerance is one unit in the last place.
    _float("float8_e4m3", (4, 3), ("__nv_fp8_e4m3", "", "fp8e4nv"), 0.125, poison=(0xFF,), **_E4M3),
    _float("float8_e5m2", (5, 2), ("__nv_fp8_e5m2", "", "fp8e5"), 0.25, poison=(0xFD,), **_E5M2),
    _integer("int64", 8, "long long", "long", "long, int64_t, long int"),
    _integer("uint64", 8, "unsigned long long", "ulong", "unsigned long, uint64_t, ulong, size_t"),
    _integer("int32", 4, "int", "int", "int32_t"),
    _integer("uint32", 4, "unsigned int", "uint", "unsigned, uint32_t, uint"),
    _integer("int16", 2, "short", "short", "int16_t"),
    _integer("uint16", 2, "unsigned short", "ushort", "uint16_t, ushort"),
    _integer("int8", 1, "signed char", "char", "char, int8_t"),
    _integer("uint8", 1, "unsigned char", "uchar", "uint8_t, uchar"),
    _integer("bool", 1, "bool", "uchar"),
)
DTYPES: Mapping[str, DataType] = {one.name: one for one in _TYPES}
"""Every data type Tunesmith knows, by name."""
DTYPE_NAMES: Mapping[str, str] = dict(zip(DTYPES, DTYPES, strict=True))
"""Data types as expressions see them: names whose value is their own text."""
C_TYPES = {c_name: one.name for one in _TYPES for c_name in (one.c_names["cuda"], *one.others.split(", ")) if c_name}
"""Data types by their names in C, on a platform with 64-bit longs."""
