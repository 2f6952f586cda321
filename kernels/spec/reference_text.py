"""A task's reference as a Python text that takes and gives NumPy arrays, whatever framework it is written in.

Owns the conversion to PyTorch and back. The text stands by itself: it goes to worker processes with the task, and to
`best/` with a run's results.
"""

from __future__ import annotations

from tunesmith.kernels.spec.task import Task

_TORCH = '''

def _with_numpy(function, outputs):
    """`function` of PyTorch tensors as one of arrays. CuPy's are not copied. One output may come without its dict."""
    import torch

    def call(**given):
        where = next((value for value in given.values() if hasattr(value, "__cuda_array_interface__")), None)
        device = "cpu"
        if where is not None:
            import cupy

            # PyTorch works on a stream of its own, which does not wait for what still writes these arrays.
            cupy.cuda.Device().synchronize()
            device = "cuda"
        tensors = {
            name: torch.as_tensor(value, device=device) if getattr(value, "ndim", 0) else value
            for name, value in given.items()
        }
        with torch.no_grad():
            results = function(**tensors)
        if not isinstance(results, dict):
            results = dict(zip(outputs, results if isinstance(results, (tuple, list)) else [results]))
        if where is None:
            return {name: value.detach().cpu().numpy() for name, value in results.items()}
        torch.cuda.current_stream().synchronize()
        return {name: cupy.from_dlpack(value.detach().contiguous()) for name, value in results.items()}

    return call


@NAME@ = _with_numpy(@NAME@, @OUTPUTS@)
'''
_ORIGINAL = '''"""The reference of this task is its original kernel: there is nothing on the host to compare with."""


def @NAME@(**given):
    raise SystemExit(__doc__)
'''


def runnable_reference(task: Task) -> str:
    """Python source that defines `task.reference_name` for NumPy arrays, which it gets and returns by name."""
    if task.original_is_reference:
        return _ORIGINAL.replace("@NAME@", task.reference_name)
    if task.framework == "numpy":
        return task.reference
    outputs = repr([argument.name for argument in task.outputs])
    return task.reference + _TORCH.replace("@NAME@", task.reference_name).replace("@OUTPUTS@", outputs)
