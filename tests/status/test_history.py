import pytest
from qa.worlds.scraped import snapshot_of

from gpugauge.collectors.device.utilization import METRICS
from gpugauge.collectors.process.process import USES
from gpugauge.metric import Family
from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History

ROWS = {row.name: row for row in (*METRICS, *USES)}


def snapshot(at: float, busy: float, observed: float, **processes: float) -> Snapshot:
    families = (
        Family(ROWS["gpu_busy_seconds_total"], ((("GPU-a", "gpu"), busy), (("GPU-a", "memory"), 1e9))),
        Family(ROWS["gpu_observed_seconds_total"], ((("GPU-a", "gpu"), observed),)),
        Family(ROWS["gpu_process_busy_seconds_total"], tuple(((p, "GPU-a"), s) for p, s in processes.items())),
    )
    return snapshot_of(1.7e9 + at, at, (Section("utilization", families),))


def test_load_is_busy_time_of_observed_time() -> None:
    history = History()
    for second in range(0, 700, 2):
        history.feed(snapshot(second, busy=0.25 * second + max(0, second - 600) * 0.5, observed=second))

    assert history.load("GPU-a", 60) == 0.75
    assert history.load("GPU-b", 60) is None
    short, long = history.load("GPU-a", 60), history.load("GPU-a", 300)
    assert short is not None
    assert long is not None
    assert short > long > 0.25


@pytest.mark.parametrize("seen", [1.0, 0.6, 0.4])
def test_gpu_and_process_have_a_mean_from_the_same_time_on(seen: float) -> None:
    """A GPU is observed for a share of the time since its first load, which the first point lacks."""
    history = History()
    history.feed(snapshot_of(1.7e9 - 5, -5.0, ()))
    for second in range(0, 400, 5):
        history.feed(snapshot(second, busy=0.25 * seen * second, observed=seen * second, p=0.25 * seen * second))

        window = min(300, second)
        enough = seen >= 0.5 and seen * window >= 29.5
        assert history.load("GPU-a", 300) == (pytest.approx(0.25) if enough else None), second
        assert history.process_load("p", "GPU-a", 300) == (pytest.approx(0.25) if enough else None), second


def test_time_in_which_a_gpu_was_not_observed_is_no_idle_time_of_a_process() -> None:
    history, known = History(), 0.0
    for second in range(0, 400, 5):
        known += 0 if 150 <= second < 260 else 5
        history.feed(snapshot(second, busy=0.9 * known, observed=known, p=0.9 * known))

    loads = history.load("GPU-a", 300), history.process_load("p", "GPU-a", 300)
    assert loads == pytest.approx((0.9, 0.9))


def test_ticks_about_five_seconds_apart_make_a_point_each() -> None:
    history = History()
    for tick in range(13):
        history.feed(snapshot(4.999 * tick, busy=tick, observed=4.999 * tick))

    assert [round(ago) for ago, _ in history.loads("GPU-a")] == [5 * tick for tick in range(12, -1, -1)]


def test_load_of_a_process_over_its_life_so_far() -> None:
    history = History()
    for second in range(0, 400, 5):
        young = {"young": 0.5 * (second - 300)} if second >= 300 else {}
        history.feed(snapshot(second, second, second, old=0.2 * second, **young))

    assert history.process_load("young", "GPU-a", 300) == 0.5
    old = history.process_load("old", "GPU-a", 300)
    assert old is not None
    assert round(old, 6) == 0.2


def test_ended_process_has_no_load() -> None:
    history = History()
    for second in (0, 5, 10):
        history.feed(snapshot(second, second, second, old=second))
    history.feed(snapshot(15, 15, 15))

    assert history.process_load("old", "GPU-a", 300) is None


def test_memory_is_bounded() -> None:
    history = History()
    for second in range(3000):
        history.feed(snapshot(second, second, second))

    assert len(history._points) <= 600 / 5 + 2


def test_loads_from_point_to_point() -> None:
    history = History()
    assert history.loads("GPU-a") == []
    for second, busy, observed in ((0, 0, 0), (5, 5, 5), (10, 6, 9), (15, 6.5, 10)):
        history.feed(snapshot(second, busy, observed))

    # Only one of the last five seconds was observed.
    assert history.loads("GPU-a") == [(15, None), (10, 1.0), (5, 0.25), (0, None)]
    assert history.loads("GPU-b") == [(15, None), (10, None), (5, None), (0, None)]
