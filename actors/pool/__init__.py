"""What the driver keeps: the scheduler, the workers and their replacement, and calls that use the pool alone."""
