"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def convolution(image: torch.Tensor, filter: torch.Tensor, out: torch.Tensor, n: int, h: int, w: int) -> None:
    """PyTorch's own (cuDNN's, where that is installed), in float: a filter rounded to halves gives something else."""
    out.copy_(torch.nn.functional.conv2d(image.float().unsqueeze(1), filter.view(1, 1, 3, 3), padding=1).squeeze(1))
