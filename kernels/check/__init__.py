"""Is a candidate right? One launch compared, a trial before timing, and the full verdict.

Owns the reasons for which a candidate is rejected; how long one takes is for `tunesmith.kernels.measure`.
"""
