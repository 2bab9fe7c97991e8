import pytest

from gpugauge.driver.api import Device, DeviceReading
from gpugauge.faults.judged import Track, health_of


def test_rates_are_known_after_half_a_minute_and_forget_the_window() -> None:
    track, window = Track(), 120
    for second in range(0, 30, 5):
        track.add(second, {"a": 100 * second, "b": 40 * second}, window)
        assert track.rates("ab", second, window) == {}

    track.add(30, {"a": 3000, "b": 1200}, window)
    assert track.rates("abc", 30, window) == {"a": 100, "b": 40}

    track.add(40, {"a": 2000}, window)  # reset, and 2,000 since
    assert track.rates("a", 40, window) == {"a": 125}

    for second in range(45, 400, 5):
        track.add(second, {"a": 2000}, window)
    assert track.rates("a", 395, window) == {"a": 0}
    assert len(track._points) <= 6


@pytest.mark.parametrize(("action", "words"), [(None, "none"), ("gpu_reset",) * 2, ("recovery_action_9", "none")])
def test_an_action_without_a_name_is_none(action: str | None, words: str) -> None:
    assert (
        health_of(Device("GPU-a", True, "ok", DeviceReading(recovery_action=action), {}), ()).recovery_action == words
    )
