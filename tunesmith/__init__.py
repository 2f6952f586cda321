"""Tunesmith tunes GPU kernels: agents expose parameters, a constrained search finds their values.

The six rooms live at the top of the repository and are linked here, so that one import name holds all.
"""

__version__ = "0.1.0"
