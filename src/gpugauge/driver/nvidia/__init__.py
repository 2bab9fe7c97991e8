"""Everything that knows NVML."""
