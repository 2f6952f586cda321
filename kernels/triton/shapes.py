"""The shapes of a Triton kernel's arrays, by what its launches reach: Triton's interpreter runs it on the host, in a
process of its own, without arrays. Loads give a constant, in some runs with a sign by array, which decides comparisons
of two arrays; and what is kept of each access is how far it reaches.

An address says which array it belongs to, and how often each stride was added to it: arrays lie `1 << ARRAY_BITS` bytes
apart, and strides are powers of two beyond all offsets that have none. So the extent of each dimension is read off the
addresses, however the kernel computes them. The interpreter has one function for loads and one for stores; these two
are replaced (`triton.runtime.interpreter._interpreter`), since no option of it does that.

Owns what is concluded: an extent is an expression of sizes where it is one on every set of sizes; it is unknown where
it depends on numbers that are read, or on a block that is tuned; and a block that leaves an array must divide a size.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.python_source import FIXED
from tunesmith.kernels.reader.facts import product
from tunesmith.kernels.reader.shapes import fit
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import ExpressionError, parse

PLAIN_BITS, STRIDE_BITS, STRIDES, ARRAY_BITS = 24, 8, 4, 59
"""Bits of an offset without strides, of an index that is multiplied by a stride, such strides, and bits of an array's
bytes, whose elements have eight at most."""
_PLACES = tuple(PLAIN_BITS + STRIDE_BITS * at for at in reversed(range(STRIDES)))
SECONDS = 25.0
LONG, REMOVED = f"it takes longer than {SECONDS:g} s", "not in Triton: "
"""The processor's time for all runs, what is said where they take longer, and before what the installed Triton does not
have."""

SETS = 3
ROWS, FEW, POWERS, GRIDS = (16, 48, 80, 112, 144, 176, 208), (2, 3, 4, 5, 6, 7, 8, 9), (64, 128, 32), (7, 9, 11)
"""Values of sizes: multiples of LEAST_BLOCK but not of the next power of two, small ones, powers of two, and programs
of a launch whose grid is not known, enough of which read all that they share."""
LEAST_BLOCK, COVERING, LOADED, SIGNS = 16, 256, (1, 100), ((1, -1), (-1, 1))
"""The size of a block, and of one that has to cover a row; the values of loads, two to see what depends on them, and
signs that arrays of floats have in turn, so that either is larger."""
Texts = Mapping[str, str]
Given = Mapping[str, Any]
Extents = dict[str, list[int]]
"""By array, one more than the largest offset without strides, than the largest index of each of STRIDES strides, and
than the largest offset without strides beside such an index above 0."""


def sets_of(kinds: Mapping[str, Sequence[int]], quotients: Collection[tuple[str, str]]) -> list[dict[str, int]]:
    """Sets of values of sizes, as small as they can be to differ within a set and from set to set. kinds: by size, the
    values that it may have; quotients: sizes, and expressions of other ones that divide them."""
    found: list[dict[str, int]] = [{} for _ in range(SETS)]
    for known in dict.fromkeys(kinds.values()):
        names = [one for one, values in kinds.items() if values is known]
        count = min(max(len(names) + 1, SETS), len(known))
        for at, one in enumerate(found):
            one |= {name: known[(place + at) % count] for place, name in enumerate(names)}
    for one, times in zip(found, (3, 2, 3), strict=True):
        for name in dict.fromkeys(name for name, _ in quotients):
            one[name] = times * lcm(*(parse(of).integer(one) for other, of in quotients if other == name))
    return found


def trace(source: str, entry: str, runs: Sequence[Mapping[str, Any]]) -> list[Extents | str]:
    """The extents that each run reaches in a process with Triton's interpreter, or why it ends without any.

    source: with `FIXED`; runs: `grid`; `numbers`, values by argument; `arrays`, types by argument; `loaded`, the value
    of all that is loaded; `signs`, those of floats, array by array in turn; `rising`, by how much whole numbers rise
    from each element of their array to the next."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder:
        path = Path(folder, "kernel.py")
        path.write_text(source, encoding="utf-8")
        command, given = [sys.executable, "-m", __name__, str(path), entry], json.dumps(runs)
        try:
            done = subprocess.run(
                command, input=given, env=environment, capture_output=True, text=True, timeout=3 * SECONDS
            )
        except subprocess.TimeoutExpired:
            return [LONG] * len(runs)
    if done.returncode:
        return [LONG if done.returncode < 0 else done.stderr.strip().rpartition("\n")[2][:200]] * len(runs)
    # Behind what the kernel prints.
    found: list[Extents | str] = json.loads(done.stdout.rpartition("\n")[2])
    return found


class Shapes:
    """The runs of a kernel. sets: of sizes in the order of dimensions; blocks: its parameters that are sizes of blocks;
    places: by stride, its place in an address. why: why the kernel cannot be run, else empty; whole: sizes that a
    block has to divide, with the block; resized: by block, arrays whose lengths it decides; tied: blocks that
    cannot be doubled alone."""

    def __init__(self, sets: Sequence[Mapping[str, int]], blocks: Sequence[str], places: Mapping[str, int]) -> None:
        self.sets, self.blocks, self.places, self.why = sets, blocks, places, ""
        self.whole, self.resized, self.tied = dict[tuple[str, str], None](), dict[str, set[str]](), list[str]()
        self._runs, self._signed, self._unsized = list[Extents](), list[Extents](), set[str]()

    def run(
        self, source: str, entry: str, grid: Sequence[str], arrays: Texts, numbers: Texts, values: Given, compares: bool
    ) -> None:
        """Runs the kernel on each set of sizes, and again on the second one, in which sizes have several blocks: with
        other numbers in its arrays, with each block doubled, and where it compares elements of two arrays with signs.

        arrays: types by argument; numbers: expressions by argument; values: of names in expressions that are no
        sizes."""
        blocks, asked = dict.fromkeys(self.blocks, LEAST_BLOCK), list[dict[str, Any]]()
        doubled = [{**self.sets[1], **blocks, one: 2 * LEAST_BLOCK} for one in self.blocks]
        for number, sizes in enumerate([*self.sets, self.sets[1], *doubled]):
            known = {**values, **blocks, **sizes}
            try:
                passed = {one: known[v] if v in known else parse(v).integer(known) for one, v in numbers.items()}
                axes = [parse(one).integer(known) for one in grid]
            except ExpressionError as error:
                self.why = str(error)
                return
            # The first strides are beyond 32 bits, in which products overflow.
            passed |= {one: 1 << _PLACES[place] for one, place in self.places.items()}
            loaded = LOADED[number == SETS]
            run: dict[str, Any] = {"grid": axes, "numbers": passed, "arrays": arrays, "loaded": loaded, "signs": (1, 1)}
            asked.append({**run, "rising": 0})
        if (refused := refuse_text(source, "triton")) is not None:
            self.why = refused.detail
            return
        found = trace(source, entry, asked)
        self.why = next((one for one in found[: SETS + 1] if isinstance(one, str)), "")
        if not self.why:
            # A block whose double alone does not run is one with another, or stays as it is.
            self.tied = [name for name, one in zip(self.blocks, found[SETS + 1 :], strict=True) if isinstance(one, str)]
            found = [found[1] if isinstance(one, str) else one for one in found]
        self._runs = [] if self.why else [one for one in found if not isinstance(one, str)]
        if self.ran and not all(map(self.reached, arrays)):
            # As row pointers rise, from one of which to the next a loop may count.
            risen = trace(source, entry, [{**one, "rising": 1 + (one["loaded"] != LOADED[0])} for one in asked])
            if all(isinstance(one, dict) for one in risen):
                self._runs = [one for one in risen if isinstance(one, dict)]
        signed = [{**asked[1], "signs": signs} for signs in SIGNS if compares and self.ran]
        self._signed = [one for one in (trace(source, entry, signed) if signed else ()) if not isinstance(one, str)]
        for name, reached in zip(self.blocks, self._runs[SETS + 1 :], strict=False):
            for array, extents in reached.items():
                pairs = list(zip(self._runs[1][array], extents, strict=True))[: 1 + STRIDES]
                of_sizes = {*self.sets[1].values()}
                own = [before for before, after in pairs if after == 2 * before and before not in of_sizes]
                if own or any(after < before for before, after in pairs):
                    self.resized.setdefault(name, set()).add(array)
                beyond = [before for before, after in pairs if after > before and before not in own]
                self.whole |= {(size, name): None for size, value in self.sets[1].items() if value in beyond}
                if {*beyond} - of_sizes:
                    self._unsized.add(array)

    @property
    def ran(self) -> bool:
        return bool(self._runs)

    def reached(self, array: str) -> bool:
        """Whether the array is read or written in each run."""
        return self.ran and all(any(one[array]) for one in self._runs[: SETS + 1])

    def of(
        self, array: str, strides: Sequence[str], steps: Iterable[frozenset[str]], fixed: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, int]]:
        """The shape of an array, with "?" for what no size tells, and the dimensions of its strides.

        strides: of the array, by which its indices are multiplied; steps: the names in all that they are multiplied by;
        fixed: values of blocks that are not tuned."""
        plain, *indices = zip(*(one[array] for one in self._runs[:SETS]), strict=True)
        plainly, *others = zip(*(one[array] for one in (self._runs[SETS], *self._signed)), strict=True)
        own, by_place, beside = {one: self.places[one] for one in strides}, indices[:STRIDES], indices[STRIDES:]
        used = [at for at, one in enumerate(by_place) if any(each > 1 for each in one) or at in own.values()]
        within = frozenset(steps)
        shape = [product(self._dimensions(by_place[at], others[at], within)) for at in used]
        apart = bool(own) and max(plain) > 1 and max(by_place[used[-1]]) > 1 and max(beside[used[-1]]) == 1
        if apart:
            # Offsets without a stride only where the last index is 0: its stride is 1, and they are of it too.
            shape[-1] = "?"
        elif not used or any(one > 1 for one in plain):
            dims = self._dimensions(plain, plainly, within)
            # Where nothing tells which of two sizes is the inner one, they make one dimension.
            parts = groupby(dims, lambda one: sum(bool(step & {*re.findall(r"\w+", one)}) for step in within))
            shape += [product(list(group)) for _, group in parts]
        shape = [self._certain(one, array, fixed) for one in shape]
        return shape, {one: used.index(place) for one, place in own.items()}

    def _certain(self, extent: str, array: str, fixed: Mapping[str, Any]) -> str:
        """An extent, or "?" where a number in it is one of these runs."""
        for block in (name for name, arrays in self.resized.items() if array in arrays):
            extent = re.sub(rf"\b{LEAST_BLOCK}\b", str(fixed.get(block, "?")), extent)
        numbers = re.findall(r"\b\d+\b", extent) if array in self._unsized else []
        by_chance = extent in numbers or any(int(one) % LEAST_BLOCK == 0 for one in numbers)
        return "?" if "?" in extent or by_chance else extent

    def _dimensions(
        self, reach: Sequence[int], others: Iterable[int], steps: frozenset[frozenset[str]]
    ) -> tuple[str, ...]:
        # An index that is read from an array tells no size, and does not exceed the one that it belongs to.
        first, second = (one + 1 for one in LOADED)
        known = all(one == reach[1] or (reach[1] > first and one == second) for one in others)
        return (fit(reach, self.sets, steps) if known else None) or ("?",)


# In the process with the interpreter


class _Array:
    """The part of a tensor's interface that the interpreter uses: its address, and copies, which it ignores."""

    def __init__(self, number: int, dtype: str) -> None:
        self.number, self.dtype = number, f"torch.{dtype}".replace("e4m3", "e4m3fn")

    def data_ptr(self) -> int:
        return self.number << ARRAY_BITS

    def same(self, *given: Any, **named: Any) -> _Array:
        return self

    untyped_storage = cpu = copy_ = new_empty = set_ = storage_offset = size = stride = same


class _Memory:
    """Stands in for the interpreter's functions on memory; everything else of them stays."""

    def __init__(self, functions: Any, bytes_of: Sequence[int], run: Mapping[str, Any]) -> None:
        self._functions, self._bytes, self._loaded = functions, bytes_of, run["loaded"]
        self._signs, self._rising = np.array(run["signs"]), run["rising"]
        self.extents = [[0] * (1 + 2 * STRIDES) for _ in bytes_of]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def _reach(self, pointers: Any, mask: Any) -> None:
        # A mask that is computed by `&` has whole numbers.
        inside = np.asarray(mask).astype(bool)
        addresses = np.broadcast_to(pointers, inside.shape)[inside].astype(np.uint64)
        numbers = addresses >> np.uint64(ARRAY_BITS)
        for number in np.unique(numbers):
            if number >= len(self.extents):
                raise ValueError("an address is in no array")
            own = addresses[numbers == number] & np.uint64((1 << ARRAY_BITS) - 1)
            offsets = own // np.uint64(self._bytes[number])
            digits = [offsets & np.uint64((1 << PLAIN_BITS) - 1)]
            digits += [offsets >> np.uint64(place) & np.uint64((1 << STRIDE_BITS) - 1) for place in _PLACES]
            digits += [np.where(one > 0, digits[0], 0) for one in digits[1:]]
            kept = self.extents[number]
            self.extents[number] = [max(one, int(of.max()) + 1) for one, of in zip(kept, digits, strict=True)]

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._reach(pointers, mask)
        number = np.asarray(pointers).astype(np.uint64) >> np.uint64(ARRAY_BITS)
        value = self._loaded * (self._signs[number % 2] if np.issubdtype(dtype, np.floating) else 1)
        if self._rising and not np.issubdtype(dtype, np.floating):
            offsets = pointers.astype(np.uint64) & np.uint64((1 << PLAIN_BITS) - 1)
            risen = offsets // np.uint64(dtype.itemsize) * np.uint64(self._rising)
            value = np.minimum(value + risen, (1 << STRIDE_BITS) - 2)
        return np.where(np.asarray(mask).astype(bool), np.asarray(value).astype(dtype), other)

    def store(self, pointers: Any, value: Any, mask: Any) -> None:
        self._reach(pointers, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:
        self._reach(pointers, mask)
        return np.zeros_like(value)

    def atomic_cas(self, pointers: Any, compared: Any, value: Any, order: Any) -> Any:
        self._reach(pointers, np.ones(pointers.shape, bool))
        return np.array(compared)


def _run(kernel: Any, fixed: Mapping[str, Any], run: Mapping[str, Any]) -> Extents | str:
    from triton.runtime import interpreter

    functions = interpreter._interpreter
    arrays = {name: _Array(place, dtype) for place, (name, dtype) in enumerate(run["arrays"].items())}
    bytes_of = [np.dtype(DTYPES[dtype].storage).itemsize for dtype in run["arrays"].values()]
    interpreter._interpreter = memory = _Memory(functions, bytes_of, run)
    try:
        with np.errstate(all="ignore"):
            kernel[tuple(run["grid"])](**{**fixed, **run["numbers"], **arrays})
    except Exception as error:  # noqa: BLE001 - the user's kernel may raise anything
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        return f"{REMOVED if _removed(first) else ''}{type(first).__name__}: {first}"[:200]
    finally:
        interpreter._interpreter = functions
    return dict(zip(arrays, memory.extents, strict=True))


def _removed(error: BaseException) -> bool:
    """Whether Triton's language does not have what the kernel uses, so that it cannot be compiled either."""
    if isinstance(error, NotImplementedError):
        return "triton/language/" in traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, AttributeError) and getattr(error.obj, "__name__", "").startswith("triton.language")


def _called(language: Any, name: str, *given: Any, **named: Any) -> Any:
    return getattr(language if hasattr(language, name) else language.math, name)(*given, **named)


def _main(path: Path, entry: str) -> None:
    # Whoever started this process may be gone.
    resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS)))
    for library in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        functions = importlib.import_module(library)
        for name, _ in inspect.getmembers(functions, inspect.isfunction):
            # The interpreter does not have these; their values tell nothing of shapes.
            setattr(functions, name, lambda *given: sum(given[1:], given[0]))
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    language = importlib.import_module("triton.language")
    for name, one in [*vars(module).items()]:
        # The interpreter replaces functions of the language where they are, not under other names.
        if language.core.is_builtin(one):
            setattr(module, name, partial(_called, language, one.__name__))
    found = [_run(getattr(module, entry), getattr(module, FIXED, {}), one) for one in json.load(sys.stdin)]
    print(f"\n{json.dumps(found)}", end="")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
