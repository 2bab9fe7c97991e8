from __future__ import annotations

import pytest

from gpugauge.driver.quarantine import Quarantine


def test_device_that_hangs_waits_twice_as_long_each_time_up_to_ten_minutes() -> None:
    quarantine, waits, now = Quarantine(), [], 0.0
    for _ in range(8):
        wait = quarantine.failed(2, now, hangs=True)
        assert wait is not None
        assert not quarantine.may_read(2, now + wait - 1)
        assert quarantine.may_read(2, now + wait)
        waits.append(wait)
        now += wait + 1
        quarantine.answered(2, now)  # answering once in between forgives nothing

    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]


def test_device_that_answers_for_long_is_forgiven() -> None:
    quarantine = Quarantine()
    wait = quarantine.failed(2, 0.0, hangs=True)
    assert wait is not None

    quarantine.answered(2, wait + 599)
    assert 2 in quarantine
    quarantine.answered(2, wait + 601)

    assert 2 not in quarantine
    assert quarantine.failed(2, 2000.0, hangs=True) == 30


@pytest.mark.parametrize(("later", "wait"), [(10.0, 60.0), (601.0, None)])
def test_second_crash_counts_only_within_minutes(later: float, wait: float | None) -> None:
    quarantine = Quarantine()

    first = quarantine.failed(0, 100.0, hangs=False)
    assert quarantine.may_read(0, 100.0)
    quarantine.answered(0, 100.0 + later)

    assert (first, quarantine.failed(0, 100.0 + later, hangs=False)) == (None, wait)


def test_other_devices_are_not_concerned() -> None:
    quarantine = Quarantine()
    quarantine.failed(1, 0.0, hangs=True)

    assert quarantine.may_read(0, 0.0)
    quarantine.clear()
    assert quarantine.may_read(1, 0.0)
