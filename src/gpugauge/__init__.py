"""A Prometheus exporter of how PyTorch uses the GPU. Imports nothing, so that `gpugauge.hook` loads little."""

__version__ = "0.2.0"
