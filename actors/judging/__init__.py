"""The verdict on one candidate, in processes of its own, without Ray: `judge`, and the check of the task
and its reference, `task_check`."""
