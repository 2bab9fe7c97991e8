from __future__ import annotations

from gpugauge.driver.quarantine import Quarantine
from tests.drawn import cases


def test_quarantine_doubles_up_to_ten_minutes() -> None:
    quarantine, waits, now = Quarantine(), [], 0.0
    for _ in range(8):
        wait = quarantine.record_failure(2, now, hangs=True)
        assert wait is not None
        assert not quarantine.may_read(2, now + wait - 1)
        assert quarantine.may_read(2, now + wait)
        waits.append(wait)
        now += wait + 1
        quarantine.record_reply(2, now)  # one reply in between does not end the quarantine

    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]


def test_failures_are_forgotten_after_ten_minutes_of_replies() -> None:
    quarantine = Quarantine()
    wait = quarantine.record_failure(2, 0.0, hangs=True)
    assert wait is not None

    quarantine.record_reply(2, wait + 599)
    assert 2 in quarantine
    quarantine.record_reply(2, wait + 601)

    assert 2 not in quarantine
    assert quarantine.record_failure(2, 2000.0, hangs=True) == 30


@cases(("later", "wait"), [(10.0, 60.0), (601.0, None)])
def test_second_crash_counts_only_within_minutes(later: float, wait: float | None) -> None:
    quarantine = Quarantine()

    first = quarantine.record_failure(0, 100.0, hangs=False)
    assert quarantine.may_read(0, 100.0)
    quarantine.record_reply(0, 100.0 + later)

    assert (first, quarantine.record_failure(0, 100.0 + later, hangs=False)) == (None, wait)


def test_other_devices_are_not_quarantined() -> None:
    quarantine = Quarantine()
    quarantine.record_failure(1, 0.0, hangs=True)

    assert quarantine.may_read(0, 0.0)
    quarantine.clear()
    assert quarantine.may_read(1, 0.0)
