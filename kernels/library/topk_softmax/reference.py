"""topk_softmax in float64."""

import numpy as np


def topk_softmax(logits: np.ndarray, n: int, e: int, k: int) -> dict[str, np.ndarray]:
    """A stable sort keeps equal logits in the order of their indices."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return {"weights": np.take_along_axis(probabilities, experts, axis=1), "experts": experts}
