"""What runs inside Ray's actors: a lane that survives what it runs, and calls that wait in its process."""
