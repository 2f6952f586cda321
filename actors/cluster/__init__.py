"""The Ray cluster: attaching to one, its GPUs, and the actors on it that may die."""

import os

# A worker that dies is an outcome to us. Ray would print a paragraph about each on standard output, where results go;
# it reads this when it is first imported. https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
