"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def layer_norm(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, n: int, d: int
) -> torch.Tensor:
    """PyTorch's own."""
    return torch.nn.functional.layer_norm(input, (d,), weight, bias, eps)
