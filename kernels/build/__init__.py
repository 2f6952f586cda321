"""From a template and a point to machine code: the source a compiler sees, what it may contain, and what came of it.

Owns texts, artifacts and their cache on disk; running a compiler is for `tunesmith.kernels.backends`.
"""
