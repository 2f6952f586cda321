"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def expression(x: torch.Tensor, q: torch.Tensor, scales: torch.Tensor, largest: float, n: int, d: int) -> None:
    """The formula in PyTorch's operations, in float."""
    wide = x.float()
    torch.div(wide.abs().amax(dim=1).clamp_min(1e-10), largest, out=scales)
    result = wide / scales[:, None]
    q.copy_(result.round() if q.dtype == torch.int8 else result)


# For each shape by itself, as the templates are.
compiled = torch.compile(expression, dynamic=False)
