"""nbody in float64."""

import numpy as np


def nbody(
    positions: np.ndarray,
    velocities: np.ndarray,
    masses: np.ndarray,
    gravity: float,
    softening: float,
    step: float,
    n: int,
) -> dict[str, np.ndarray]:
    """All pairs, 512 bodies at a time; new velocities move the bodies (semi-implicit Euler)."""
    parts = []
    for start in range(0, n, 512):
        apart = positions - positions[start : start + 512, None]
        weights = masses / ((apart**2).sum(axis=2) + softening**2) ** 1.5
        parts.append((weights[:, None] @ apart)[:, 0])
    moved = velocities + step * gravity * np.concatenate(parts)
    return {"new_velocities": moved, "new_positions": positions + step * moved}
