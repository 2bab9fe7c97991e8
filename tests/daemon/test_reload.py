from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from gpugauge.daemon.reload import LIVE, Reloader, different, is_live
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import load
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk
from tests.drawn import cases


@pytest.fixture(autouse=True)
def _logs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.daemon.reload.logs.setup", lambda *_: None)


class Running:
    """A reloader of a settings file, and the settings that it applied."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        file.write_text(text)
        self.applied: list[Settings] = []
        self.error: Exception | None = None
        self.reloader = Reloader(self.load(), self.load)
        self.reloader.start(self.apply)

    def load(self) -> Settings:
        return load(self.file, {}, {})

    def apply(self, settings: Settings) -> None:
        if self.error:
            raise self.error
        self.applied.append(settings)

    def reload(self, text: str) -> str:
        self.file.write_text(text)
        return self.reloader.request().result(10)


def test_reload_reports_changes_and_those_that_need_a_restart(tmp_path: Path) -> None:
    running = Running(tmp_path / "g.yaml", "log: {level: info}\n")

    result = running.reload("verdict: {stalled_seconds: 60}\nweb: {max_connections: 99}\n")

    assert result == "settings reloaded; changed: verdict.stalled_seconds; needs a restart: web.max_connections"
    assert running.applied[0].verdict.stalled_seconds == 60


def test_restart_is_reported_as_long_as_it_is_needed(tmp_path: Path) -> None:
    running = Running(tmp_path / "g.yaml", "")
    running.reload("web: {max_connections: 99}\n")

    assert running.reload("web: {max_connections: 99}\nprocess: {max_per_device: 5}\n").endswith(
        "changed: process.max_per_device; needs a restart: web.max_connections"
    )
    assert running.reload("process: {max_per_device: 5}\n").endswith("changed: nothing")


def test_bad_file_changes_nothing_and_names_line_and_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(tmp_path / "g.yaml", "")
    before = running.reloader.last

    with pytest.raises(ConfigError, match=r"g\.yaml:2: verdict\.stalled_secnds.*stalled_seconds"):
        running.reload("verdict:\n  stalled_secnds: 60\n")

    assert running.applied == []
    assert (before.successful, running.reloader.last.successful) == (True, False)
    assert running.reloader.last.timestamp == before.timestamp
    assert "g.yaml:2" in caplog.records[-1].getMessage()


def test_settings_that_cannot_be_applied_are_a_failed_reload(tmp_path: Path) -> None:
    running = Running(tmp_path / "g.yaml", "")
    running.error = ConfigError("metrics.include: no metric is called 'x'")
    with pytest.raises(ConfigError):
        running.reload("")
    failed = running.reloader.last
    running.error = None
    start = time.time()
    running.reload("")

    assert not failed.successful
    assert running.reloader.last.successful
    assert running.reloader.last.timestamp >= start


def test_unexpected_error_fails_the_reload_and_not_the_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(tmp_path / "g.yaml", "")
    running.error = ZeroDivisionError("a defect")
    with pytest.raises(ZeroDivisionError):
        running.reload("")
    running.error = None

    assert running.reload("").endswith("changed: nothing")
    assert "Traceback" in caplog.text


def test_request_from_a_signal_handler_is_handled(tmp_path: Path) -> None:
    running = Running(tmp_path / "g.yaml", "")
    before = signal.signal(signal.SIGHUP, lambda *_: running.reloader.request())
    try:
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGHUP)
        running.reloader.request().result(10)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert 1 <= len(running.applied) <= 3


@cases("fails", [False, True])
def test_a_burst_of_requests_needs_two_reloads_that_begin_after_them(tmp_path: Path, fails: bool) -> None:
    running = Running(tmp_path / "g.yaml", "")
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    reloads: list[Settings] = []

    def apply(settings: Settings) -> None:
        reloads.append(settings)
        begun.release()
        go_on.acquire(timeout=10)
        if fails:
            raise ConfigError("refused")

    reloader = Reloader(Settings(), running.load)
    reloader.start(apply)
    first = [reloader.request()]
    assert begun.acquire(timeout=10)  # the first reload has read the file
    running.file.write_text("process: {max_per_device: 5}\n")
    burst = [reloader.request() for _ in range(300)]
    go_on.release(2)
    for future in first + burst:
        assert future.exception(10) is None or fails
    reloader.stop()

    assert [settings.process.max_per_device for settings in reloads] == [Settings().process.max_per_device, 5]
    if not fails:
        assert {future.result() for future in burst} == {"settings reloaded; changed: process.max_per_device"}


def test_requests_before_the_end_are_handled(tmp_path: Path) -> None:
    running = Running(tmp_path / "g.yaml", "")
    reloader = Reloader(Settings(), running.load)
    futures = [reloader.request() for _ in range(3)]
    reloader.stop()
    reloader.start(running.apply)

    assert {future.result(10) for future in futures} == {"settings reloaded; changed: nothing"}


def test_each_live_key_is_a_setting() -> None:
    keys = [setting.key for setting in walk()]

    assert [prefix for prefix in LIVE if not any(key.startswith(prefix) for key in keys)] == []
    assert not is_live("web.listen_address")
    assert not is_live("hook.socket")


def test_difference_is_by_value() -> None:
    assert list(different(Settings(), Settings())) == []
