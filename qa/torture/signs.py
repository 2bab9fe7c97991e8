"""Predicates about a scrape, for the tables of faults."""

from __future__ import annotations

from qa.torture.fault import Sign


def down(reason: str) -> Sign:
    """Return a sign: the driver is down for this reason."""
    return lambda _before, scrape, _run: scrape.value(f'gpugauge_driver_up{{reason="{reason}"}}') == 0


def device_down(*numbers: int) -> Sign:
    """Return a sign: the GPUs with these numbers are down."""
    return lambda _before, scrape, _run: all(scrape.value(f'gpu_up{{uuid="GPU-{n}"}}') == 0 for n in numbers)


def rises(name: str, by: float = 1, **labels: str) -> Sign:
    """Return a sign: the sum of a counter with these labels (`class_` for class) has risen by `by`."""
    wanted = {label.rstrip("_"): value for label, value in labels.items()}
    return lambda before, scrape, _run: scrape.total(name, wanted) >= before.total(name, wanted) + by


def shows(series: str, value: float) -> Sign:
    """Return a sign: the series has the value."""
    return lambda _before, scrape, _run: scrape.value(series) == value


def lacks(series: str) -> Sign:
    """Return a sign: the series is absent."""
    return lambda _before, scrape, _run: series not in scrape.series


def logs(text: str) -> Sign:
    """Return a sign: the log contains the text."""
    return lambda _before, _scrape, run: text in run.log()


def every(*signs: Sign) -> Sign:
    """Return a sign: all of the signs are true."""
    return lambda before, scrape, run: all(sign(before, scrape, run) for sign in signs)
