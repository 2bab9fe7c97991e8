from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.logs import Condition, fields, setup

log = logging.getLogger("gpugauge.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, tornado = logging.getLogger(), logging.getLogger("tornado")
    before = root.handlers[:], root.level, tornado.level
    yield
    root.handlers[:], root.level, tornado.level = before


def stream(format: Literal["logfmt", "json"] = "logfmt", level: str = "info") -> io.StringIO:
    output = io.StringIO()
    setup(level, format, output)
    return output


def without_time(output: io.StringIO) -> list[str]:
    return [line.partition(" ")[2] for line in output.getvalue().splitlines()]


def test_logfmt() -> None:
    output = stream()

    log.warning("worker %s", "restarted", extra=fields(device="GPU-1", seconds=1.5, clean=False, reason="no answer"))

    expected = (
        'level=warning logger=test msg="worker restarted" device=GPU-1 seconds=1.5 clean=false reason="no answer"'
    )
    assert without_time(output) == [expected]
    assert output.getvalue().startswith("time=2")


def test_json() -> None:
    output = stream("json")

    log.info("x", extra=fields(number=1, ratio=float("inf"), nothing=None, where=io, level="forged"))

    line = json.loads(output.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "test",
        "msg": "x",
        "number": 1,
        "ratio": "inf",
        "nothing": None,
        "where": str(io),
    }


@given(st.text())
def test_foreign_text_stays_in_its_line(text: str) -> None:
    styles: tuple[Literal["logfmt", "json"], ...] = ("logfmt", "json")
    for style in styles:
        output = stream(style)
        log.info("%s", text, extra=fields(text=text))
        line = output.getvalue()
        assert line.endswith("\n")
        assert line[:-1].isascii()
        assert line[:-1].isprintable()


def test_a_traceback_is_one_line() -> None:
    output = stream()

    try:
        int("bad\nthing")
    except ValueError:
        log.exception("failed")

    (line,) = output.getvalue().splitlines()
    assert "ValueError: invalid literal for int()" in line


def test_levels() -> None:
    output = stream(level="warning")

    log.info("not shown")
    logging.getLogger("tornado.general").info("not shown")

    assert output.getvalue() == ""


def test_malformed_requests_are_not_logged_at_info() -> None:
    output = stream(level="info")

    logging.getLogger("tornado.general").info("Malformed HTTP message")

    assert output.getvalue() == ""


def test_a_condition_logs_its_start_and_its_end_once() -> None:
    output = stream()
    condition = Condition(log)

    condition.recovered()
    condition.failing("no driver", code=9)
    condition.failing("no driver", code=10)
    condition.failing("no library")
    condition.recovered("driver is back", version="550")
    condition.recovered()
    condition.failing("no driver")

    assert without_time(output) == [
        'level=warning logger=test msg="no driver" code=9',
        'level=warning logger=test msg="no library"',
        'level=info logger=test msg="driver is back" after="no library" seconds=0.0 failures=3 version=550',
        'level=warning logger=test msg="no driver"',
    ]
