"""Files that describe tasks: task.toml and the files it names, a candidate beside a task, drafts that are not finished,
and Kernel Tuner's T1. Owns what a mistake in them is called, with file and key; what a task means is in the room above
this one's folder (`tunesmith.kernels.spec.task`)."""
