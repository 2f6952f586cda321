"""The verdict on one candidate, in processes of its own, without Ray: its order (`judge`), its steps spread over
processes (`steps`), and the check of the task and its reference (`task_check`)."""
