"""The double of the NVML library, and recordings."""
