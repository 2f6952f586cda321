"""The Ray cluster: attaching to one, its GPUs, who shares them, and the actors on it that may die."""
