from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.base.logline import Condition, Occasions, fields
from gpugauge.daemon.logs import setup

log = logging.getLogger("gpugauge.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, tornado, general = (logging.getLogger(name) for name in (None, "tornado", "tornado.general"))
    before = root.handlers[:], root.level, tornado.level, general.level
    yield
    root.handlers[:], root.level, tornado.level, general.level = before


def stream(format: Literal["logfmt", "json"] = "logfmt", level: str = "info") -> io.StringIO:
    output = io.StringIO()
    setup(level, format, output)
    return output


def test_a_port_scan_does_not_fill_the_log() -> None:
    output = stream()

    logging.getLogger("tornado.general").warning("SSL Error on 7")
    logging.getLogger("tornado.general").info("Malformed HTTP message")
    logging.getLogger("tornado.access").info("400 GET /")
    assert output.getvalue() == ""

    output = stream(level="debug")
    logging.getLogger("tornado.general").warning("SSL Error on 7")
    assert "SSL Error on 7" in output.getvalue()


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


def test_blocked_reader_does_not_block_logging_and_dropped_lines_are_counted() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as writer:
        setup("info", "logfmt", writer)
        for _ in range(2000):  # more than a pipe holds
            log.info("%s", "x" * 100)
        os.set_blocking(reading, False)
        kept = b"".join(iter(lambda: reader.read(1 << 16) or b"", b""))
        log.info("after")
        last = (reader.read(1 << 16) or b"").decode().splitlines()

    lines = kept.decode().splitlines()
    assert 100 < len(lines) < 2000
    assert f"lines={2000 - len(lines)}" in last[0]
    assert "dropped" in last[0]
    assert "msg=after" in last[1]


def test_full_disk_and_closed_reader_are_no_errors(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone, Path("/dev/full").open("w") as full:
        for stream in (gone, full):
            setup("info", "logfmt", stream)
            log.error("this line cannot be written")

    assert capfd.readouterr() == ("", "")


def test_lines_are_limited_by_subject_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("gpugauge.base.logline.time.monotonic", lambda: now)
    occasions = Occasions(60, 2)

    first = [occasions.allows(subject) for subject in ("a", "a", "b", "c")]
    now = 60.0
    later = [occasions.allows(subject) for subject in ("c", "a", "b")]

    assert first == [True, False, True, False]
    assert later == [True, True, False]
