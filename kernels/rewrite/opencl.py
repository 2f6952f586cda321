"""OpenCL C in the spelling of CUDA C++, so that one parser and one set of rules read both.

Owns the words that the two languages have for the same thing. `read_as_cuda` serves reading alone; `HEADER` gives a
source in that spelling its meaning back for an OpenCL compiler, as a template by rules needs it.
"""

from __future__ import annotations

import re

HEADER = """\
#define __global__ __kernel
typedef struct { size_t x, y, z; } size_t3;
#define threadIdx ((size_t3){get_local_id(0), get_local_id(1), get_local_id(2)})
#define blockIdx ((size_t3){get_group_id(0), get_group_id(1), get_group_id(2)})
#define blockDim ((size_t3){get_local_size(0), get_local_size(1), get_local_size(2)})
#define gridDim ((size_t3){get_num_groups(0), get_num_groups(1), get_num_groups(2)})
"""
"""CUDA's names as macros, of OpenCL's type: the result of a computation with an index keeps its type."""
_AXIS = {"0": "x", "1": "y", "2": "z"}
_CALLS = {
    "get_local_id": "threadIdx",
    "get_group_id": "blockIdx",
    "get_local_size": "blockDim",
    "get_num_groups": "gridDim",
}
_OWN_NAMES = frozenset({"size_t3", "threadIdx", "blockIdx", "blockDim", "gridDim", "__global__"})
_TOGETHER = re.compile(
    r"\b(?:barrier|(?:async_)?work_group_\w+|sub_group_\w+|wait_group_events)\s*\(|\b(?:__local|local)\b"
)
_OF_THE_LAUNCH = re.compile(r"\bget_(?:global_size|global_offset|work_dim|enqueued_local_size|\w+_linear_id)\b")
_BY_A_VARIABLE = re.compile(r"\bget_(?:global_id|local_id|group_id|local_size|num_groups)\b")
_KERNEL = re.compile(r"\b(?:__kernel|kernel)\b(?=\s+(?:__attribute__|void))")
_ADDRESS_SPACE = re.compile(r"\b(?:__global|global|__constant|constant|__private|private)\b(?!\s*\()")
_LOCAL = re.compile(r"\b(?:__local|local)\b(?!\s*\()")
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\([^()]*(?:\([^()]*\))?[^()]*\)\)")


def indices_as_cuda(code: str) -> str:
    """`code` with its work-item functions of a literal axis as CUDA's variables; all else stays."""
    for function, variable in _CALLS.items():
        code = re.sub(
            rf"\b{function}\s*\(\s*([012])\s*\)",
            lambda found, variable=variable: f"{variable}.{_AXIS[found.group(1)]}",  # type: ignore[misc]
            code,
        )
    return re.sub(
        r"\bget_global_id\s*\(\s*([012])\s*\)",
        lambda found: "(blockIdx.{0} * blockDim.{0} + threadIdx.{0})".format(_AXIS[found.group(1)]),
        code,
    )


def editable(code: str) -> tuple[str, str]:
    """`code` in CUDA's spelling in two forms whose places agree: one to be edited, which `HEADER` gives an OpenCL
    compiler, and one for the parser, without what CUDA C++ does not know."""
    edited = _KERNEL.sub("__global__", indices_as_cuda(code))

    def blank(found: re.Match[str]) -> str:
        return " " * len(found.group(0))

    return edited, _LOCAL.sub(blank, _ADDRESS_SPACE.sub(blank, _ATTRIBUTE.sub(blank, edited)))


def oddity(code: str, reached: str) -> str:
    """Why the rules leave an OpenCL kernel as it is, as a clause; empty where they may rewrite it. code: the file as it
    came; reached: what of it in the spelling of `editable` the kernel uses. Both are without comments."""
    if taken := sorted(_OWN_NAMES & set(re.findall(r"\w+", code))):
        return f"it uses the name {taken[0]}, which the rules need"
    if _TOGETHER.search(reached):
        return "its work-items work together, and the rules for OpenCL know work-items by themselves only"
    if "reqd_work_group_size" in reached:
        return "it says the size of its work-groups itself"
    if _OF_THE_LAUNCH.search(reached):
        return "it asks for the size of the whole launch"
    if found := _BY_A_VARIABLE.search(reached):
        return f"it gives {found[0]} an axis that is no number"
    return ""


def read_as_cuda(code: str) -> str:
    """`code` as CUDA C++, for the parser: address spaces left out, barriers and indices by CUDA's names."""
    code = _ATTRIBUTE.sub("", code)
    code = _KERNEL.sub("__global__", code)
    code = _LOCAL.sub("__shared__", _ADDRESS_SPACE.sub("", code))
    code = re.sub(r"\b(?:barrier|work_group_barrier)\s*\([^()]*\)", "__syncthreads()", code)
    return indices_as_cuda(code)
