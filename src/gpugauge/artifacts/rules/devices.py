"""Alerts about GPUs, which carry `uuid`, and about exporters, which carry `instance`."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import NODE, Alert
from gpugauge.artifacts.rules.options import Parameters, Severity
from gpugauge.artifacts.rules.recording import DEVICE_BUSY, Selectors
from gpugauge.duration import format_duration

_SLOWDOWN = "~hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|hw_slowdown"
_XIDS: dict[str, tuple[Severity, str]] = {
    "application": ("info", "an error of the program: read its log and restart it"),
    "reset": ("warning", "the GPU must be reset"),
    "workflow": ("warning", "memory or NVLink needs the workflow in NVIDIA's catalogue"),
    "node": ("critical", "the machine must be inspected: the GPU is off the bus, power, firmware"),
    "recovery": ("warning", "the driver requests a recovery action: see gpu_recovery_action"),
    "other": ("info", "the error is not in the catalogue"),
}
_DOWN = (
    '{{ range printf "gpu_down_reason{uuid=%q}" $labels.uuid | query }} {{ .Labels.reason }}{{ else }} down{{ end }}'
)
_RELEASED_UNTIL = (
    '{{ range printf "gpugauge_driver_released_until_timestamp_seconds{instance=%q}" $labels.instance | query }}'
    " {{ .Value | humanizeTimestamp }}{{ end }}"
)


def of_devices(p: Parameters) -> list[Alert]:
    """Return the alerts about GPUs."""
    s = Selectors(p)
    counted = f"rate({s('gpu_clocks_event_seconds_total', p.patience, reason=_SLOWDOWN)})"
    # Drivers before R575 count no seconds of these reasons.
    sampled = f"avg_over_time({s('gpu_clocks_event_active', p.patience, reason=_SLOWDOWN)})"
    slowed = f"{counted}\n  or on (uuid, reason) {sampled}"
    return [
        Alert(
            "GpuLost",
            f"min by (uuid) ({s('gpu_up')}) == 0",
            "critical",
            "GPU {{ $labels.uuid }} does not answer",
            f"On{NODE}:{_DOWN}. It is lost, its driver calls hang, or the driver does not list it.",
            120,
        ),
        Alert(
            "GpuThrottled",
            f"max by (uuid) (\n  ({slowed}) >= 0.2\n)\nand on (uuid) {DEVICE_BUSY} >= 0.2",
            "warning",
            "GPU {{ $labels.uuid }} lowers its clocks because of heat or a power brake",
            f"On{NODE}: for {{{{ $value | humanizePercentage }}}} of the last {format_duration(p.patience)}.",
            p.settle,
        ),
        *(_xid(p, name, severity, advice) for name, (severity, advice) in _XIDS.items()),
    ]


def _xid(p: Parameters, name: str, severity: Severity, advice: str) -> Alert:
    errors = Selectors(p)("gpu_xid_errors_total", p.patience, **{"class": name})
    return Alert(
        f"GpuXid{name.capitalize()}",
        f"max by (uuid) (increase({errors}) > 0)",
        severity,
        f"GPU {{{{ $labels.uuid }}}} had Xid errors of the class {name}",
        f"On{NODE}: {{{{ $value | humanize }}}} in {format_duration(p.patience)}; {advice}.",
    )


def of_exporters(p: Parameters) -> list[Alert]:
    """Return the alerts about exporters."""
    s = Selectors(p)
    # An exporter with a released driver is not blind: DriverReleasedLong covers it.
    driver = f"max by (instance) ({s('gpugauge_driver_up', reason='!released')}) == 0"
    age = f"time() - max by (instance) ({s('gpugauge_snapshot_timestamp_seconds')})"
    return [
        Alert(
            "ExporterBlind",
            f"({driver})\nor on (instance) ({age} > {2 * p.lookback})",
            "warning",
            "gpugauge on {{ $labels.instance }} cannot read the GPUs",
            "The driver does not answer, or the exporter publishes no new values.",
            p.settle,
        ),
        Alert(
            "ExporterDown",
            f"max by (instance) ({s.up()}) == 0",
            "warning",
            "gpugauge on {{ $labels.instance }} cannot be scraped",
            "There is no data about its GPUs. Alerts about them keep firing for a while and then resolve.",
            2 * p.settle,
        ),
        Alert(
            "DriverReleasedLong",
            # last_over_time, so that a gap of scrapes does not restart `for`.
            f"max by (instance) (last_over_time({s('gpugauge_driver_released', p.lookback)})) == 1",
            "warning",
            "gpugauge on {{ $labels.instance }} has released the driver for a long time",
            f"For more than {format_duration(p.release_patience)}, until{_RELEASED_UNTIL}. "
            "Its GPUs are not monitored in the meantime.",
            p.release_patience,
        ),
    ]
