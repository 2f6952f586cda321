"""From a plain CUDA kernel to a task and a template, by rules and without a model.

Owns reading a source (`source`), the draft of a task (`draft`), and what `passes` make of it (`template`). It never
runs anything: whether a rewritten kernel is right is for `tunesmith.kernels.check`.
"""
