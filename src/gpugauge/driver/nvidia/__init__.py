"""The NVML backend."""
