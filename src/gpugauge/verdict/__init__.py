"""Is a training process using the GPU, and if not, why: pure functions from what was measured to state and causes."""
