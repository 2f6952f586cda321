"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def expression(logits: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, n: int, e: int, k: int) -> None:
    """PyTorch's own softmax and top k."""
    chosen, indices = torch.topk(torch.softmax(logits, -1, dtype=torch.float32), k)
    weights.copy_(chosen)
    experts.copy_(indices)


# For each shape by itself, as the templates are.
compiled = torch.compile(expression, dynamic=False)
