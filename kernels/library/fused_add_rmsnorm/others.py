"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def eager(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, n: int, d: int
) -> dict[str, torch.Tensor]:
    """PyTorch's own norm after a sum in place. The norm is an array of its own: copying it would only cost time."""
    residual += input
    return {"input": torch.nn.functional.rms_norm(residual, (d,), weight, eps), "residual": residual}


def expression(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, n: int, d: int
) -> dict[str, torch.Tensor]:
    """The formula in float. The copy is fused into the rest; with a second one, into `input`, the compiler of PyTorch
    2.14 ends with a KeyError on CPUs. An array of its own takes as many bytes."""
    total = residual.float() + input.float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    residual.copy_(total)
    return {"input": (total * scale * weight.float()).to(input.dtype), "residual": residual}


# For each shape by itself, as the templates are.
compiled = torch.compile(expression, dynamic=False)
