from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpugauge.settings import reader as config_child
from gpugauge.settings.kinds import ConfigError, ReaderEnded
from gpugauge.settings.load import load
from gpugauge.settings.reader import SettingsReader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpugauge.yaml"


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


def test_killed_child_has_explained_nothing(file: Path) -> None:
    os.mkfifo(file)
    reader = SettingsReader(["serve", f"--config.file={file}"])
    assert reader._started is not None
    reader._started._process.kill()

    with pytest.raises(ReaderEnded, match=f"ended by signal {signal.SIGKILL:d}") as caught:
        reader.read()
    assert not caught.value.explained


def test_settings_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_child, "__version__", "0.0.9")

    with pytest.raises(ConfigError, match=r"is installed now and 0\.0\.9 runs: it needs a restart"):
        SettingsReader(["serve"]).read()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_a_file_of_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('this must not run')\n")
    monkeypatch.chdir(tmp_path)

    assert SettingsReader(["serve"]).read().given == frozenset()


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
    os.mkfifo(file)
    reader = SettingsReader(["serve", f"--config.file={file}"])
    with file.open("w") as pipe:  # the child waits in it
        held = inherited()
        pipe.write("log: {level: error}\n")

    assert not held
    assert reader.read().log.level == "error"
