"""What `throughput.py` measures: the planted space, stretches of it through a pool, killers among them, what a visit is
made of, what replacing a lane's process takes, and another tool on the same points."""
