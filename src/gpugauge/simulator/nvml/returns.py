"""The return codes of the simulated library (nvmlReturn_t)."""

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 1, 2, 3, 6, 7
TIMEOUT, GPU_IS_LOST = 10, 15
