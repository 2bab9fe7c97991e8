"""Clocks, and what holds them down."""

from __future__ import annotations

from gpugauge.collectors.device.bydevice import ByDevice
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import HERTZ, NONE, SECONDS, Metric, Table, by, each, scaled

_device = Table("uuid")
_MHZ = 1_000_000

# nvmlClocksEventReasons: the bits of the mask, by what they say.
REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}


def _active(d: DeviceReading) -> dict[str, int] | None:
    mask = d.clocks_event_reasons
    if mask is None:
        return None
    # A driver that does not tell which reasons it knows tells at least the ones that it sets.
    supported = mask if d.clocks_event_reasons_supported is None else d.clocks_event_reasons_supported | mask
    return {reason: int(bool(mask & bit)) for reason, bit in REASONS.items() if supported & bit}


METRICS: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_clock_hertz",
        "Current clock by domain.",
        HERTZ,
        lambda d: by(
            graphics=scaled(d.clock_graphics_mhz, _MHZ),
            sm=scaled(d.clock_sm_mhz, _MHZ),
            memory=scaled(d.clock_memory_mhz, _MHZ),
            video=scaled(d.clock_video_mhz, _MHZ),
        ),
        "domain",
        source="nvmlDeviceGetClockInfo",
    ),
    _device.gauge(
        "gpu_clock_max_hertz",
        "Highest clock by domain.",
        HERTZ,
        lambda d: by(
            graphics=scaled(d.clock_graphics_max_mhz, _MHZ),
            sm=scaled(d.clock_sm_max_mhz, _MHZ),
            memory=scaled(d.clock_memory_max_mhz, _MHZ),
            video=scaled(d.clock_video_max_mhz, _MHZ),
        ),
        "domain",
        source="nvmlDeviceGetMaxClockInfo",
    ),
    _device.gauge(
        "gpu_clocks_event_active",
        "1 while the reason holds the clocks below their maximum, 0 for the other reasons that the GPU knows.",
        NONE,
        _active,
        "reason",
        source="nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetSupportedClocksEventReasons",
    ),
    _device.counter(
        "gpu_clocks_event_seconds_total",
        "Time for which the reason held the clocks down, since the driver was loaded.",
        SECONDS,
        lambda d: each(d.clocks_event_nanoseconds, lambda nanoseconds: nanoseconds / 1e9),
        "reason",
        source="fields 74-79, and 251-253 or 269-271 by driver version",
    ),
)


class ClocksCollector(ByDevice):
    """Rows by uuid."""

    name = "clocks"
    metrics = METRICS
    groups = ("static", "normal")
