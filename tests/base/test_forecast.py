from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.base.forecast import ScrapeForecast
from tests.drawn import cases

INTERVAL, IDLE, LEAD = 1.0, 5.0, 0.1


def ticks(forecast: ScrapeForecast, begin: float, end: float, idle: float = INTERVAL) -> list[float]:
    found = [begin]
    while found[-1] < end:
        found.append(forecast.next_tick(found[-1], INTERVAL, idle, LEAD))
    return found


def scraped(*scrapers: tuple[float, float], times: int = 3) -> ScrapeForecast:
    """A forecast after the scrapes of some scrapers, each given as its first time and its period."""
    forecast = ScrapeForecast()
    for at, name in sorted((first + i * every, str(first)) for first, every in scrapers for i in range(times)):
        forecast.record_scrape(name, at)
    return forecast


def test_ticks_keep_their_interval_without_scrapes() -> None:
    assert ticks(ScrapeForecast(), 10.3, 13) == pytest.approx([10.3, 11.3, 12.3, 13.3])


@cases("times", [1, 2])
def test_two_scrapes_are_no_period(times: int) -> None:
    forecast = scraped((0.5, 5.0), times=times)

    assert ticks(forecast, 5.9, 12) == pytest.approx([5.9 + i for i in range(8)])


def test_tick_comes_before_the_expected_scrape() -> None:
    forecast = scraped((0.5, 5.0))

    # The scrape is expected at 15.5. A tick is due 0.1 s before it, and no regular tick is dropped.
    assert ticks(forecast, 12.0, 17) == pytest.approx([12.0, 13.0, 14.0, 15.0, 15.4, 16.4, 17.4])


def test_tick_is_delayed_for_a_scrape() -> None:
    assert ticks(scraped((0.5, 5.0)), 12.3, 16) == pytest.approx([12.3, 13.3, 14.3, 15.4, 16.4])


def test_two_scrapers_both_get_their_tick() -> None:
    forecast = scraped((0.5, 5.0), (0.8, 5.0))

    assert ticks(forecast, 15.0, 16.5) == pytest.approx([15.0, 15.4, 15.7, 16.7])


def test_scrapes_close_to_each_other_share_a_tick() -> None:
    forecast = scraped((0.5, 5.0), (0.6, 5.0))

    assert ticks(forecast, 15.0, 16.2) == pytest.approx([15.0, 15.4, 16.4])
    assert forecast.is_near(15.4, INTERVAL, LEAD)


@cases(("period", "offsets"), [(15, (0, 7)), (15, (0, 4.6, 10.2)), (30, (0, 15, 22)), (10, (0, 4.8))])
def test_scrapers_behind_one_address_are_learned_as_several(period: float, offsets: tuple[float, ...]) -> None:
    forecast = ScrapeForecast()
    dice = Random(7)
    for at in sorted(dice.uniform(-0.01, 0.01) + period * turn + offset for turn in range(8) for offset in offsets):
        expected = forecast.record_scrape("proxy", at)

    due = [forecast.expected(begin, begin + period, INTERVAL) for begin in (8 * period + each - 1 for each in offsets)]
    assert expected
    assert due == pytest.approx([8 * period + offset for offset in offsets], abs=0.1)


@cases(
    ("gaps", "period"),
    [
        ([60] * 10 + [30, 30, 60, 30, 30, 30], 30),
        ([5] * 20 + [25, 5], 5),
        ([59.86, 119.94, 60.05, 59.95], 60),
        *(
            [[30 * (1 + (dice.random() < 0.1)) + dice.uniform(-0.3, 0.3) for _ in range(100)], 30]
            for dice in map(Random, range(20))
        ),
    ],
)
def test_a_period_is_not_taken_for_a_multiple_of_it(gaps: list[float], period: float) -> None:
    forecast = ScrapeForecast()
    for at in accumulate(gaps, initial=0.0):
        forecast.record_scrape("a", at)

    assert [scraper.gap for scraper in forecast._scrapers] == pytest.approx([period], abs=0.3)


def test_scrape_is_near_only_at_its_tick() -> None:
    forecast = scraped((0.5, 5.0), times=6)

    assert [now for now in (29.4, 30.0, 30.4, 31.4) if forecast.is_near(now, INTERVAL, LEAD)] == [30.4]


def test_scrape_is_always_near_while_a_scraper_has_no_period() -> None:
    forecast = scraped((0.0, 7.0), times=2)

    assert forecast.is_near(8.0, INTERVAL, LEAD)
    assert not forecast.is_near(60.0, INTERVAL, LEAD)


def test_scrapes_each_second_are_not_near() -> None:
    forecast = scraped((0.0, 1.0), times=50)  # the last at 49

    assert not any(forecast.is_near(at, INTERVAL, LEAD) for at in (49.5, 49.9, 50.0))


def test_scrape_is_expected_once_its_period_is_known() -> None:
    forecast = ScrapeForecast()

    assert [forecast.record_scrape("a", at) for at in (0, 15, 30, 45.01, 60, 78, 96, 114)] == [
        *(False, False, False, True, True, False, False, True)
    ]
    assert not forecast.record_scrape("b", 123.9)


def test_scraper_that_stops_is_forgotten() -> None:
    forecast = scraped((0.5, 5.0))  # the last at 10.5

    assert forecast.expected(25.0, 26.0, INTERVAL) == 25.5
    assert forecast.expected(30.0, 31.0, INTERVAL) is None


def test_scraper_with_a_new_period() -> None:
    forecast = scraped((0.5, 5.0))  # the last at 10.5
    expected = [forecast.record_scrape("0.5", at) for at in (13.6, 16.7, 19.8)]

    assert expected == [False, False, True]
    assert forecast.expected(20.0, 30.0, INTERVAL) == pytest.approx(20.5)  # the old one may still come
    assert forecast.expected(20.6, 30.0, INTERVAL) == pytest.approx(22.9)


@cases("every", [0.2, 0.5])
def test_scraper_faster_than_the_ticks_does_not_move_them(every: float) -> None:
    forecast = scraped((0.03, every), times=50)

    assert ticks(forecast, 50 * every, 50 * every + 2) == pytest.approx([50 * every + i for i in range(3)])


def test_more_scrapers_than_are_remembered() -> None:
    forecast = scraped(*((0.1 * i, 10.0) for i in range(20)))

    assert ticks(forecast, 22.0, 40) == pytest.approx([22.0 + i for i in range(19)])


def test_ticks_are_rare_without_viewers() -> None:
    assert ticks(ScrapeForecast(), 10.3, 21, IDLE) == pytest.approx([10.3, 15.3, 20.3, 25.3])


def test_rare_ticks_end_before_each_expected_scrape() -> None:
    forecast = scraped((0.5, 15.0), times=6)  # the last at 75.5

    assert ticks(forecast, 76.0, 92, IDLE) == pytest.approx([76.0, 81.0, 86.0, 90.4, 95.4])


def test_ticks_are_frequent_for_a_while_after_a_viewer() -> None:
    forecast = ScrapeForecast()
    forecast.record_viewer(10.0)

    found = ticks(forecast, 21.5, 35, IDLE)

    assert found == pytest.approx([21.5, 22.5, 23.5, 24.5, 25.5, 30.5, 35.5])


@cases(("every", "seconds"), [(5.0, 15.0), (30.0, 45.0), (600.0, 15.0)])
def test_scraper_without_a_period_is_awaited(every: float, seconds: float) -> None:
    forecast = scraped((0.5, every), times=2)
    assert not forecast.has_viewer(0.5 + every, INTERVAL)  # a reading on demand is enough

    forecast.late = True
    assert forecast.has_viewer(0.5 + every + seconds - 0.1, INTERVAL)
    assert not forecast.has_viewer(0.5 + every + seconds + 0.1, INTERVAL)


def test_scrapes_each_second_get_ticks_each_second_until_they_end() -> None:
    forecast = scraped((0.5, 1.0), times=100)  # the last at 99.5

    assert ticks(forecast, 100.0, 110, IDLE) == pytest.approx([100.0, 100.4, 101.4, 102.4, 107.4, 112.4])


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0.3, 60)), min_size=1, max_size=4))
def test_gaps_between_ticks_are_bounded(scrapers: list[tuple[float, float]]) -> None:
    forecast = scraped(*scrapers)
    begin = min(first + 2 * every for first, every in scrapers)
    often, rare = ticks(forecast, begin, begin + 60), ticks(forecast, begin, begin + 60, IDLE)

    assert all(0.124 * INTERVAL < later - earlier < 1.126 * INTERVAL for earlier, later in pairwise(often))
    assert all(0.124 * INTERVAL < later - earlier < IDLE + 0.126 * INTERVAL for earlier, later in pairwise(rare))
