"""What the driver keeps: the scheduler, the workers and their replacement, and calls that have the pool to themselves."""
