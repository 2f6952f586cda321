"""merge_attn_states in float64."""

import numpy as np


def merge_attn_states(
    prefix_output: np.ndarray,
    prefix_lse: np.ndarray,
    suffix_output: np.ndarray,
    suffix_lse: np.ndarray,
    n: int,
    h: int,
    d: int,
) -> dict[str, np.ndarray]:
    """Attention over two parts of the context, joined by their log-sum-exps.

    An infinite log-sum-exp of either sign says that the part is empty and counts as -inf. Where both parts are empty
    the output is 0 and its log-sum-exp -inf.
    """
    prefix_lse = np.where(np.isinf(prefix_lse), -np.inf, prefix_lse)
    suffix_lse = np.where(np.isinf(suffix_lse), -np.inf, suffix_lse)
    largest = np.maximum(prefix_lse, suffix_lse)
    shift = np.where(np.isinf(largest), 0.0, largest)
    prefix_weight = np.exp(prefix_lse - shift)
    suffix_weight = np.exp(suffix_lse - shift)
    total = prefix_weight + suffix_weight
    divisor = np.where(total == 0.0, 1.0, total)
    with np.errstate(divide="ignore"):
        output_lse = np.log(total) + largest
    # The log-sum-exps are [h, n], the outputs [n, h, d].
    prefix_share = (prefix_weight / divisor).T[:, :, None]
    suffix_share = (suffix_weight / divisor).T[:, :, None]
    return {"output": prefix_output * prefix_share + suffix_output * suffix_share, "output_lse": output_lse}
