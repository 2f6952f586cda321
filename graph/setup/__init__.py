"""What happens before the first round: the device, the preconditions, the seeds, more of a run that was begun."""
