"""Triton kernels: read from the files in which people keep them, without importing those.

`source` finds the kernel, the part of its modules that it uses, and the values of their constants; `reading` what the
kernel does with its arguments; `launch` how the file calls it; `space` the choices and their limits; `draft` writes the
task.
"""
