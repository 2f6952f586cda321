"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def copied(x: torch.Tensor, out: torch.Tensor, n: int, d: int) -> None:
    """A copy of the transposed view, as `x.t().contiguous()` makes one."""
    out.copy_(x.t())
