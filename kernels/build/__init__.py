"""From a template and a point to machine code: a kernel's source, the rules it must keep, its artifact.

Owns texts, artifacts and their cache on disk; running a compiler is for `tunesmith.kernels.backends`.
"""
