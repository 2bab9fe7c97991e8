import pytest

from gpugauge.daemon.selection import Selection
from gpugauge.metric import Family, Table
from gpugauge.settings.kinds import ConfigError
from gpugauge.snapshot import Section
from tests.drawn import cases

NAMES = ("gpu_power_watts", "gpu_power_limit_watts", "gpu_up")
SECTION = Section("device", tuple(Family(Table().gauge(name, "Help.", lambda _: 1), (((), 1),)) for name in NAMES))


@cases(
    ("include", "exclude", "selected"),
    [
        ((), (), NAMES),
        (("gpu_up",), (), ("gpu_up",)),
        ((), ("gpu_power_*",), ("gpu_up",)),
        (("gpu_power_*",), ("*_limit_*",), ("gpu_power_watts",)),
    ],
)
def test_patterns_select_families(
    include: tuple[str, ...], exclude: tuple[str, ...], selected: tuple[str, ...]
) -> None:
    section = Selection(NAMES, include, exclude).of_section(SECTION)

    assert tuple(family.metric.name for family in section.families) == selected


def test_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"metrics.exclude.*'gpu_powr_watts'.*gpu_power_watts"):
        Selection(NAMES, exclude=("gpu_powr_watts",))


def test_each_wrong_pattern_has_a_line_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        Selection(NAMES, ("gpu_*", "a"), ("b", "c"), places={"metrics.exclude": "FILE:2"})

    lines = [line.partition("; ")[0] for line in str(caught.value).splitlines()]
    assert lines == [
        "metrics.include: no metric matches 'a'",
        "FILE:2: metrics.exclude: no metric matches 'b'",
        "FILE:2: metrics.exclude: no metric matches 'c'",
    ]


def test_same_section_stays_the_same_object() -> None:
    selection = Selection(NAMES, include=("gpu_up",))

    assert selection.of_section(SECTION) is selection.of_section(SECTION)
