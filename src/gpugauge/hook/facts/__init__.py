"""Facts about the process: build, environment, devices, parameters."""
