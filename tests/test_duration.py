from __future__ import annotations

import pytest

from gpugauge.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("2d", 172800), ("1w", 604800)],
)
def test_prometheus_and_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "5m1h", "1e3s", "٣m", "9" * 400 + "s", "nan", "10m\n"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 10m or 1h30m"):
        parse_duration(text)
