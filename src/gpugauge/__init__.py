"""A Prometheus exporter: whether PyTorch uses the GPU, how well, and if not, why.

This file imports nothing, so that a training process that imports `gpugauge.hook` loads only the standard library.
"""

__version__ = "0.2.0"
