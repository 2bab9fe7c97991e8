"""The judge of `make torture` detects wrong values."""

from __future__ import annotations

import pytest

from qa.torture.scrape import Scrape
from qa.torture.truth import Judge, Truth


def scrape(judge: Judge, **changes: float) -> Scrape:
    series = {name: value for gauges in judge.gauges.values() for name, value in gauges.items()}
    series |= {f'gpu_up{{uuid="{uuid}"}}': 1.0 for uuid in judge.gauges}
    series |= {"gpugauge_snapshot_timestamp_seconds": 100.0, 'gpugauge_collector_success{collector="device"}': 1.0}
    return Scrape(0.0, 0.001, "", series | changes, frozenset({"gpu_things_total"}))


@pytest.fixture
def judge() -> Judge:
    return Judge(Truth(2, (), {}))


def test_truth_is_no_fault(judge: Judge) -> None:
    judge.check(scrape(judge), 101.0)

    assert judge.whole(scrape(judge))
    assert judge.wrong == {}


@pytest.mark.parametrize(
    ("changes", "unix", "error"),
    [
        ({'gpu_power_watts{uuid="GPU-0"}': 0.0}, 101.0, "gpu_power_watts"),
        ({'gpu_utilization_ratio{uuid="GPU-1"}': 0.25}, 101.0, "gpu_utilization_ratio"),  # that of the other GPU
        ({'gpu_up{uuid="GPU-1"}': 0.0}, 101.0, "not up"),
        ({}, 115.0, "older"),
    ],
)
def test_wrong_value_is_found(judge: Judge, changes: dict[str, float], unix: float, error: str) -> None:
    judge.check(scrape(judge, **changes), unix)

    assert error in " ".join(judge.wrong)


def test_counter_that_falls_is_found(judge: Judge) -> None:
    for value in (5.0, 4.0):
        judge.check(scrape(judge, gpu_things_total=value), 101.0)

    assert list(judge.wrong) == ["gpu_things_total falls from 5 to 4"]


def test_share_of_a_counter_is_compared_with_the_load(judge: Judge) -> None:
    for busy, observed in ((0.0, 0.0), (5.0, 10.0)):
        shown = {
            'gpu_busy_seconds_total{engine="gpu",uuid="GPU-0"}': busy,
            'gpu_observed_seconds_total{engine="gpu",uuid="GPU-0"}': observed,
        }
        judge.check(scrape(judge, **shown), 101.0)

    assert list(judge.wrong) == ["GPU-0 was busy for 0.500 of the time and not 0.25"]


def test_scrape_with_a_gap_is_not_whole(judge: Judge) -> None:
    shown = scrape(judge)
    shown.series.pop('gpu_power_watts{uuid="GPU-0"}')

    assert not judge.whole(shown)
    assert not judge.whole(scrape(judge, **{'gpugauge_collector_success{collector="device"}': 0.0}))
