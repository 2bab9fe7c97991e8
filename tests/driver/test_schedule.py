from gpugauge.driver.schedule import ReadingIntervals, Schedule

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

    taken = [schedule.take(INTERVALS, now, scrape=now == 1.0) for now in (0.0, 1.0, 2.0, 3.0)]

    assert taken == [["fast", "samples", "normal"], ["fast", "samples"], ["fast"], ["fast", "samples"]]


def test_all_groups_are_due_after_a_reset() -> None:
    schedule = Schedule()
    schedule.take(INTERVALS, 0.0)
    schedule.reset()

    assert schedule.take(INTERVALS, 0.1) == ["fast", "samples", "normal"]
