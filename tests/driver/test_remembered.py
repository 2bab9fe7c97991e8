from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from gpugauge.driver.remembered import Remembered, StateFile, default_path, host_digest
from tests.drawn import cases

A = Remembered("GPU-a", 0, "H100", "00000000:10:00.0", 1.7e9)
B = Remembered("GPU-b", 1, None, None, 1.7e9 + 5)


def test_next_daemon_knows_the_devices(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    StateFile(path, "m").save([A, B], {"GPU-c"})

    assert StateFile(path, "m").load() == ((A, B), frozenset({"GPU-c"}))
    assert {found.name for found in tmp_path.iterdir()} == {path.name, f".{path.name}.lock"}


def test_file_has_no_machine_id(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    StateFile(path, "0123456789abcdef").save([A], ())

    assert "0123456789abcdef" not in path.read_text()


@cases(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"gpugauge": 2, "machine": "", "gpus": {}, "forgotten": []}',
        b'{"gpugauge": 1, "machine": "", "gpus": {"GPU-a": {"index": "0"}}, "forgotten": []}',
        b'{"gpugauge": 1, "machine": "", "gpus": {"": {"index": 0, "name": null, "pci_bus_id": null, "seen": 0}}, '
        b'"forgotten": []}',
        b'{"gpugauge": 1, "machine": "", "gpus": {}, "forgotten": [3]}',
        b'{"gpugauge": 1, "machine": "", "gpus": {}, "forgotten": ["\\ud800"]}',
        *(
            b'{"gpugauge": 1, "machine": "", "forgotten": [], "gpus": {"%s": {"index": %s, "name": "%s", '
            b'"pci_bus_id": null, "seen": %s}}}' % facts
            for facts in (
                (b"GPU-a", b"0", b"H100", b"1" + b"0" * 400),
                (b"GPU-a", b"0", b"H100", b"1e999"),
                (b"GPU-a", b"0", b"H100", b"NaN"),
                (b"GPU-a", b"1" + b"0" * 30, b"H100", b"0"),
                (b"GPU-a", b"0", b"\\u001b[2J", b"0"),
                (b"GPU-\\ud800", b"0", b"H100", b"0"),
            )
        ),
    ],
)
def test_broken_file_is_reported_and_replaced(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gpus.json"
    path.write_bytes(content)
    state = StateFile(path)

    assert state.load() == ((), frozenset())
    state.save([A], ())

    assert [record.getMessage() for record in caplog.records] == ["the state file cannot be used"]
    assert StateFile(path).load()[0] == (A,)


def test_file_of_another_machine_is_reported_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gpus.json"
    StateFile(path, "this").save([A], ())
    state = StateFile(path, "other")

    assert state.load() == ((), frozenset())
    state.save([B], ())

    assert "another machine" in caplog.text
    assert StateFile(path, "other").load()[0] == (B,)


def test_file_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = StateFile(tmp_path / "missing" / "gpus.json")
    with caplog.at_level("INFO"):
        for _ in range(2):
            state.save([A], ())
        (tmp_path / "missing").mkdir()
        state.save([A], ())

    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the state file cannot be written")
    assert second == "the state file was written again"


def test_folder_in_place_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = StateFile(tmp_path)

    assert state.load() == ((), frozenset())
    state.save([A], ())

    assert "cannot be used" in caplog.text
    assert not list(tmp_path.iterdir())


def test_two_daemons_keep_the_devices_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    first, second = StateFile(path), StateFile(path)
    first.load(), second.load()
    first.save([A], ())
    second.save([B], ())
    first.save([], {"GPU-a"})

    assert StateFile(path).load() == ((B,), frozenset({"GPU-a"}))


def test_daemon_does_not_wait_for_the_lock_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    StateFile(tmp_path / "gpus.json").save([A], ())
    lock = os.open(tmp_path / ".gpus.json.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    StateFile(tmp_path / "gpus.json").save([B], ())
    os.close(lock)

    assert "cannot be written" in caplog.text


def test_the_lock_is_none_that_another_user_can_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gpus.json"
    StateFile(path).save([A], ())
    assert (tmp_path / ".gpus.json.lock").stat().st_mode & 0o777 == 0o600
    readable = [os.open(file, os.O_RDONLY) for file in (tmp_path, path)]
    for descriptor in readable:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    StateFile(path).save([B], ())
    for descriptor in readable:
        os.close(descriptor)

    assert StateFile(path).load()[0] == (A, B)
    assert not caplog.records


def test_a_named_pipe_in_the_place_of_the_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "gpus.json"
    os.mkfifo(path)
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(StateFile(path).load()), daemon=True)
    thread.start()
    thread.join(10)
    if thread.is_alive():  # let it go
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    assert done == [((), frozenset())]
    assert "cannot be used" in caplog.text
    StateFile(path).save([A], ())
    assert StateFile(path).load()[0] == (A,)


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "state" / "gpus.json", tmp_path / "other"
    path.parent.mkdir()
    other.write_text("kept")
    for link in (path, path.with_name(f".{path.name}.{os.getpid()}")):
        link.symlink_to(other)
    StateFile(path).save([A], ())

    assert other.read_text() == "kept"
    assert StateFile(path).load()[0] == (A,)


def test_digest_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("4d1c\n")

    assert (len(host_digest(tmp_path)), host_digest(tmp_path / "none")) == (8, "")


def test_default_path(tmp_path: Path) -> None:
    assert default_path({"STATE_DIRECTORY": f"{tmp_path}:/other"}) == tmp_path / "gpus.json"
    with_folder = os.access("/var/lib/gpugauge", os.W_OK)
    assert (default_path({}) is not None) == with_folder


def test_format_is_json_for_people(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    StateFile(path).save([A], ())

    assert json.loads(path.read_text())["gpus"] == {
        "GPU-a": {"index": 0, "name": "H100", "pci_bus_id": "00000000:10:00.0", "seen": 1.7e9}
    }
