import math

import pytest

from gpugauge import catalog
from gpugauge.metric import Metric, Table, families, scaled, states
from tests.drawn import cases

device = Table[dict[str, float]]("uuid")


@cases(
    ("name", "says"),
    [
        ("fan_speed_ratio", "prefixes"),
        ("gpu_Fan_ratio", "prefixes"),
        ("gpu_fans_total", "only counters"),
        ("gpu_fan_sum", "histograms"),
    ],
)
def test_bad_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        device.gauge(name, "Help.", lambda _: 1)


def test_repeated_label_is_refused() -> None:
    with pytest.raises(ValueError, match="repeated label"):
        device.gauge("gpu_fan_ratio", "Help.", lambda _: 1, "uuid")


def test_families_of_scalars_and_mappings_without_absent_values() -> None:
    rows: tuple[Metric, ...] = (
        device.gauge("gpu_plain", "Help.", lambda d: d.get("plain")),
        device.gauge("gpu_by_fan", "Help.", lambda d: d.get("fans"), "fan"),
        device.gauge("gpu_never", "Help.", lambda _: None),
    )
    subjects = [(("a",), {"plain": 1, "fans": {"0": 2}}), (("b",), {"fans": {("1",): 3}})]

    result = families(rows, subjects)

    assert [(f.metric.name, f.samples) for f in result] == [
        ("gpu_plain", ((("a",), 1),)),
        ("gpu_by_fan", ((("a", "0"), 2), (("b", "1"), 3))),
    ]


def test_the_unit_is_that_of_the_name() -> None:
    names = ("gpu_fans_bytes", "gpu_start_timestamp_seconds", "gpu_fans")

    assert [device.gauge(name, "Help.", lambda _: 1).unit for name in names] == ["bytes", "timestamp_seconds", ""]
    assert device.counter("gpu_busy_seconds_total", "Help.", lambda _: 1).unit == "seconds"


def test_scaled_keeps_absence() -> None:
    assert scaled(None, 0.001) is None
    assert math.isclose(scaled(1500, 0.001) or 0, 1.5)


def test_catalog_has_no_name_twice() -> None:
    names = [row.name for row in catalog.metrics()]

    assert len(names) == len(set(names))


@cases("name", [None, "", "reset_2"])
def test_state_without_a_series_is_unknown(name: str | None) -> None:
    assert states(("none", "reset"), name) is None
    assert states(("none", "reset"), "reset") == {"none": 0, "reset": 1}
