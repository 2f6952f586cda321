"""Where it runs: Ray actors for compiling and measuring, the pool that feeds them, the cluster they live on."""

import os

if not os.environ.get("RAY_ADDRESS"):
    # Who reaches a cluster's ports can run code on it. Ray makes the token, but reads this once, when the first of its
    # actors is declared: a cluster that is started later would have a token that this process does not send.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
