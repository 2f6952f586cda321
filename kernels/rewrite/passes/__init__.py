"""The rewrites of a plain kernel, one module for each that changes what a kernel does with its data.

Owns what a rewrite is (`rule`), the rewrites and their order (`rules`). They read the facts of `source` and `threads`,
and put nothing together: that is for `template`.
"""
