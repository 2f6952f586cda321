"""The verdict on one candidate in processes of its own, without Ray (`judge`), and on the task (`task_check`)."""
