"""Alternatives to the kernel: the opponents of its benchmarks."""

import torch


def expression(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    table: torch.Tensor,
    n: int,
    h: int,
    k: int,
    pairs: int,
) -> dict[str, torch.Tensor]:
    """The formula in PyTorch's operations, in float."""
    cosines, sines = table[positions].unsqueeze(1).chunk(2, dim=-1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)

    return {"query": turned(query), "key": turned(key)}
