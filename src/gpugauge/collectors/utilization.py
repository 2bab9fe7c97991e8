"""How busy the engines of a card are."""

from __future__ import annotations

from gpugauge.collectors.base import Tick
from gpugauge.metric import RATIO, Metric, Table, families, scaled
from gpugauge.snapshot import Section

_device = Table("uuid")

METRICS: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_utilization_ratio",
        "Share of the driver's last sample period in which at least one kernel was running.",
        RATIO,
        lambda d: scaled(d.utilization_percent, 0.01),
        source="nvmlDeviceGetUtilizationRates",
    ),
    _device.gauge(
        "gpu_memory_utilization_ratio",
        "Share of the driver's last sample period in which device memory was being read or written.",
        RATIO,
        lambda d: scaled(d.memory_utilization_percent, 0.01),
        source="nvmlDeviceGetUtilizationRates",
    ),
)


class UtilizationCollector:
    """Rows by uuid, new with every fast reading."""

    name = "utilization"
    metrics = METRICS

    def collect(self, tick: Tick) -> Section:
        """Return the engines' load for every card that answers."""
        return Section(self.name, families(METRICS, [((d.uuid,), d.reading) for d in tick.driver.devices if d.up]))
