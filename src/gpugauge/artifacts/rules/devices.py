"""Alerts about exporters, which carry `instance`."""

from __future__ import annotations

from gpugauge.artifacts.rules.alert import Alert
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.base.duration import format_duration


def of_exporters(p: Parameters) -> list[Alert]:
    """Return the alerts about exporters."""
    s, t = Selectors(p), Texts(p)
    instance = s.keys("instance")
    # An exporter with a released driver is not blind: DriverReleasedLong covers it. Sidecars run without the driver.
    driver = f"max by ({instance}) ({s('gpugauge_driver_up', reason='!~released|off')}) == 0"
    # min, because sidecars have the same instance as the exporter of their node.
    age = f"time() - min by ({instance}) ({s('gpugauge_snapshot_timestamp_seconds')})"
    return [
        Alert(
            "ExporterBlind",
            f"({driver})\nor on ({instance}) ({age} > {2 * p.lookback})",
            "warning",
            f"{t.exporter()} cannot read the GPUs",
            "The driver does not answer, or the exporter publishes no new values.",
            p.settle,
            "exporter",
            "the driver does not answer, or an exporter publishes no new values",
        ),
        Alert(
            "ExporterDown",
            f"max by ({instance}) ({s.up()}) == 0",
            "warning",
            f"{t.exporter()} cannot be scraped",
            "There is no data about its GPUs. Alerts about them keep firing for a while and then resolve.",
            2 * p.settle,
            "exporter",
            "an exporter cannot be scraped",
        ),
        Alert(
            "DriverReleasedLong",
            # last_over_time, so that a gap of scrapes does not restart `for`.
            f"max by ({instance}) (last_over_time({s('gpugauge_driver_released', p.lookback)})) == 1",
            "warning",
            f"{t.exporter()} has released the driver for a long time",
            f"For more than {format_duration(p.release_patience)}. Its GPUs are not monitored in the meantime."
            f"{t.released_until()}",
            p.release_patience,
            "exporter",
            f"the driver is released for more than {format_duration(p.release_patience)}",
        ),
    ]
