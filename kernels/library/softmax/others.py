"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def softmax(input: torch.Tensor, out: torch.Tensor, n: int, d: int) -> None:
    """PyTorch's own."""
    torch.softmax(input, -1, out=out)
