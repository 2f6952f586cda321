"""What runs in a Ray worker: the actors, and a lane that survives what it runs."""
