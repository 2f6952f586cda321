"""silu_and_mul in float64."""

import numpy as np


def silu_and_mul(input: np.ndarray, n: int, d: int) -> dict[str, np.ndarray]:
    """The first half of each row is the gate, the second half the gated values."""
    gate, up = input[:, :d], input[:, d:]
    with np.errstate(over="ignore"):  # exp overflows for a very negative gate, whose silu is 0
        return {"out": gate / (1.0 + np.exp(-gate)) * up}
