from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpugauge.settings import reader as config_child
from gpugauge.settings.kinds import ConfigError, ReaderEnded
from gpugauge.settings.load import load
from gpugauge.settings.model import Settings
from gpugauge.settings.reader import SettingsReader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpugauge.yaml"


def process_of(reader: SettingsReader) -> subprocess.Popen[bytes]:
    assert reader._child
    return reader._child._process


def test_known_settings_are_returned_first_and_read_at_a_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGAUGE_LOG_LEVEL", "debug")
    known = Settings()
    reader = SettingsReader(["serve"], known)

    assert reader._child is None
    assert reader.read() is known
    assert reader.read().log.level == "debug"


def test_each_read_returns_the_current_settings(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGAUGE_LOG_LEVEL", "debug")
    file.write_text("path: {pod_logs: /logs}\nweb: {listen_address: ':1,[::1]:2'}\n")
    reader = SettingsReader(["serve", f"--config.file={file}", "--no-collector.host"])

    first = reader.read()
    file.write_text("process: {max_per_device: 3}\n")
    second = reader.read()

    file.write_text("path: {pod_logs: /logs}\nweb: {listen_address: ':1,[::1]:2'}\n")
    expected = load(file, os.environ, {"collector.host": False})
    assert (first, first.given) == (expected, expected.given)
    assert second.process.max_per_device == 3
    assert second.web.listen_address == (("127.0.0.1", 10478),)


def test_a_current_folder_that_may_not_be_entered(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `cd /root; sudo -u gpugauge gpugauge serve --config.file=/etc/…`."""
    file.write_text("process: {max_per_device: 3}\n")
    opened = os.open

    def refuses(path: str, *more: int) -> int:
        if path == ".":
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *more)

    monkeypatch.setattr(os, "open", refuses)

    assert SettingsReader(["serve", f"--config.file={file}"]).read().process.max_per_device == 3


def test_bad_file_raises_the_error_of_load(file: Path) -> None:
    file.write_text("web:\n  max_connection: 5\n")
    with pytest.raises(ConfigError) as expected:
        load(file, {}, {})

    with pytest.raises(ConfigError) as caught:
        SettingsReader(["serve", f"--config.file={file}"]).read()

    assert type(caught.value) is ConfigError
    assert str(caught.value) == str(expected.value)


def test_child_prints_the_error_of_a_wrong_flag(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReaderEnded) as caught:
        SettingsReader(["serve", "--web.listen-adress=:1"]).read()

    assert (caught.value.status, caught.value.explained) == (2, True)
    assert capfd.readouterr().err.startswith("Usage: gpugauge serve [OPTIONS]\n")


def test_killed_child_has_explained_nothing() -> None:
    reader = SettingsReader(["serve"])
    process_of(reader).kill()

    with pytest.raises(ReaderEnded, match=f"ended by signal {signal.SIGKILL:d}") as caught:
        reader.read()
    assert not caught.value.explained


def test_settings_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_child, "__version__", "0.0.9")

    with pytest.raises(ConfigError, match=r"is installed now and 0\.0\.9 runs: it needs a restart"):
        SettingsReader(["serve"]).read()


@pytest.fixture
def inherited() -> Callable[[], bool]:
    """Return whether another process holds a descriptor that children can inherit, as systemd passes them."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    os.set_blocking(read, False)

    def held() -> bool:
        os.close(write)
        try:
            return os.read(read, 1) != b""
        except BlockingIOError:
            return True
        finally:
            os.close(read)

    return held


def test_the_child_has_no_descriptor_of_the_daemon(file: Path, inherited: Callable[[], bool]) -> None:
    file.write_text("log: {level: error}\n")
    reader = SettingsReader(["serve", f"--config.file={file}"])
    process_of(reader).send_signal(signal.SIGSTOP)

    assert not inherited()
    process_of(reader).send_signal(signal.SIGCONT)
    assert reader.read().log.level == "error"


def test_a_read_that_hangs_is_ended_and_later_reads_work(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_child, "START_SECONDS", 0.2)
    reader = SettingsReader(["serve"])
    child = process_of(reader)
    child.send_signal(signal.SIGSTOP)

    with pytest.raises(
        ConfigError, match=r"no answer after 0\.2 s; is the settings file on a file system that does not"
    ):
        reader.read()

    assert child.wait(10) == -signal.SIGKILL
    assert reader.read().given == frozenset()


def test_while_a_process_cannot_be_killed_no_other_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SettingsReader(["serve"])
    reader.read()
    stuck = reader._child
    assert stuck
    stuck._process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]  # a stand-in

    with pytest.raises(ConfigError, match="an earlier attempt still waits for the file"):
        reader.read()
    assert reader._child is stuck
    stuck._process.poll = lambda: -9  # type: ignore[method-assign]  # a stand-in
    assert reader.read().given == frozenset()


def test_a_named_pipe_in_the_place_of_the_file_fails_one_reload_only(file: Path) -> None:
    file.write_text("log: {level: error}\n")
    reader = SettingsReader(["serve", f"--config.file={file}"])
    assert reader.read().log.level == "error"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=r"gpugauge\.yaml: expected a settings file, this is a named pipe"):
        reader.read()
    file.unlink()
    file.write_text("log: {level: debug}\n")

    assert reader.read().log.level == "debug"
