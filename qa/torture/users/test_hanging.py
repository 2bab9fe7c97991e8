"""Descriptors whose close never ends, not even by SIGKILL: a file of a FUSE file system that a user has mounted."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.needs import require
from tests.sessions.hooks import HONEST, connect, forked, hello, snap, steps, until

from gpugauge.sessions.listener import Sessions
from qa.torture.users.fuse import closing_hangs

from .test_receiver import refused_as

# The receiver in use has not ended when the listener forgets it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
_USER, _FIRST_OF_MANY = 1234, 200_000


class Users:
    """Processes of users with a descriptor of such a file. They are forked from a process of their own: a process that
    has the descriptor cannot start another program, because that closes it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = forked(lambda: self._run(orders))
        orders.close()
        assert self._orders.recv(1) == b"r", "no FUSE file system can be mounted"

    def _run(self, orders: socket.socket) -> None:
        os.setpgid(0, 0)
        self._orders.close()
        folder = Path(self._path).parent
        (descriptor,), _ = closing_hangs(folder, _USER, 1)
        orders.send(b"r")
        while uid := int(orders.recv(16) or 0):
            forked(lambda uid=uid: self._hand_over(descriptor, uid), uid)  # type: ignore[misc]  # the lambda has a default

    def _hand_over(self, descriptor: int, uid: int) -> None:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(self._path)
        socket.send_fds(client, [hello(f"{uid:032}")], [descriptor])
        signal.pause()  # its end would wait for the close, too

    def hand_over(self, uid: int) -> None:
        """Pass the descriptor with the first message of a process of the user."""
        self._orders.send(str(uid).encode())

    def end(self) -> None:
        if self._orders.fileno() >= 0:
            self._orders.close()
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield f"{folder}/hook.sock"


@pytest.fixture
def users(path: str) -> Iterator[Users]:
    require(os.geteuid() == 0 and Path("/dev/fuse").exists(), "needs root and FUSE")
    made = Users(path)
    yield made
    made.end()


def seconds_to_stop(listener: Sessions) -> float:
    began = time.monotonic()
    listener.stop()
    return time.monotonic() - began


def test_a_close_that_never_ends_stops_nobody(users: Users, path: str) -> None:
    listener = Sessions(path)
    listener.start()
    receiver = listener.receiver_pid()
    with connect(listener) as honest:
        honest.send(hello(HONEST))
        users.hand_over(_USER)
        for number in range(1, 60):
            honest.send(snap(number, HONEST))
            until(lambda number=number: steps(listener) == number)  # type: ignore[misc]  # the lambda has a default
            time.sleep(0.1)
            if listener.counters().banned:
                break
        until(lambda: listener.counters().banned == 1)
        assert refused_as(_USER, listener)
        honest.send(snap(99, HONEST))
        until(lambda: steps(listener) == 99)
        assert listener.receiver_pid() == receiver
    assert seconds_to_stop(listener) < 10  # TimeoutStopSec of the unit
    assert Path(f"/proc/{receiver}").exists()  # no signal ends it

    another = Sessions(path)
    another.start()
    with connect(another) as honest:
        honest.send(hello(HONEST))
        until(lambda: len(another.view()) == 1)
    assert seconds_to_stop(another) < 10


def test_many_users_leave_few_receivers_behind(users: Users, path: str) -> None:
    listener = Sessions(path)
    listener.start()
    seen = {listener.receiver_pid()}
    for group in range(6):
        for number in range(18):
            users.hand_over(_FIRST_OF_MANY + 100 * group + number)
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline and len(seen) == group + 1:
            seen.add(listener.receiver_pid())
            time.sleep(0.1)
    assert len(seen - {None}) == 5
    assert listener.counters().replaced["blocked"] == 4
    with connect(listener) as honest:  # the last one serves on
        honest.send(hello(HONEST))
        honest.send(snap(7, HONEST))
        until(lambda: steps(listener) == 7)
    assert seconds_to_stop(listener) < 10
    users.end()
    until(lambda: listener._reception._left_behind() == 0)  # they end, and are waited for
