"""The double of the NVML library."""
