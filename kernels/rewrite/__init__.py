"""From a plain kernel to a template, by rules and without a model.

Owns the facts of a source, and what `passes` make of them (`template`). It never runs anything: whether a rewritten
kernel is right is for `tunesmith.kernels.check`.
"""
