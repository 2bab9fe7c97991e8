from tests.drawn import cases

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.driver.reader import SCRAPE_GROUPS, ReadingIntervals, Schedule, wanted

INTERVALS = ReadingIntervals({"fast": 1.0, "samples": 2.0, "normal": 5.0})


def test_groups_are_due_at_their_own_intervals() -> None:
    schedule = Schedule()

    taken = [schedule.take(INTERVALS, float(now)) for now in range(6)]

    assert taken == [
        ["fast", "samples", "normal"],
        ["fast"],
        ["fast", "samples"],
        ["fast"],
        ["fast", "samples", "normal"],  # a quarter of its interval early is on time
        ["fast"],
    ]


def test_scrape_gets_new_samples_and_their_interval_starts_again() -> None:
    schedule = Schedule()

    taken = [schedule.take(INTERVALS, now, SCRAPE_GROUPS if now == 1.0 else ()) for now in (0.0, 1.0, 2.0, 3.0)]

    assert taken == [["fast", "samples", "normal"], ["fast", "samples"], ["fast"], ["fast", "samples"]]


def test_all_groups_are_due_after_a_reset() -> None:
    schedule = Schedule()
    schedule.take(INTERVALS, 0.0)
    schedule.reset()

    assert schedule.take(INTERVALS, 0.1) == ["fast", "samples", "normal"]


@cases(("period", "groups"), [(1.0, set()), (3.0, {"fast", "samples"}), (5.0, {"fast", "samples", "normal"})])
def test_a_scraper_that_comes_no_more_often_than_a_group_is_read_gets_new_values(
    period: float, groups: set[str]
) -> None:
    forecast = ScrapeForecast()
    for number in range(20):
        forecast.record_scrape("prometheus", number * period)

    assert wanted(forecast, INTERVALS, 20 * period - 0.05, 0.1) == groups
    assert wanted(forecast, INTERVALS, 19.5 * period, 0.1) == set()
