"""The pool in the driver process: the scheduler, the workers and their replacement, and calls that need it alone."""
