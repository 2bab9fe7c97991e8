from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.daemon.systemd import Notifier, listen_fds
from tests.drawn import cases


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield the service manager's socket and the value of NOTIFY_SOCKET."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@gpugauge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + address[1:] if address.startswith("@") else address)
        channel.setblocking(False)
        yield channel, address


def test_messages(manager: tuple[socket.socket, str]) -> None:
    channel, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})

    notifier.ready()
    notifier.watchdog()
    notifier.stopping()

    expected = [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert [channel.recv(100) for _ in expected] == expected


def test_no_watchdog_message_unless_asked(manager: tuple[socket.socket, str]) -> None:
    channel, address = manager

    Notifier({"NOTIFY_SOCKET": address}).watchdog()

    with pytest.raises(BlockingIOError):
        channel.recv(100)


@cases(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None if os.getpid() != 1 else 15.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], interval: float | None) -> None:
    assert Notifier(environ).watchdog_interval == interval


@cases("address", ["", "/nowhere/notify", "@nobody-listens-here", "x" * 500])
def test_without_a_manager_nothing_is_sent(address: str) -> None:
    Notifier({"NOTIFY_SOCKET": address}).ready()


def test_manager_that_does_not_read_does_not_block(manager: tuple[socket.socket, str]) -> None:
    channel, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})

    for _ in range(2000):  # more than the queue of a datagram socket holds
        notifier.ready()

    assert channel.recv(100) == b"READY=1"


# The manager writes the process's own id into the environment and passes descriptors from 3 on.
CHILD = """
import os
os.environ["LISTEN_PID"] = str(os.getpid())
for descriptor in (3, 4):
    os.dup2(0, descriptor)
from gpugauge.daemon.systemd import listen_fds
first = listen_fds()
print(first, listen_fds(), [os.get_inheritable(fd) for fd in first.values()])
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


def child(**variables: str) -> str:
    command = [sys.executable, "-c", CHILD]
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def test_descriptors_by_name_are_returned_once_and_not_inherited() -> None:
    assert child(LISTEN_FDS="2", LISTEN_FDNAMES="hook:web") == "{'hook': 3, 'web': 4} {} [False, False]\n[]\n"


def test_socket_without_a_name() -> None:
    assert child(LISTEN_FDS="1") == "{'unknown': 3} {} [False]\n[]\n"


@cases(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "hook"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"},
        {"LISTEN_PID": str(os.getpid())},
    ],
)
def test_variables_of_another_process_or_without_a_count_are_ignored(environ: dict[str, str]) -> None:
    assert listen_fds(environ) == {}
    assert environ == {}
