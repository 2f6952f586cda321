"""The templates of a round: taken from the task's library or written by a model, and tried before they are searched.
It knows nothing of searches; a trial measures default configurations only."""
