"""A rewrite looks at a subject, and either contributes edits and parameters or says why it does not apply.

Every rewrite has a value of its parameters that undoes it, and that value is the default: the kernel as it came is
always a point of the space.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps

from tunesmith.kernels.rewrite.source import Kernel
from tunesmith.kernels.rewrite.threads import Cells, Fixed, Rows
from tunesmith.kernels.spec.template import BackendName, Constraint, LaunchGeometry, Parameter

AXES = "xyz"


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that takes the place of the source's bytes from start to end. closes: it ends what an edit of the same rule
    began, so that of several at one place that of the last rule comes first."""

    start: int
    end: int
    text: str
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """What a rule contributes. header: lines before the source; block: of the launch, by axis; scale: by how much the
    number of threads along an axis shrinks; exact: axes whose threads must be as many as they were; static_shared:
    bytes of static shared memory that it adds, shared: of dynamic; instead: a parameter that, where it is not 0, has a
    launch of its own; grid: of the launch, by axis, in the place of what it was.
    """

    parameters: tuple[Parameter, ...]
    edits: tuple[Edit, ...] = ()
    header: str = ""
    constraints: tuple[Constraint, ...] = ()
    block: tuple[tuple[str, str], ...] = ()
    scale: tuple[tuple[str, str], ...] = ()
    exact: tuple[str, ...] = ()
    fast_math: str = ""
    static_shared: str = ""
    shared: str = ""
    grid: tuple[tuple[str, str], ...] = ()
    instead: tuple[str, LaunchGeometry] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """why: a sentence without its full stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What a rule looks at: the kernel, its launch, and how it shares its work. name: gives a parameter or a macro a
    name that the source and the task do not use; backend: its language is CUDA C++ or OpenCL C; types: the task's type
    names; lengths: elements of arrays, as the task says them, by the names of the kernel's parameters; same_sizes: the
    task's sizes that the kernel gets by their names; only: the names of the rules that may apply, None for all."""

    kernel: Kernel
    launch: LaunchGeometry
    work: Cells | Rows | Fixed
    name: Callable[[str], str]
    backend: BackendName = "cuda"
    types: frozenset[str] = frozenset()
    lengths: Mapping[str, str] = field(default_factory=dict)
    same_sizes: frozenset[str] = frozenset()
    only: Collection[str] | None = None

    @property
    def index_type(self) -> str:
        """What the language counts threads in."""
        return "unsigned int" if self.backend == "cuda" else "size_t"

    def block(self, axis: str) -> str:
        """The block's extent along an axis, as the task says it."""
        position = AXES.index(axis)
        return self.launch.block[position] if position < len(self.launch.block) else "1"

    def grid(self, axis: str) -> str:
        """The grid's extent along an axis, as the task says it."""
        position = AXES.index(axis)
        return self.launch.grid[position] if position < len(self.launch.grid) else "1"


Rule = Callable[[Subject], Applied | Skipped]


def rule(look: Rule) -> Rule:
    """Makes a function a rule, which applies only where the subject leaves it to: rules that ask another whether it
    applies are told so, too."""

    @wraps(look)
    def asked(given: Subject) -> Applied | Skipped:
        if given.only is not None and look.__name__ not in given.only:
            return Skipped(f"the rule {look.__name__} was withdrawn")
        return look(given)

    return asked
