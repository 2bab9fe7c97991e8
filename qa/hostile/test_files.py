from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.drawn import cases
from tests.needs import give_up
from tests.sessions.hooks import until

from gpugauge.base.guard import Background
from gpugauge.settings.files import MAX_BYTES, FileError, read_file
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import load
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.web.config.access import load_web_config


def named_pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))  # the length of an absolute one is limited


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def terminal(path: Path) -> None:
    control, side = os.openpty()
    path.symlink_to(os.ttyname(side))
    OPEN.append((control, side))


OPEN: list[tuple[int, int]] = []
KINDS: dict[str, Callable[[Path], None]] = {
    "named pipe": named_pipe,
    "folder": lambda path: path.mkdir(),
    "socket": unix_socket,
    "device without an end": lambda path: path.symlink_to("/dev/zero"),
    "terminal": terminal,
    "huge": huge,
    "loop of links": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "file below a file": lambda path: path.symlink_to(f"{__file__}/x"),
    "file of the kernel that cannot be read": lambda path: path.symlink_to("/proc/self/mem"),
}


def settings_file(path: Path) -> None:
    load(path, {}, {})


def scenario(path: Path) -> None:
    load_scenario(str(path))


def web_config(path: Path) -> None:
    load_web_config(path)


def pem_file(key: str) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        Authority().issue(path.parent, "server", "localhost")
        files = {"cert_file": "server.pem", "key_file": "server.key", "client_ca_file": "server.pem", key: path.name}
        lines = [*(f"{name}: {file}" for name, file in files.items()), "client_auth_type: RequireAndVerifyClientCert"]
        config = path.with_name("web.yml")
        config.write_text("tls_server_config:\n" + "".join(f"  {line}\n" for line in lines))
        load_web_config(config)

    return use


USES = [settings_file, scenario, web_config, *map(pem_file, ("cert_file", "key_file", "client_ca_file"))]


@pytest.mark.parametrize("use", USES, ids=["settings", "scenario", "web", "cert", "key", "ca"])
@cases("links", [0, 2])
@cases("kind", KINDS)
def test_any_file_is_read_or_refused_at_once(
    tmp_path: Path, kind: str, links: int, use: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "0.yaml"
    KINDS[kind](path)
    for number in range(1, links + 1):
        (tmp_path / f"{number}.yaml").symlink_to(f"{number - 1}.yaml")
        path = tmp_path / f"{number}.yaml"

    with pytest.raises(ConfigError) as caught:
        use(path)

    assert re.search(rf"{re.escape(str(path))}: (expected a |larger than |cannot be read: )", str(caught.value))
    assert "\n" not in str(caught.value)


@cases("kind", ["named pipe", "folder", "device without an end"])
def test_a_recording_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "recording.jsonl"
    KINDS[kind](path)

    with pytest.raises(ConfigError, match=r"recording\.jsonl: expected a recording, this is no file"):
        load_scenario(str(path))


def test_a_file_that_another_program_has_leased_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("log: {level: error}\n")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with path.open("rb+") as holder:
            try:
                fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                give_up(f"this file system has no leases: {error}")
            with pytest.raises(FileError, match="cannot be read: Resource temporarily unavailable"):
                read_file(path, "settings file")
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        signal.signal(signal.SIGIO, before)

    assert read_file(path, "settings file") == b"log: {level: error}\n"


@cases("size", [0, 1, 4096, MAX_BYTES])
def test_content_up_to_the_limit(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)

    assert read_file(tmp_path / "file", "file") == b"x" * size


def test_content_whose_size_the_kernel_does_not_state() -> None:
    assert read_file(Path("/proc/self/status"), "file").startswith(b"Name:")


def test_a_call_that_hangs_is_left_and_the_next_one_after_its_end_works() -> None:
    reading: Background[int] = Background("read-files")
    end, calls = threading.Event(), []

    def hang() -> int:
        calls.append(1)
        end.wait(20)
        return 1

    for _ in range(3):
        with pytest.raises(TimeoutError):
            reading.call(0.05, hang)
    end.set()
    until(lambda: reading.running is None)

    assert reading.call(10, lambda: 2) == 2
    assert len(calls) == 1  # while it hung, no other thread was started
    with pytest.raises(ZeroDivisionError):
        reading.call(10, lambda: 1 // 0)
