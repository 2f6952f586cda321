"""What the driver keeps: queues, dispatch, replacement of workers, and calls that have the pool for themselves."""
