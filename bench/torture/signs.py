"""What a page can say: small predicates for the tables of faults."""

from __future__ import annotations

from bench.torture.fault import Sign


def down(reason: str) -> Sign:
    """The driver as a whole is down for this reason."""
    return lambda _before, page, _run: page.value(f'gpugauge_driver_up{{reason="{reason}"}}') == 0


def device_down(*numbers: int) -> Sign:
    """These GPUs are down."""
    return lambda _before, page, _run: all(page.value(f'gpu_up{{uuid="GPU-{n}"}}') == 0 for n in numbers)


def rises(name: str, by: float = 1, **labels: str) -> Sign:
    """The sum of a counter with these labels (`class_` for class) is higher than before."""
    wanted = {label.rstrip("_"): value for label, value in labels.items()}
    return lambda before, page, _run: page.total(name, wanted) >= before.total(name, wanted) + by


def shows(series: str, value: float) -> Sign:
    """A series has a value."""
    return lambda _before, page, _run: page.value(series) == value


def lacks(series: str) -> Sign:
    """A series is gone."""
    return lambda _before, page, _run: series not in page.series


def logs(text: str) -> Sign:
    """The log has a text."""
    return lambda _before, _page, run: text in run.log()


def every(*signs: Sign) -> Sign:
    """All of them."""
    return lambda before, page, run: all(sign(before, page, run) for sign in signs)


def unless(sign: Sign) -> Sign:
    """Not so."""
    return lambda before, page, run: not sign(before, page, run)
