"""Is PyTorch really using the GPU, how well, and if not, why? A Prometheus exporter.

This file imports nothing, so that a training process may load `gpugauge.hook` at the price of the standard library.
"""

__version__ = "0.1.0"
