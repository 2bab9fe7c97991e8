"""The node of a tick as typed values: what collectors have read, for the verdict and for all that judges."""
