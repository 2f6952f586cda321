"""What one would call instead of the kernel."""

import torch


def convolution(image: torch.Tensor, filter: torch.Tensor, out: torch.Tensor, n: int, h: int, w: int) -> None:
    """PyTorch's own (cuDNN's, where that is installed), in the images' type."""
    weights = filter.to(image.dtype).view(1, 1, 3, 3)
    out.copy_(torch.nn.functional.conv2d(image.unsqueeze(1), weights, padding=1).squeeze(1))
