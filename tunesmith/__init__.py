"""Tunesmith tunes GPU kernels: templates expose a kernel's choices as parameters, and a constrained search finds their
values on the device.

`__all__` lists the public names; all other modules and names may change without notice. Heavy packages are imported
when a name is first used. The rooms lie at the top of the repository and are linked here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunesmith.graph.context import Context
    from tunesmith.graph.models.calls import Waiting
    from tunesmith.graph.results.summary import Summary, read_summary
    from tunesmith.graph.roles import register, veto
    from tunesmith.graph.run import RunResult, resume, tune
    from tunesmith.graph.state import State
    from tunesmith.graph.tune_kernel import TunedKernel, tune_kernel
    from tunesmith.hw.errors import TunesmithError
    from tunesmith.kernels.spec.task import Task
    from tunesmith.kernels.spec.taskfile import load_task
    from tunesmith.kernels.spec.template import Template

__version__ = "0.1.0"
__all__ = ["Context", "RunResult", "State", "Summary", "Task", "Template", "TunedKernel", "TunesmithError", "Waiting"]
__all__ += ["load_task", "read_summary", "register", "resume", "tune", "tune_kernel", "veto"]
_MODULES = {
    "graph.context": ("Context",),
    "graph.models.calls": ("Waiting",),
    "graph.results.summary": ("Summary", "read_summary"),
    "graph.roles": ("register", "veto"),
    "graph.run": ("RunResult", "resume", "tune"),
    "graph.state": ("State",),
    "graph.tune_kernel": ("TunedKernel", "tune_kernel"),
    "hw.errors": ("TunesmithError",),
    "kernels.spec.task": ("Task",),
    "kernels.spec.taskfile": ("load_task",),
    "kernels.spec.template": ("Template",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
