"""The data types of tasks by the names that C, CUDA C++ and OpenCL C have for them."""

from __future__ import annotations

C_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "nv_half": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3", "__nv_fp8_e5m2": "float8_e5m2",
    "char": "int8", "signed char": "int8", "int8_t": "int8", "unsigned char": "uint8", "uint8_t": "uint8",
    "uchar": "uint8", "bool": "bool", "short": "int16", "int16_t": "int16", "unsigned short": "uint16",
    "uint16_t": "uint16", "ushort": "uint16",
    "int": "int32", "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32",
    "uint": "uint32", "long": "int64", "long long": "int64", "int64_t": "int64", "long int": "int64",
    "unsigned long": "uint64", "unsigned long long": "uint64", "uint64_t": "uint64", "ulong": "uint64",
    "size_t": "uint64",
}  # fmt: skip
"""Data types by their names in C, on a platform with 64-bit longs."""
