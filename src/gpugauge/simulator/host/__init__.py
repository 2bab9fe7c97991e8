"""The doubles of `/proc`, and of the hook in each simulated training."""
