"""What one would call instead of the kernel."""

import torch


def softmax(input: torch.Tensor, out: torch.Tensor, n: int, d: int) -> None:
    """PyTorch's own."""
    torch.softmax(input, -1, out=out)
