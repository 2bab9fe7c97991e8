"""The device plugin with a kubelet that speaks gRPC: registrations, restarts of both sides, bad requests."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from gpugauge.deviceplugin import plugin
from tests.deviceplugin.kubelet import Kubelet, decode, until

RESOURCE = "gpugauge.dev/hook"
MOUNTS = {"/opt/gpugauge-hook": "/var/lib/gpugauge/hook/1", "/run/gpugauge": "/run/ours"}
CONTAINER = plugin.container_response({"PYTHONUSERBASE": "/opt/gpugauge-hook/user"}, MOUNTS)


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def a_folder() -> Iterator[Path]:
    """Yield a folder with a short path: a Unix socket has 107 characters."""
    with tempfile.TemporaryDirectory(prefix="gg", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    with a_folder() as path:
        yield path


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Kubelet]:
    made = Kubelet(folder)
    made.start()
    yield made
    made.stop()


def made(folder: Path, clock: Clock, devices: int = 3) -> plugin.DevicePlugin:
    return plugin.DevicePlugin(folder, CONTAINER, devices, clock)


def healthy(devices: int = 3) -> dict[str, dict[str, str]]:
    return {RESOURCE: {f"hook-{number}": "Healthy" for number in range(devices)}}


def test_a_container_gets_variable_and_mounts(folder: Path, kubelet: Kubelet) -> None:
    ours = made(folder, Clock())
    ours.turn()
    until(lambda: kubelet.devices == healthy())
    allocated = kubelet.allocate(2)
    ours._end()

    assert kubelet.registered == [("v1beta1", "gpugauge.sock", RESOURCE)]
    mounts = [("/opt/gpugauge-hook", "/var/lib/gpugauge/hook/1", True), ("/run/gpugauge", "/run/ours", True)]
    assert allocated == [({"PYTHONUSERBASE": "/opt/gpugauge-hook/user"}, mounts)] * 2
    assert not (folder / "gpugauge.sock").exists()


def test_it_registers_once_while_nothing_changes(folder: Path, kubelet: Kubelet) -> None:
    clock = Clock()
    ours = made(folder, clock)
    ours.turn()
    until(lambda: kubelet.devices == healthy())
    for _ in range(100):
        clock.now += 1
        ours.turn()
    ours._end()

    assert len(kubelet.registered) == 1


def test_failures_are_logged_once_with_the_reason(
    folder: Path, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.refuse = 5
    clock = Clock()
    ours = made(folder, clock)
    with caplog.at_level(logging.INFO):
        for _ in range(200):
            clock.now += 1
            ours.turn()
            if kubelet.registered:
                break
    ours._end()

    assert [record.message for record in caplog.records] == [
        "the kubelet does not register the plugin (unknown: requested API version is not supported), pods cannot ask "
        "for the hook",
        "the kubelet answers again",
        "registered with the kubelet",
    ]
    assert clock.now <= 1000 + 1 + 2 + 4 + 8 + 16 + 5


def test_the_wrong_folder_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = made(folder, Clock())
    for _ in range(3):
        ours.turn()

    (record,) = caplog.records
    assert "is this the kubelet's device-plugins folder?" in record.message
    assert record.__dict__["fields"] == {"path": folder / "kubelet.sock"}


def test_an_invalid_request_is_refused_and_the_next_one_served(folder: Path, kubelet: Kubelet) -> None:
    ours = made(folder, Clock())
    ours.turn()
    until(lambda: kubelet.devices == healthy())
    grpc = import_module("grpc")
    for request in (b"\xff", b"\x0a\x05ab", b"\x0b", b"\x0a" + b"\xff" * 11):
        with pytest.raises(grpc.RpcError) as caught:
            kubelet.call("Allocate", request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, request
        assert "no AllocateRequest of v1beta1" in caught.value.details()
        assert len(kubelet.allocate(1)) == 1
    ours._end()


def test_a_folder_that_cannot_be_written_is_an_error_of_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another kind of file is at the place of the socket, for example a folder."""
    kubelet = Kubelet(folder)
    kubelet.start()
    (folder / "gpugauge.sock").mkdir()
    ours = made(folder, Clock())
    ours.turn()
    kubelet.stop()

    assert f"cannot listen on {folder / 'gpugauge.sock'}" in caplog.records[0].message


def test_the_command(folder: Path, kubelet: Kubelet) -> None:
    """The command as the DaemonSet runs it: the files exist before a pod can ask for them; SIGTERM ends it with 0."""
    hook = folder.with_name(f"{folder.name}-hook")
    flags = [f"--kubelet-folder={folder}", f"--hook-folder={hook}", "--socket-folder=/run/ours", "--devices=7"]
    process = subprocess.Popen([sys.executable, "-m", "gpugauge", "device-plugin", *flags], stderr=subprocess.PIPE)
    try:
        until(lambda: kubelet.devices == healthy(7), 60)
        ((environment, mounts),) = kubelet.allocate(1)
        files = Path(mounts[0][1])
        assert mounts == [("/opt/gpugauge-hook", str(files), True), ("/run/gpugauge", "/run/ours", True)]
        assert (files / "gpugauge/hook/bootstrap/sitecustomize.py").is_file()
        assert environment["PYTHONUSERBASE"].startswith("/opt/gpugauge-hook/")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not (folder / "gpugauge.sock").exists()
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["rm", "-rf", str(hook)], check=True)


def test_the_command_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    flags = [f"--kubelet-folder={tmp_path}", f"--hook-folder={tmp_path / 'file' / 'hook'}"]
    done = subprocess.run(
        [sys.executable, "-m", "gpugauge", "device-plugin", *flags], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert str(tmp_path / "file" / "hook") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_messages_are_read_by_their_numbers() -> None:
    assert decode(plugin.register_request("a.sock", "b/c")) == {
        1: [b"v1beta1"],
        2: [b"a.sock"],
        3: [b"b/c"],
        4: [b""],
    }
