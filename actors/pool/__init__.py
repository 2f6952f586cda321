"""The pool in the driver process, and its workers in the cluster."""
