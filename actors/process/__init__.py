"""Isolated processes and what runs in them, without Ray: the two plain kinds of worker."""
