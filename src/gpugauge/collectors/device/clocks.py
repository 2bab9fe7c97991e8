"""Clocks of GPUs, and the reasons for which they are lowered."""

from __future__ import annotations

from gpugauge.collectors.device.readings import ReadingsCollector
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import Metric, Table, by, each, scaled

_domain, _reason = (Table[DeviceReading]("uuid", label) for label in ("domain", "reason"))
_MHZ = 1_000_000
_DOMAINS = ("graphics", "sm", "memory", "video")


def _hertz(*megahertz: int | None) -> dict[str, float]:
    return by(**{domain: scaled(clock, _MHZ) for domain, clock in zip(_DOMAINS, megahertz, strict=True)})


def _active(d: DeviceReading) -> dict[str, int] | None:
    active = d.clocks_event_reasons
    if active is None:
        return None
    # A driver that does not report the supported reasons supports at least those that it sets.
    return {reason: int(reason in active) for reason in (*(d.clocks_event_reasons_supported or ()), *active)}


METRICS: tuple[Metric, ...] = (
    _domain.gauge(
        "gpu_clock_hertz",
        "Current clock by domain.",
        lambda d: _hertz(d.clock_graphics_mhz, d.clock_sm_mhz, d.clock_memory_mhz, d.clock_video_mhz),
        source="nvmlDeviceGetClockInfo",
    ),
    _domain.gauge(
        "gpu_clock_max_hertz",
        "Maximum clock by domain.",
        lambda d: _hertz(d.clock_graphics_max_mhz, d.clock_sm_max_mhz, d.clock_memory_max_mhz, d.clock_video_max_mhz),
        source="nvmlDeviceGetMaxClockInfo",
    ),
    _reason.gauge(
        "gpu_clocks_event_active",
        "1 while the reason keeps the clocks below their maximum, 0 for the other reasons that the GPU supports.",
        _active,
        source="nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetSupportedClocksEventReasons",
    ),
    _reason.counter(
        "gpu_clocks_event_seconds_total",
        "Time in which the reason kept the clocks below their maximum, since the driver was loaded.",
        lambda d: each(d.clocks_event_nanoseconds, lambda nanoseconds: nanoseconds / 1e9),
        source="fields 74-79, and 251-253 or 269-271 by driver version",
    ),
)


class ClocksCollector(ReadingsCollector):
    """Rows by uuid."""

    name = "clocks"
    metrics = METRICS
    groups = ("static", "normal")
