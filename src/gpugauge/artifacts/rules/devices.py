"""The alerts whose identity is a GPU or an exporter."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import NODE, Alert
from gpugauge.artifacts.rules.options import Parameters, Severity, duration
from gpugauge.artifacts.rules.recording import DEVICE_BUSY, Selectors

_SLOWDOWN = "~hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown|hw_slowdown"
_XIDS: dict[str, tuple[Severity, str]] = {
    "application": ("info", "the program did something wrong: look at its log, restart it"),
    "reset": ("warning", "the GPU must be reset"),
    "workflow": ("warning", "memory or NVLink needs the workflow in NVIDIA's catalogue"),
    "node": ("critical", "the machine must be looked at: off the bus, power, firmware"),
    "recovery": ("warning", "the driver wants something done: see gpu_recovery_action"),
    "other": ("info", "the error is not in the catalogue"),
}
_UNTIL = (
    '{{ range printf "gpugauge_driver_released_until_timestamp_seconds{instance=%q}" $labels.instance | query }}'
    " {{ .Value | humanizeTimestamp }}{{ end }}"
)


def of_devices(p: Parameters) -> list[Alert]:
    """Return the alerts whose identity is a GPU."""
    s = Selectors(p)
    counted = f"rate({s('gpu_clocks_event_seconds_total', p.patience, reason=_SLOWDOWN)})"
    # Drivers before R575 count no seconds of these reasons.
    seen = f"avg_over_time({s('gpu_clocks_event_active', p.patience, reason=_SLOWDOWN)})"
    held = f"{counted}\n  or on (uuid, reason) {seen}"
    return [
        Alert(
            "GpuLost",
            f"min by (uuid) ({s('gpu_up')}) == 0",
            "critical",
            "GPU {{ $labels.uuid }} does not answer",
            f"On{NODE}: lost, hanging or gone.",
            120,
        ),
        Alert(
            "GpuThrottled",
            f"max by (uuid) (\n  ({held}) >= 0.2\n)\nand on (uuid) {DEVICE_BUSY} >= 0.2",
            "warning",
            "GPU {{ $labels.uuid }} lowers its clocks for heat or a power brake",
            f"On{NODE}: for {{{{ $value | humanizePercentage }}}} of the last {duration(p.patience)}.",
            p.settle,
        ),
        *(_xid(p, name, severity, what) for name, (severity, what) in _XIDS.items()),
    ]


def _xid(p: Parameters, name: str, severity: Severity, what: str) -> Alert:
    errors = Selectors(p)("gpu_xid_errors_total", p.patience, **{"class": name})
    return Alert(
        f"GpuXid{name.capitalize()}",
        f"max by (uuid) (increase({errors}) > 0)",
        severity,
        f"GPU {{{{ $labels.uuid }}}} had Xid errors of the class {name}",
        f"On{NODE}: {{{{ $value | humanize }}}} in {duration(p.patience)}; {what}.",
    )


def of_exporters(p: Parameters) -> list[Alert]:
    """Return the alerts whose identity is an exporter."""
    s = Selectors(p)
    # Released is not blind: somebody asked for it, and DriverReleasedLong watches over it.
    driver = f"max by (instance) ({s('gpugauge_driver_up', reason='!released')}) == 0"
    age = f"time() - max by (instance) ({s('gpugauge_snapshot_timestamp_seconds')})"
    return [
        Alert(
            "ExporterBlind",
            f"({driver})\nor on (instance) ({age} > {2 * p.lookback})",
            "warning",
            "gpugauge on {{ $labels.instance }} does not see the GPUs",
            "The driver does not answer it, or it puts no new values together.",
            p.settle,
        ),
        Alert(
            "ExporterDown",
            f"max by (instance) ({s.up()}) == 0",
            "warning",
            "gpugauge on {{ $labels.instance }} cannot be scraped",
            "Nothing is known of its GPUs; alerts about them stay as they were for a while and then resolve.",
            2 * p.settle,
        ),
        Alert(
            "DriverReleasedLong",
            # A gap of scrapes does not begin the wait anew.
            f"max by (instance) (last_over_time({s('gpugauge_driver_released', p.lookback)})) == 1",
            "warning",
            "gpugauge on {{ $labels.instance }} has given the driver back for long",
            f"For more than {duration(p.release_patience)}, until{_UNTIL}. Its GPUs are not watched meanwhile.",
            p.release_patience,
        ),
    ]
