"""The files that a user writes: task, template, parameters, expressions; and the launch that follows from them.

Knows no device, no compiler and no space: only what a task means and whether it is well formed.
"""
