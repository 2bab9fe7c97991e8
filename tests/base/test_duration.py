from __future__ import annotations

import pytest

from gpugauge.base.duration import format_duration, parse_duration
from tests.drawn import cases


@cases(
    ("text", "seconds"),
    [
        *(("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("2d", 172800), ("1w", 604800)),
        *(("0", 0), ("0s", 0), ("5m1h", 3900), ("1s1s", 2), (".5s", 0.5), ("1.s", 1), ("1500000000ns", 1.5)),
        *(("500000us", 0.5), ("500000\u00b5s", 0.5), ("500000\u03bcs", 0.5), ("1m0.5s", 60.5)),
    ],
)
def test_prometheus_and_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@cases("text", ["", "10", "m", "10 m", "-5m", "5m1", "5m h", ".s", "1e3s", "٣m", "9" * 400 + "s", "nan", "10m\n"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 10m or 1h30m"):
        parse_duration(text)


@cases(("seconds", "text"), [(1, "1s"), (90, "90s"), (900, "15m"), (5400, "90m"), (7200, "2h"), (172800, "2d")])
def test_format(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds
