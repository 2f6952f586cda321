"""The search of a round: one strategy for each template, all sharing the round's evaluations by successive halving.
It proposes and measures; what the results are worth is decided in `testing`."""
