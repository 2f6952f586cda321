"""The limits of devices that need not be here: by compute capability, by product, by a user's file.

Owns the tables and how a user's text finds a row in them; what this machine has is for `tunesmith.hw.probe`.
"""

from tunesmith.hw.targets.resolve import resolve_target

__all__ = ["resolve_target"]
