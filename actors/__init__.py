"""Where it runs: Ray actors for compiling and measuring, the pool that feeds them, the cluster they live on."""
