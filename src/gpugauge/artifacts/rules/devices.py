"""Alerts about exporters, which carry `instance`."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration
from gpugauge.driver.advice import WITHOUT_GPU

_DOWN_SHARE = 0.4  # of the window, in which scrapes fail
_SKEW = 120  # seconds

_LOST = {  # without the sources that an administrator sets up
    "kubelet": "which GPU is allocated to which pod",
    "pod_logs": "the names of pods",
    "pods": "the owners of pods, so that each pod of a training can be a job of its own",
    "slurm": "which GPU is allocated to which Slurm job",
}


def of_exporters(s: Selectors) -> list[Alert]:
    """Return the alerts about exporters."""
    t = Texts(s)
    instance = s.keys("instance")
    lost = "".join(f'{{{{ if eq $labels.source "{name}" }}}}{text}{{{{ end }}}}' for name, text in _LOST.items())
    return [
        Alert(
            "ExporterBlind",
            f"({_blind(s)})\nor on ({instance}) max by ({instance}) ({_stuck(s)})",
            f"{t.exporter()} cannot read the GPUs",
            f"The driver does not answer, or the exporter publishes no new values.{t.reason_blind()}",
            s.patience // 2,
            f"the driver does not answer for half of {format_duration(s.patience)}, or no new values are published",
        ),
        Alert(
            "ExporterDown",
            _down(s),
            f"{t.exporter()} cannot be scraped",
            f"{t.seen_last()}Until it is scraped again there is no data about its GPUs: alerts about them keep firing "
            "for a while and then resolve.",
            int(s.down_window * _DOWN_SHARE),
            f"an exporter cannot be scraped for {_DOWN_SHARE:.0%} of {format_duration(s.down_window)}",
        ),
        Alert(
            "ExporterOutdated",
            _unjudged(s),
            f"{t.exporter()} does not judge the faults of its GPUs",
            "It is older than these rules, or runs without the collector `faults`. No fault of its GPUs has an alert. "
            "Upgrade it.",
            s.patience,
            "an exporter has GPUs and does not judge their faults: it is older than the rules",
        ),
        Alert(
            "ExporterClockSkewed",
            _skewed(s),
            f"The clock of {t.exporter()} differs from that of Prometheus",
            f"By {t.value('humanizeDuration', 0)}; it is ahead unless the value is negative. Times in metrics and logs "
            "are those of this clock. Check its synchronisation (timedatectl, chronyc tracking).",
            s.patience // 2,
            f"the clock of an exporter differs by more than {format_duration(_SKEW)} from that of Prometheus",
        ),
        Alert(
            "DriverReleasedLong",
            _released(s),
            f"{t.exporter()} has released the driver for a long time",
            f"For more than {format_duration(s.release_patience)}. Its GPUs are not monitored in the meantime."
            f"{t.released_until()}",
            s.release_patience,
            f"the driver is released for more than {format_duration(s.release_patience)}",
        ),
        Alert(
            "AttributionSourceDown",
            _failing(s, "gpugauge_attribution_source_up", source=f"~{'|'.join(_LOST)}"),
            f"{t.exporter()} cannot read the source {{{{ $labels.source }}}} of workload labels",
            f"Without it, gpugauge does not know {lost}. Its log has the reason.",
            s.settle,
            "a source of workload labels that is set up cannot be read",
        ),
        Alert(
            "ExporterCollectorFailing",
            _failing(s, "gpugauge_collector_success", collector=""),
            f"The collector {{{{ $labels.collector }}}} of {t.exporter()} fails",
            "Its metrics are missing or old, and alerts that need them do not fire. The log has the error. Restart the "
            "exporter; if that does not help, it is an error of gpugauge.",
            s.settle,
            "a collector or a thread of an exporter fails, so that its metrics are missing",
        ),
    ]


def _down(s: Selectors) -> str:
    """Return the share of failed scrapes in the window, if one failed lately: a crashing program is up at times."""
    window = s.down_window
    instance = s.keys("instance")
    failed = f"1 - max by ({instance}) (avg_over_time({s.up(window)}))"
    known = f"count_over_time({s.up(window // 2)} offset {format_duration(int(window * _DOWN_SHARE))})"
    lately = f"max by ({instance}) (min_over_time({s.up(s.settle)})) == 0"
    return f"{failed} >= {_DOWN_SHARE:g}\nand on ({instance}) {lately}\nand on ({instance}) {known}"


def _unjudged(s: Selectors) -> str:
    instance, judged = s.keys("instance"), f"count_over_time({s('gpu_problems', s.patience)})"
    known = s.at_begin("gpu_up", s.patience)
    return f"max by ({instance}) ({s.present('gpu_up')})\nand on ({instance}) {known}\nunless on ({instance}) {judged}"


def _blind(s: Selectors) -> str:
    """Return the exporters whose driver does not answer for half of the window."""
    name = "gpugauge_driver_up"
    instance = s.keys("instance")
    # An exporter with a released driver is not blind: DriverReleasedLong covers it. Sidecars run without the driver.
    reasons = "!~released|off"
    total, count = (
        f"sum by ({instance}) ({function}_over_time({s(name, s.patience, reason=reasons)}))"
        for function in ("sum", "count")
    )
    now = f"max by ({instance}) ({s.present(name, reason=reasons)})"
    known = f"count_over_time({s(name, s.patience, reason=reasons)} offset {format_duration(s.settle)})"
    # A machine without a GPU, or a trace of one, needs no driver.
    free = f"(max by ({instance}) ({s.last(name, reason='~' + '|'.join(sorted(WITHOUT_GPU)))}) == 0"
    free += f" unless on ({instance}) {s.last('gpu_up')})"
    return (
        f"{total} / {count} <= 0.5\nand on ({instance}) ({now})\nand on ({instance}) {known}\n"
        f"unless on ({instance}) {free}"
    )


def _stuck(s: Selectors, window: int = 0) -> str:
    """Return the exporters that publish no new values. By their own clock: that of Prometheus may differ."""
    name = "gpugauge_snapshot_timestamp_seconds"
    window = window or 2 * s.lookback
    seen = s(name, window)
    known = f"count_over_time({s(name, window)} offset {format_duration(window // 2)})"
    return f"changes({seen}) == 0 and count_over_time({seen}) > 1 and {known}"


def _skewed(s: Selectors) -> str:
    """Return by how much the clocks of exporters are ahead of that of Prometheus."""
    instance, published = s.keys("instance"), s("gpugauge_snapshot_timestamp_seconds")
    ahead = f"({published} - timestamp({published}))"
    usual = f"quantile_over_time(0.5, {ahead}[{format_duration(s.patience)}:1m])"
    return (
        f"max by ({instance}) ({ahead} > {_SKEW} or {ahead} < -{_SKEW})\n"
        f"and on ({instance}) ({usual} > {_SKEW} or {usual} < -{_SKEW})\n"
        f"unless on ({instance}) ({_stuck(s, s.lookback)})"
    )


def _failing(s: Selectors, name: str, **of: str) -> str:
    """Return what is 0 for half of some minutes, by exporter and label; "" for all values of the label."""
    # min, because sidecars have the same instance as the exporter of their node.
    keys, of = s.keys("instance", *of), {label: values for label, values in of.items() if values}
    known = f"count_over_time({s(name, s.settle, **of)} offset {format_duration(s.settle)})"
    return (
        f"min by ({keys}) (avg_over_time({s(name, 2 * s.settle, **of)})) <= 0.5\n"
        f"and on ({keys}) {s.present(name, 0, **of)}\nand on ({keys}) {known}"
    )


def _released(s: Selectors) -> str:
    name = "gpugauge_driver_released"
    instance = s.keys("instance")
    released = f"max by ({instance}) (avg_over_time({s(name, s.release_patience)})) >= 0.95"
    return (
        f"{released}\nand on ({instance}) {s.present(name)}\nand on ({instance}) {s.at_begin(name, s.release_patience)}"
    )
