"""Counts the instructions of PTX by what they do: a static picture of a kernel that needs no CUDA toolkit.

PTX is what the compiler's front end hands to ptxas, which still unrolls, vectorises little and removes much; the counts
say how wide memory accesses are and what the kernel is made of, not how often an instruction runs. Names are those of
the PTX ISA (NVIDIA, "Parallel Thread Execution ISA", sections 9.7.1 to 9.7.13).
"""

from __future__ import annotations

import re
from collections import Counter

_INSTRUCTION = re.compile(
    r"(?:^|[{;])[ \t]*(?:@!?%\w+[ \t]+)?([a-z][a-z0-9]*(?:[.:]+[A-Za-z0-9_]+)*)[ \t]+[^\n;]*(?=;)", re.MULTILINE
)
_TYPE = re.compile(r"^[bsuf](?:f)?(8|16|32|64|128)(x2)?$|^(bf16)(x2)?$")
_SPECIAL = frozenset({"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt", "div"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "mad", "fma", "neg", "abs", "min", "max", "mul24", "mad24"})
_LOGIC = frozenset({"and", "or", "xor", "not", "shl", "shr", "shf", "lop3", "prmt", "bfe", "bfi", "popc", "clz"})
_SPACES = ("global", "shared", "local", "const")


def instruction_mix(ptx: str) -> dict[str, int]:
    """Number of instructions of each sort in the whole text, the most frequent first. Accesses to memory carry their
    width, as in "ld.global 16 B"; loads of parameters and declarations are left out."""
    counts = Counter(sort for match in _INSTRUCTION.finditer(ptx) if (sort := _sort(match.group(1))) is not None)
    return dict(counts.most_common())


def _sort(opcode: str) -> str | None:
    parts = [part for part in re.split(r"[.:]+", opcode) if part]
    name = parts[0]
    if name in ("ld", "ldu", "st", "atom", "red"):
        space = next((part for part in parts if part in _SPACES), None)
        if space is None:
            return None if "param" in parts else f"{name} generic {_bytes(parts)} B"
        return f"{'ld' if name == 'ldu' else name}.{space} {_bytes(parts)} B"
    if name == "cp" and "async" in parts:
        return "cp.async"
    if name in ("bar", "barrier", "shfl", "vote", "match", "redux", "membar", "fence", "bra", "call", "cvt"):
        return {"barrier": "bar", "membar": "fence", "bra": "branch"}.get(name, name)
    if name in ("mma", "wmma", "ldmatrix", "wgmma"):
        return "tensor core"
    kind = _kind(parts)
    if name in _SPECIAL:
        return f"special function or division, {kind}"
    if name in _ARITHMETIC:
        return f"fma, {kind}" if name == "fma" else f"arithmetic, {kind}"
    if name in _LOGIC:
        return "bits and shifts"
    if name in ("setp", "set", "selp", "slct"):
        return "compare or select"
    return None


def _bytes(parts: list[str]) -> int:
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    for part in reversed(parts):
        if (match := _TYPE.match(part)) is not None:
            bits = int(match.group(1) or 16)
            return vector * bits // 8 * (2 if match.group(2) or match.group(4) else 1)
    return vector


def _kind(parts: list[str]) -> str:
    last = parts[-1]
    if last.startswith(("f16", "bf16")):
        return "16-bit float"
    if last in ("f32", "f64"):
        return "float" if last == "f32" else "double"
    return "integer"
