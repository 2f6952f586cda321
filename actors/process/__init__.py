"""Isolated processes and what runs in them, without Ray: the fork server, and the two plain kinds of worker."""
