import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.status.words import percent
from gpugauge.web.page.draw import bar, copy_button, name, of_sizes, of_watts, sparkline, text


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_text_is_escaped_as_by_the_standard_library(value: str) -> None:
    assert text(value) == html.escape(value)


def test_unknown_values_are_dashes_and_never_zero() -> None:
    assert [percent(None), of_sizes(None), of_sizes(None, None), of_watts(None, None)] == ["-"] * 4
    assert (of_sizes(None, 1 << 30), of_watts(None, 700)) == ("- / 1.0 GiB", "- / 700 W")
    assert (of_sizes(1 << 30, None), of_watts(70.4, None)) == ("1.0 GiB", "70 W")
    assert (bar(None, 1), bar(1, None), bar(1, 0)) == ("", "", "")
    assert (percent(0.0), of_watts(0, 700)) == ("0 %", "0 / 700 W")


def test_units_for_people() -> None:
    assert [of_sizes(41 << 30), of_sizes(300 << 20)] == ["41.0 GiB", "0.3 GiB"]
    assert of_watts(9_500, 22_400) == "9.5 / 22.4 kW"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"onload="x', "a\u202eb", "a\x00\x1b[2Jb"])
def test_hostile_names_are_escaped(name: str) -> None:
    shown = text(name)

    assert not set(shown) & set('<>"\u202e\x00\x1b')


def test_names_are_cut_and_isolated() -> None:
    assert name("<b>") == "<bdi>&lt;b&gt;</bdi>"
    assert name("é" * 4096) == f"<bdi>{'é' * 120}…</bdi>"
    assert all("ends programs" in copy_button(each) for each in ("kill 7", "nvidia-smi --gpu-reset", "scancel -w n7"))
    assert "ends programs" not in copy_button("gpugauge release --for 10m")
    assert 'data-copy="&quot;&gt;&lt;b&gt;"' in copy_button('"><b>')


def test_a_sparkline_has_steps_from_the_oldest_to_now() -> None:
    drawn = sparkline([[10.0, None], [5.0, 1.0], [0.0, 0.25]])

    assert 'd="M590 40V0H595V30H600V40Z"' in drawn
    assert "mean 62 %, from 25 % to 100 %" in drawn


def test_a_gap_stays_empty() -> None:
    drawn = sparkline([[20.0, None], [15.0, 0.5], [10.0, None], [5.0, 0.5], [0.0, 0.5]])

    assert 'd="M580 40V20H585V40ZM590 40V20H595V20H600V40Z"' in drawn


@pytest.mark.parametrize("history", [[], [[0.0, None]], [[5.0, None], [0.0, None]]])
def test_without_a_history_no_line(history: list[list[float | None]]) -> None:
    drawn = sparkline(history)

    assert "not available yet" in drawn
    assert "<path" not in drawn  # a line would be a load of 0
    assert "<rect" not in drawn
