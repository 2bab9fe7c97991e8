from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpugauge.daemon.app import _Daemon
from gpugauge.driver.api import DriverView
from gpugauge.settings.model import Driver, Sampling, Settings
from tests.drawn import cases

# What the daemon uses only when it is asked to stop.
UNUSED: dict[str, Any] = {"forecast": None, "sessions": list}


class EndedError(Exception):
    """In the place of the end of the process."""


def ends(view: DriverView, limit: float, *, serving: bool = True) -> tuple[bool, int]:
    """Return whether the daemon ends after a tick with this view of the driver, and its exit code."""
    settings = Settings(driver=Driver(lost_exit_seconds=limit))
    driver = SimpleNamespace(view=lambda: view)
    notifier, server = SimpleNamespace(watchdog=lambda: None), SimpleNamespace(serving=serving)
    parts: Any = SimpleNamespace(settings=settings, driver=driver, notifier=notifier, server=server, **UNUSED)
    stop = threading.Event()
    daemon = _Daemon(cast("Any", parts), ExitStack(), stop, threading.Event())
    daemon._after_tick()
    return stop.is_set(), daemon._exit_code


@cases(
    ("reason", "seconds", "limit", "expected"),
    [
        ("library_mismatch", 301, 300, (True, 69)),
        ("library_mismatch", 200, 300, (False, 0)),
        ("library_mismatch", 1e6, 0, (False, 0)),  # not configured
        ("library_not_found", None, 300, (False, 0)),  # was never up
        ("worker_unkillable", 1e6, 300, (False, 0)),  # the container would not end
        ("released", None, 300, (False, 0)),
        ("ok", None, 300, (False, 0)),
    ],
)
def test_lost_driver_ends_the_process(
    reason: str, seconds: float | None, limit: float, expected: tuple[bool, int]
) -> None:
    lost_since = None if seconds is None else time.monotonic() - seconds

    assert ends(DriverView(reason == "ok", reason, lost_since=lost_since), limit) == expected


def test_daemon_without_its_http_server_ends() -> None:
    assert ends(DriverView(True, "ok"), 0, serving=False) == (True, 70)


@cases(("interval", "stuck", "expected"), [(1.0, True, 65), (60.0, True, 185), (1.0, False, None)])
def test_stuck_sampler_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, interval: float, stuck: bool, expected: float | None
) -> None:
    parts: Any = SimpleNamespace(
        settings=Settings(sampling=Sampling(interval_seconds=interval, stale_after_seconds=120)), **UNUSED
    )
    slept = 0.0

    def wait(seconds: float) -> bool:
        nonlocal slept
        slept += seconds
        if not stuck:
            daemon._last_tick += seconds
        if slept > 1000:
            raise EndedError
        return False

    stop: Any = SimpleNamespace(wait=wait)
    daemon = _Daemon(parts, ExitStack(), stop, threading.Event())

    def exits(code: int) -> None:
        assert code == 70
        raise EndedError

    monkeypatch.setattr("gpugauge.daemon.app.faulthandler", SimpleNamespace(dump_traceback=lambda: None))
    monkeypatch.setattr("gpugauge.daemon.app.os", SimpleNamespace(_exit=exits))
    with pytest.raises(EndedError):
        list(iter(daemon._watch, "ended"))
    assert (slept if slept < 1000 else None) == expected


@cases("late", [True, False])
def test_a_daemon_whose_parts_do_not_stop_ends_before_its_service_manager_kills_it(
    monkeypatch: pytest.MonkeyPatch, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    codes, waited = list[int](), list[float]()

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return not late

    stop, ended = threading.Event(), cast("Any", SimpleNamespace(wait=wait))
    parts: Any = SimpleNamespace(forecast=None, sessions=None)
    daemon = _Daemon(parts, ExitStack(), stop, ended)
    monkeypatch.setattr("gpugauge.daemon.app.os", SimpleNamespace(_exit=codes.append))
    stop.set()
    daemon._watch()
    daemon._end()
    assert codes == ([0] if late else [])
    assert waited[0] < _stop_limit()
    assert [record.message for record in caplog.records] == (["stopping takes too long, exiting"] if late else [])


def _stop_limit() -> float:
    unit = (Path(__file__).parents[2] / "deploy/systemd/gpugauge.service").read_text()
    return float(unit.partition("TimeoutStopSec=")[2].split()[0])
