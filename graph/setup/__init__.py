"""What happens before the first round: the device, the preconditions, more of a run that was begun."""
