"""A kernel below `triton.autotune`, called as people call it: Triton compiles and times its list at the first call."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tunesmith.kernels.backends.triton.compiler import FILE, imported
from tunesmith.kernels.build.python_source import FIXED
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import KernelOpponent, Workload
from tunesmith.kernels.spec.template import Config, without_options


class Autotuned:
    """A function of the kernel's arguments by name, tensors among them. Raises `ImportError` without PyTorch, by which
    Triton measures."""

    def __init__(self, opponent: KernelOpponent, workload: Workload) -> None:
        try:
            import torch
            import triton
        except ImportError as error:
            raise ImportError(f"{error}; Triton's autotuner measures by PyTorch: `pip install torch`") from error
        # A reference that is compiled in this process leaves a stand-in for the driver.
        triton.runtime.driver.reset_active()
        # For kernels that make descriptors of tensors.
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        self._launch, self._sizes = opponent.template.launch, workload.names
        with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder:
            path = Path(folder, FILE)
            path.write_text(opponent.template.source, encoding="utf-8")
            module = imported(path)
        self._fixed, options = without_options(getattr(module, FIXED, {}))
        listed = [triton.Config(own, **{**options, **more}) for own, more in map(without_options, opponent.configs)]
        self.tuner = triton.autotune(configs=listed, key=[])(getattr(module, opponent.template.entry))
        self._names, self._chosen = [one.name for one in opponent.template.parameters], False

    def __call__(self, **given: Any) -> None:
        def grid(meta: Any) -> tuple[int, ...]:
            return tuple(parse(text).integer({**self._sizes, **meta}) for text in self._launch.grid)

        from triton import knobs

        if self._chosen:
            self.tuner[grid](**given, **self._fixed)
            return
        # What earlier programs compiled does not shorten the first call.
        with tempfile.TemporaryDirectory(prefix="tunesmith-triton-") as folder, knobs.cache.scope():
            knobs.cache.dir = folder
            self.tuner[grid](**given, **self._fixed)
        self._chosen = True

    @property
    def choice(self) -> Config:
        """The configuration that the first call has chosen."""
        chosen = self.tuner.best_config.all_kwargs()
        return {name: chosen[name] for name in self._names if name in chosen}
