"""Model-based search: a Gaussian process over the feasible points, its targets, failures and acquisition.

Owns the strategy `surrogate` (in `search`) and its model. Imported only when that strategy is made: it needs SciPy.
"""
