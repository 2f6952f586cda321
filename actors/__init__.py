"""Where it runs: Ray actors for compiling and measuring, the pool that feeds them, the cluster they live on."""

import os
import sys

if not os.environ.get("RAY_ADDRESS") and "ray" not in sys.modules:
    # Who reaches a cluster's ports can run code on it. Ray makes the token, but reads this once, when the first of its
    # actors is declared. Where Ray was imported before, it has read it, and starts a cluster with a token of its own.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
