"""linear_scan in float64."""

import numpy as np


def linear_scan(gates: np.ndarray, x: np.ndarray, n: int, t: int) -> dict[str, np.ndarray]:
    """By doubling (Hillis and Steele); a pair (factor, state) is what so many steps make of the state before them."""
    factor, state, step = gates, x, 1
    while step < t:
        state = np.concatenate([state[:, :step], factor[:, step:] * state[:, :-step] + state[:, step:]], axis=1)
        factor = np.concatenate([factor[:, :step], factor[:, step:] * factor[:, :-step]], axis=1)
        step *= 2
    return {"out": state}
