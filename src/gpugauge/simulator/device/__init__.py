"""The simulated GPUs: what they do over time."""
