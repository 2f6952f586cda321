"""Kernels and their measurement: task, template, space, search, compilation, checks, timing, library.

The core is pure and runs anywhere; GPU libraries are imported where they are used, never at import time.
"""
